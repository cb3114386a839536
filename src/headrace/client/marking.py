"""A consumer whose commits carry when its group started (`group_start`)."""

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from headrace.client.group_start import marked, unmarked
from headrace.client.positions import behind, checked, with_metadata
from headrace.core.types import WallMs

LOG = logging.getLogger(__name__)

_KEEP_AGAIN_S = 1.0


class MarkingConsumer(StockConsumer):
    """`confluent_kafka.Consumer`, with a mark in each commit once `_since` is known."""

    def __init__(self, config: dict[str, Any], *, is_marking: bool) -> None:
        self._since: WallMs | None = None
        self._group = config.get("group.id", "")
        # Start positions whose commit is not confirmed, and the time of the next attempt.
        self._unkept: dict[tuple[str, int], TopicPartition] = {}
        self._keep_at: float | None = None
        if is_marking:
            config = {**config, "on_commit": self._warning(config.get("on_commit"))}
        super().__init__(config)

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As confluent-kafka's."""
        message, offsets = self._to_commit(message, offsets)
        stock: Callable[..., Any] = super().commit
        return stock(message, offsets, *args, **kwargs)

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """As confluent-kafka's."""
        message, offsets = self._to_commit(message, offsets)
        super().store_offsets(message, offsets)

    def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """As confluent-kafka's."""
        found = super().committed(partitions, timeout)
        own = [unmarked(one.metadata) for one in found]
        return [
            one if one.metadata == told else with_metadata(one, told)
            for one, told in zip(found, own, strict=True)
        ]

    def _keep(self, offsets: list[TopicPartition], *, at_once: bool) -> None:
        """Commit where the group begins, so that no start of a member is taken for the group's.

        Not to wait is for who is called back by librdkafka: the commit is on its way before the
        member can ask to join anew, which would hold it up. A commit that fails is repeated.
        """
        marked_ones = self._marked(offsets)
        self._unkept |= {(one.topic, one.partition): one for one in marked_ones}
        self._commit_unkept(at_once=at_once)

    def _keep_again(self, assigned: list[TopicPartition]) -> None:
        """Repeat the commit of start positions that failed, if nothing newer may be committed."""
        if self._keep_at is None or self._monotonic() < self._keep_at:
            return
        places = {(one.topic, one.partition) for one in assigned}
        for place in self._unkept.keys() - places:
            del self._unkept[place]
        if self._unkept:
            self._commit_unkept(at_once=False)

    def _monotonic(self) -> float:
        return time.monotonic()

    def _commit_unkept(self, *, at_once: bool) -> None:
        stock: Callable[..., Any] = super().commit
        self._keep_at = None
        try:
            found = stock(offsets=list(self._unkept.values()), asynchronous=not at_once)
            if at_once:
                self._kept(checked(found or []))
        except KafkaException as error:
            self._keep_at = self._monotonic() + _KEEP_AGAIN_S
            self._warn(error)

    def _kept(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._unkept.pop((one.topic, one.partition), None)

    def _warning(self, own: Callable[..., object] | None) -> Callable[..., None]:
        """The application's callback for commits, behind a warning of those that failed."""

        def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
            if error is None:
                self._kept([one for one in partitions if one.error is None])
            else:
                self._warn(error)
            if self._unkept and self._keep_at is None:
                self._keep_at = self._monotonic() + _KEEP_AGAIN_S
            if own is not None:
                own(error, partitions)

        return on_commit

    def _warn(self, error: object) -> None:
        LOG.warning(
            "group %s: when it started is not committed yet (%s); a member that joins before "
            "the next commit may take itself for the first",
            self._group, error,
        )  # fmt: skip

    def _to_commit(
        self, message: Message | None, offsets: list[TopicPartition] | None
    ) -> tuple[Message | None, list[TopicPartition] | None]:
        """The same with the mark, which a message has no place for."""
        if self._since is None or (message is not None and offsets is not None):
            return message, offsets
        if message is not None and message.error() is not None:
            return message, offsets  # librdkafka refuses it, although it may carry an offset
        if message is not None:
            return None, self._marked([behind(message)])
        return None, None if offsets is None else self._marked(offsets)

    def _marked(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        since = self._since
        if since is None:
            return offsets
        self._kept(offsets)  # a newer position may be committed from now on
        return [with_metadata(one, marked(one.metadata, since)) for one in offsets]

    def _store(self, messages: list[Message]) -> None:
        """Store what was given to the application, as librdkafka does by itself."""
        last = {(one.topic(), one.partition()): one for one in messages if one.error() is None}
        try:
            super().store_offsets(offsets=self._marked([behind(one) for one in last.values()]))
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # the partition was revoked meanwhile
                raise

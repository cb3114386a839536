"""A consumer whose commits carry when its group started (`group_start`)."""

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from headrace.client.group_start import marked, unmarked
from headrace.client.positions import behind, checked, with_metadata
from headrace.core.types import WallMs

LOG = logging.getLogger(__name__)


class MarkingConsumer(StockConsumer):
    """`confluent_kafka.Consumer`, with a mark in each commit once `_since` is known."""

    def __init__(self, config: dict[str, Any], *, is_marking: bool) -> None:
        self._since: WallMs | None = None
        self._group = config.get("group.id", "")
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
        member can ask to join anew, which would hold it up.
        """
        stock: Callable[..., Any] = super().commit
        try:
            checked(stock(offsets=self._marked(offsets), asynchronous=not at_once) or [])
        except KafkaException as error:
            self._warn(error)

    def _warning(self, own: Callable[..., object] | None) -> Callable[..., None]:
        """The application's callback for commits, behind a warning of those that failed."""

        def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
            if error is not None:
                self._warn(error)
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
        if message is not None:
            return None, self._marked([behind(message)])
        return None, None if offsets is None else self._marked(offsets)

    def _marked(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        since = self._since
        if since is None:
            return offsets
        return [with_metadata(one, marked(one.metadata, since)) for one in offsets]

    def _store(self, messages: list[Message]) -> None:
        """Store what was given to the application, as librdkafka does by itself."""
        last = {(one.topic(), one.partition()): one for one in messages if one.error() is None}
        try:
            super().store_offsets(offsets=self._marked([behind(one) for one in last.values()]))
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # the partition was revoked meanwhile
                raise

"""The loop of `headrace consume`: records out of librdkafka, in the order they come, to stdout.

It subscribes as a member of a group, and commits what was written when it is to commit at all. As
the one member of a made-up group it decides itself where partitions begin: those there are at its
start at their end, new ones at their beginning, as nobody can have seen them before. One partition
alone is read by assignment, without a group; topics that have it are looked for now and then.
"""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from headrace.cli.consume_format import Format
from headrace.cli.decoders import Undecodable
from headrace.cli.ending import Trouble, stopping, tell
from headrace.cli.readable import require_readable
from headrace.client.admin import log_end
from headrace.client.connection import Cluster, Patience
from headrace.client.consumer import Consumer
from headrace.client.errors import STORAGE_ERRORS, BrokerError, ClientError
from headrace.client.log_ends import readable_ends_of
from headrace.client.positions import EARLIEST, checked, offsets_at
from headrace.client.topics import describe_topics

_POLL_S = 0.2
_BATCH_MAX = 500
_LOOK_S = 5.0
_COMMITTED_S = 1.0
_LOOK_MISSING_S = 1.0
_JOIN_S_MAX = 30.0
_OTHER_TYPE = (
    "group {} is of another type, or its members assign partitions in other ways; a share group is "
    "read with --share-group"
)
_EARLIEST = frozenset({"earliest", "smallest", "beginning"})  # as librdkafka reads a reset policy
_YES = frozenset({"true", "t", "1"})  # as librdkafka reads a switch

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read. `offset` is where it begins: a number, OFFSET_BEGINNING, or None for the end.

    `name` is a topic, or a regular expression when `is_pattern`; the topics meant match `matches`
    whole. `messages_max` and `idle_ms_max` end the reading. `is_alone`: its group is made up.
    """

    name: str
    is_pattern: bool
    matches: re.Pattern[str]
    partition: int | None
    offset: int | None
    messages_max: int | None
    idle_ms_max: int | None
    skip_errors: bool
    is_alone: bool


class Reading:
    """One run of the consumer; `count` records were written, `stopped` is the signal that came."""

    def __init__(self, settings: dict[str, Any], wanted: Wanted, write: Format) -> None:
        self.count = 0
        self.stopped: int | None = None
        self._settings = settings
        self._wanted = wanted
        self._write = write
        self._commits = str(settings["enable.auto.commit"]).lower() in _YES
        self._subscribes = wanted.partition is None
        self._is_joining = False
        self._idle_since = time.monotonic()
        self._next: dict[Place, int] = {}  # offsets after what was written
        self._begins: dict[Place, int] = {}  # of partitions that were there at the start
        self._look_at = 0.0
        self._is_down = False
        self._is_missing = False  # and that was told
        self._consumer = _new_consumer(settings | {"error_cb": self._on_error})

    def run(self, cluster: Cluster) -> None:
        """Read until something ends it. Raises: Trouble, BrokenPipeError, as `Cluster`."""
        with stopping(self._stop):
            try:
                self._loop(cluster)
                sys.stdout.buffer.flush()
            except KafkaException as error:
                raise Trouble(f"reading {self._wanted.name}: {error.args[0].str()}") from error
            finally:
                self._keep_beginnings()
                self._consumer.close()

    def _keep_beginnings(self) -> None:
        """Commit, with --from-beginning, the start of partitions that were not come to.

        The group's next run would begin at their end. Java's consumer commits their positions too.
        """
        if not (self._subscribes and self._commits) or self._wanted.offset != OFFSET_BEGINNING:
            return
        with suppress(KafkaException):  # nobody answers: then nothing else is committed either
            owned = self._consumer.assignment()
            committed = self._consumer.committed(owned, timeout=_COMMITTED_S) if owned else []
            missing = [
                one
                for one in checked(committed)
                if one.offset < 0 and (one.topic, one.partition) not in self._next
            ]
            if missing:
                stamps = [EARLIEST] * len(missing)
                starts = offsets_at(self._consumer, missing, stamps, _COMMITTED_S)
                self._consumer.store_offsets(offsets=starts)

    def _loop(self, cluster: Cluster) -> None:
        self._look(cluster, at_start=True)
        if self._subscribes:
            name = self._wanted.name
            self._is_joining = bool(self._begins)
            names = [f"^({name})$" if self._wanted.is_pattern else name]
            self._consumer.subscribe(names, on_assign=self._on_assign)
        once = Cluster(
            cluster.bootstrap_servers, patience=Patience(total_s=0), request_timeout_s=_LOOK_S
        )
        with once:
            while self.stopped is None and not self._is_full():
                if not self._subscribes and time.monotonic() >= self._look_at:
                    self._look_again(once)
                if self._take():
                    self._idle_since = time.monotonic()
                elif self._has_been_idle():
                    require_readable(once, self._unread())
                    return

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Reading begins now; where, the group's offsets or the reset policy say unless alone."""
        if self._is_joining:
            self._is_joining, self._idle_since = False, time.monotonic()
        if not self._wanted.is_alone:
            return
        for one in partitions:
            place = (one.topic, one.partition)
            one.offset = self._next.get(place, self._begins.get(place, OFFSET_BEGINNING))
        if self._is_cooperative():
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)

    def _is_cooperative(self) -> bool:
        strategy = self._settings.get("partition.assignment.strategy", "")
        return "cooperative" in strategy or self._settings.get("group.protocol") == "consumer"

    def _take(self) -> bool:
        """Write what is there, at most a batch; whether anything was."""
        first = self._consumer.poll(_POLL_S)
        if first is None:
            return False
        room = _BATCH_MAX - 1
        if self._wanted.messages_max is not None:
            room = min(room, self._wanted.messages_max - self.count - 1)
        rest = self._consumer.consume(room, timeout=0) if room > 0 else []
        found = False
        for message in (first, *rest):
            if self.stopped is None and self._is_readable(message):
                self._write_one(message)
                found = True
        sys.stdout.buffer.flush()
        self._is_down = False
        return found

    def _write_one(self, message: Message) -> None:
        try:
            line = self._write(message)
        except Undecodable as error:
            place = f"{message.topic()}-{message.partition()} offset {message.offset()}"
            if not self._wanted.skip_errors:
                raise Trouble(f"{place}: {error}; --skip-message-on-error goes on") from error
            tell("consume", f"{place}: {error}; skipped")
        else:
            sys.stdout.buffer.write(line)
        self.count += 1
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None, "a record has a place"
        assert partition is not None, "as above"
        assert offset is not None, "as above"
        self._next[topic, partition] = offset + 1
        if self._commits:
            self._store(message)

    def _store(self, message: Message) -> None:
        try:
            self._consumer.store_offsets(message)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # the partition was revoked meanwhile
                raise

    def _is_readable(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if self._subscribes and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._forget(message.topic())
            return False
        topic, offset = message.topic(), message.offset()
        place = f"{topic}-{message.partition()}" if topic else "the cluster"
        told = f"reading {place}: {error.str()}"
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            raise Trouble(f"{told}; {_OTHER_TYPE.format(self._settings['group.id'])}")
        # Only what is wrong with a record, which has an offset, can be passed over.
        is_of_record = bool(topic) and offset is not None and offset >= 0
        if error.code() == KafkaError._FATAL or not self._wanted.skip_errors:
            remedy = "; --skip-message-on-error goes on" if is_of_record else ""
            raise Trouble(told + remedy)
        tell("consume", f"{told}; skipped")
        return False

    def _forget(self, topic: str | None) -> None:
        """A topic is gone; another of its name is read from its beginning."""
        if not self._is_missing:
            tell("consume", f"there is no topic {topic} any more; waiting for one")
        self._is_missing = True
        for known in (self._next, self._begins):
            for place in [place for place in known if place[0] == topic]:
                del known[place]

    def _is_full(self) -> bool:
        return self._wanted.messages_max is not None and self.count >= self._wanted.messages_max

    def _has_been_idle(self) -> bool:
        if self._wanted.idle_ms_max is None:
            return False
        limit_s = self._wanted.idle_ms_max / 1000
        if self._is_joining:  # nothing can come yet
            limit_s = max(limit_s, _JOIN_S_MAX)
        return time.monotonic() - self._idle_since >= limit_s

    def _unread(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, partition and position of what was not read to its end, as is known."""
        for one in self._consumer.assignment():
            _, end = self._consumer.get_watermark_offsets(one, cached=True)  # negative: unknown
            offset = self._next.get((one.topic, one.partition), end)
            if offset < 0:  # no fetch has succeeded
                yield one.topic, one.partition, self._beginning(one)
            elif end < 0 or offset < end:
                yield one.topic, one.partition, offset

    def _beginning(self, one: TopicPartition) -> int:
        """Return where reading of a partition began: an offset, OFFSET_BEGINNING or OFFSET_END."""
        begin = self._begins.get((one.topic, one.partition), OFFSET_BEGINNING)
        if not self._subscribes or self._wanted.is_alone:
            return begin
        with suppress(KafkaException):
            (committed,) = self._consumer.committed([one], timeout=_COMMITTED_S)
            if committed.offset >= 0:
                return committed.offset
        reset = str(self._settings.get("auto.offset.reset", "")).lower()
        return OFFSET_BEGINNING if reset in _EARLIEST else OFFSET_END

    def _look(self, cluster: Cluster, *, at_start: bool = False) -> None:
        """Find partitions that are wanted and were not there before. Raises: as `Cluster`."""
        wanted = self._wanted
        asked = None if wanted.is_pattern else [wanted.name]
        found = {
            (name, part.partition)
            for name, topic in describe_topics(cluster, asked).items()
            if wanted.matches.fullmatch(name) and not (wanted.is_pattern and topic.internal)
            for part in topic.partitions
            if wanted.partition in (None, part.partition)
        }
        new = sorted(found - self._begins.keys())
        for place in new:
            self._begins[place] = self._begin(cluster, *place, at_start=at_start)
        if new and not self._subscribes:
            begin = [TopicPartition(*place, self._begins[place]) for place in new]
            self._consumer.incremental_assign(begin)
        elif at_start and not new:
            told = "no topic matches" if wanted.is_pattern else "there is no topic"
            part = "" if wanted.partition is None else f" with partition {wanted.partition}"
            tell("consume", f"{told} {wanted.name}{part}; waiting for one")
            self._is_missing = True
        self._look_at = time.monotonic() + (_LOOK_S if self._begins else _LOOK_MISSING_S)

    def _begin(self, cluster: Cluster, topic: str, partition: int, *, at_start: bool) -> int:
        if not at_start:
            return OFFSET_BEGINNING
        if self._wanted.offset is not None:
            if self._wanted.offset >= 0:
                _require_in_log(cluster, (topic, partition), self._wanted.offset)
            return self._wanted.offset
        if not self._wanted.is_alone and self._subscribes:
            return OFFSET_STORED
        # Asked now, so that what is produced from here on is read, however long a fetch takes.
        try:
            return log_end(cluster, topic, partition, final=STORAGE_ERRORS)
        except BrokerError as error:
            if error.code not in STORAGE_ERRORS:
                raise
            return OFFSET_END  # nothing is written there until the broker can read it

    def _look_again(self, once: Cluster) -> None:
        try:
            self._look(once)
        except ClientError:
            # librdkafka reconnects by itself; this look is made up for by the next one.
            self._look_at = time.monotonic() + _LOOK_S

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._is_down:
            self._is_down = True
            servers = self._settings["bootstrap.servers"]
            tell("consume", f"no broker answers any more at {servers}; trying on")

    def _stop(self, number: int) -> None:
        self.stopped = number


def _require_in_log(cluster: Cluster, place: Place, offset: int) -> None:
    """Check that a log has an offset, or gets it next.

    Raises: Trouble where it does not, or the broker cannot read the log.
    """
    found, errors = readable_ends_of(cluster, [place])
    if place in errors:  # a consumer would repeat its fetch for ever, without an event
        raise Trouble(str(errors[place]))
    ends = found[place]
    if ends.earliest is None or ends.latest is None or ends.earliest <= offset <= ends.latest:
        return
    topic, partition = place
    raise Trouble(
        f"--offset {offset} is not in the log of {topic}-{partition}, which begins at "
        f"{ends.earliest} and gets {ends.latest} next; give an offset from {ends.earliest} to "
        f"{ends.latest}, earliest or latest"
    )


def _new_consumer(settings: dict[str, Any]) -> Consumer:
    """Raises: Trouble on a setting that librdkafka does not know or refuses."""
    import logging

    quiet = logging.getLogger("headrace.librdkafka")
    quiet.propagate = False
    quiet.addHandler(logging.NullHandler())
    try:
        return Consumer(settings, logger=quiet)
    except KafkaException as error:
        raise Trouble(f"a setting of the consumer: {error.args[0].str()}") from error
    except ValueError as error:
        raise Trouble(str(error)) from error

"""A bare member of a share group, the same for both brokers; it measures answers undecoded."""

import sys
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from brokers import Broker
from group_client import FIND, Connection, decoded, frame

METADATA, HEARTBEAT, FETCH, ACKNOWLEDGE = 3, 76, 78, 79
VERSION = 2
RELEASE = 2
RECORD_LIMIT = 1
BYTES_MAX = 50 << 20
_HEARTBEAT_VERSION = 1
_SECONDS_MAX = 60
_RANGES_MAX = 40_000  # in a request, which may have a megabyte
_LATER = (14, 15, 16, 69)  # a coordinator that is not there yet

Span = tuple[int, int]


class Member:
    """One member of a group that reads partition 0 of a topic."""

    def __init__(self, broker: Broker, group: str, topic: str, name: str) -> None:
        self.connection = Connection(broker)
        self.group, self.topic, self.name = group, topic, name
        self._epoch = 0
        self._topic_id = self._find()
        self._join()

    def fetch(self, records: int, mode: int = 0) -> tuple[list[Span], float]:
        """The ranges acquired of at most so many records, and how long the answer took."""
        asked = frame(
            FETCH, VERSION, **self._who(), max_wait=0, min_bytes=1, max_bytes=BYTES_MAX,
            max_records=records, batch_size=records, share_acquire_mode=mode, is_renew_ack=False,
            topics=self._topics([]) if not self._epoch else [], forgotten_topics_data=[],
        )  # fmt: skip
        began = time.perf_counter()
        answer = self.connection.exchange(asked)
        took = time.perf_counter() - began
        told = self._told(FETCH, answer)
        return [
            (one.first_offset, one.last_offset)
            for part in told
            for one in part.acquired_records
        ], took  # fmt: skip

    def settle(self, spans: Iterable[Span], verdict: int) -> None:
        """Say the same of many ranges."""
        left = list(spans)
        while left:
            now, left = left[:_RANGES_MAX], left[_RANGES_MAX:]
            said = [
                {"first_offset": first, "last_offset": last, "acknowledge_types": (verdict,)}
                for first, last in now
            ]
            asked = frame(
                ACKNOWLEDGE, VERSION, **self._who(), is_renew_ack=False, topics=self._topics(said)
            )
            self._told(ACKNOWLEDGE, self.connection.exchange(asked))

    def _find(self) -> UUID:
        asked = [{"topic_id": None, "name": self.topic}]
        found = self.connection.ask(
            METADATA, 12, topics=asked, allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        ).topics[0]  # fmt: skip
        if found.error_code:
            sys.exit(f"topic {self.topic}: error {found.error_code}")
        topic_id: UUID = found.topic_id
        return topic_id

    def _join(self) -> None:
        """Be a member, and wait until the partition is assigned."""
        until, epoch = time.monotonic() + _SECONDS_MAX, 0
        while time.monotonic() < until:
            told = self.connection.ask(
                HEARTBEAT, _HEARTBEAT_VERSION, group_id=self.group, member_id=self.name,
                member_epoch=epoch, rack_id=None, subscribed_topic_names=[self.topic],
            )  # fmt: skip
            if told.error_code not in (0, *_LATER):
                sys.exit(f"a heartbeat was answered with error {told.error_code}")
            if not told.error_code and told.assignment and told.assignment.topic_partitions:
                return
            epoch = 0 if told.error_code else told.member_epoch
            if told.error_code:  # Kafka creates a topic of its own when it is first asked for it
                self.connection.ask(FIND, 4, key_type=0, coordinator_keys=[self.group])
            time.sleep(0.01)
        sys.exit(f"{self.name} has no assignment within {_SECONDS_MAX} s")

    def _who(self) -> dict[str, Any]:
        return {
            "group_id": self.group, "member_id": self.name, "share_session_epoch": self._epoch,
        }  # fmt: skip

    def _topics(self, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        parts = [{"partition_index": 0, "acknowledgement_batches": said}]
        return [{"topic_id": self._topic_id, "partitions": parts}]

    def _told(self, key: int, answer: bytes) -> list[Any]:
        """The partitions of an answer without errors; the session goes on."""
        told = decoded(key, VERSION, answer)
        parts = [part for topic in told.responses for part in topic.partitions]
        codes = [told.error_code, *(part.error_code for part in parts)]
        if any(codes):
            sys.exit(f"API {key} was answered with errors {codes}: {told.error_message}")
        self._epoch += 1
        return parts

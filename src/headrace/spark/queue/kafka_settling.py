"""What a query says of the records it holds as a member of a share group, and what is heard of it.

Apache Kafka knows no delay: a record to be released later is kept, with its lock renewed, until its
time has come, or the query ends.
"""

import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from headrace.client.share_consumer.sync import SyncShareConsumer, SyncShareRecord
from headrace.client.share_consumer.words import AcknowledgeResult, LockLost
from headrace.spark.queue.kafka_owed import Owed
from headrace.spark.queue.kafka_staging import Place
from headrace.wire.leases import CommitResponse, Disposition, Verdict

LOG = logging.getLogger(__name__)

_REFUSED = "refused"


class Settling:
    """The verdicts of one member. `results` is told what becomes of each."""

    def __init__(self, group: str, owed: Owed) -> None:
        self.results: list[AcknowledgeResult] = []
        self._group = group
        self._owed = owed
        self._later: list[tuple[float, int, SyncShareRecord]] = []
        self._order = itertools.count()
        self._has_rejected = False

    def waiting(self, place: tuple[str, int], below: int) -> int:
        """How many records of a partition below an offset are to be released later."""
        return sum(
            (one.topic, one.partition) == place and one.offset < below for _, _, one in self._later
        )

    def settle(
        self,
        consumer: SyncShareConsumer,
        records: Sequence[SyncShareRecord],
        said: Mapping[Place, Disposition],
    ) -> CommitResponse:
        """Give each record its verdict and wait for the answers; what was lost is owed.

        Raises: `BrokerError` for a refusal that is not for want of a lock.
        """
        self.results.clear()
        told = [record for record in records if self._give(record, said.get(place_of(record)))]
        with suppress(LockLost):
            consumer.commit()
        heard = {(one.topic, one.partition, one.first): one.error for one in self.results}
        counts = Counter(release=len(records) - len(told))
        for record in told:
            place = place_of(record)
            verdict = said[place].verdict if place in said else Verdict.ACCEPT
            if place in heard and heard[place] is None:
                counts[verdict.name.lower()] += 1
                continue
            counts[_REFUSED] += 1
            self._owed.add(place, said.get(place), record.delivery_count, record.place[0])
        return CommitResponse(
            0, None, counts["accept"], counts["release"], counts["reject"], counts[_REFUSED]
        )

    def release_due(self) -> None:
        """Release what has waited long enough."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            record = heapq.heappop(self._later)[2]
            record.release()

    def _give(self, record: SyncShareRecord, said: Disposition | None) -> bool:
        """Whether a verdict was given; else it waits."""
        if said is None or said.verdict is Verdict.ACCEPT:
            record.accept()
        elif said.verdict is Verdict.REJECT:
            self._warn(record, said.reason)
            record.reject(said.reason)
        elif said.delay_ms:
            due = time.monotonic() + said.delay_ms / 1000
            heapq.heappush(self._later, (due, next(self._order), record))
            return False
        else:
            record.release()
        return True

    def _warn(self, record: SyncShareRecord, reason: str | None) -> None:
        if self._has_rejected:
            return
        self._has_rejected = True
        LOG.warning(
            "group %s: Apache Kafka before 4.4 has no dead-letter topics and keeps no reasons, so "
            "rejected records are archived; the first is %s-%d offset %d: %s",
            self._group, record.topic, record.partition, record.offset, reason,
        )  # fmt: skip


def place_of(record: SyncShareRecord) -> Place:
    return record.topic, record.partition, record.offset

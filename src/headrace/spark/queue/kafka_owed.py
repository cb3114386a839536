"""Verdicts of a query on records whose locks it lost: they hold when the records come again.

A batch that Spark has committed is in the sink. When its locks ended before the group was told (the
query was restarted, or the connection to the broker was lost), its records are delivered again, and
are settled then without another run.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from headrace.client.share_consumer.sync import SyncShareRecord
from headrace.wire.leases import Disposition, Verdict

LOG = logging.getLogger(__name__)

_RECORDS_MAX = 1_000_000  # what others finished never comes again: the oldest are forgotten


@dataclass(frozen=True, slots=True)
class Debt:
    """A verdict on a record that was delivered `deliveries` times when it was judged.

    Offsets begin anew in a topic that was deleted and created again. So the topic's id must be the
    same, or, where a former process judged, the delivery must be a later one.
    """

    verdict: Verdict
    reason: str | None
    deliveries: int
    topic_id: UUID | None = None

    def is_on(self, record: SyncShareRecord) -> bool:
        """Whether this very record was judged."""
        if self.topic_id is not None:
            return record.place[0] == self.topic_id
        return record.delivery_count > self.deliveries


class Owed:
    """Verdicts by topic, partition and offset."""

    def __init__(self) -> None:
        self._debts: dict[tuple[str, int, int], Debt] = {}

    def add(
        self,
        place: tuple[str, int, int],
        said: Disposition | None,
        deliveries: int,
        topic_id: UUID | None = None,
    ) -> None:
        """Owe a verdict, to accept without one. What was to be released is delivered anyhow."""
        verdict = Verdict.ACCEPT if said is None else said.verdict
        if verdict is Verdict.RELEASE:
            return
        self._debts[place] = Debt(verdict, said.reason if said else None, deliveries, topic_id)
        if len(self._debts) > _RECORDS_MAX:
            del self._debts[next(iter(self._debts))]

    def settled(self, records: Iterable[SyncShareRecord]) -> list[SyncShareRecord]:
        """The records that nobody judged; the others get their verdict."""
        if not self._debts:
            return list(records)
        rest: list[SyncShareRecord] = []
        paid = 0
        for record in records:
            debt = self._debts.pop((record.topic, record.partition, record.offset), None)
            if debt is None or not debt.is_on(record):
                rest.append(record)
                continue
            paid += 1
            if debt.verdict is Verdict.ACCEPT:
                record.accept()
            else:
                record.reject(debt.reason)
        if paid:
            LOG.info("%d records came again that are done: settled, not delivered", paid)
        return rest

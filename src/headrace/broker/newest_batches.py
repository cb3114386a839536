"""Times of the batches that users' partitions got lately, for a clock in doubt."""

from collections.abc import Iterator
from itertools import islice

from headrace.broker.partitions import Partition, Partitions
from headrace.core.types import WallMs
from headrace.wire.batches import CorruptBatch

PARTITIONS_MAX = 200  # whose last batch a look reads; the next look goes on behind them


class NewestBatches:
    """Looks for partitions that grew since the look before, and reads the header of the last batch.

    Growth shows in the count of batches produced since the start of the broker: a log that is
    opened has batches of former runs, which are not new. An append pays nothing. Of several
    producers that write to a partition the last one counts, so each is seen in one of some looks.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._produced: dict[Partition, int] = {}  # batches at the look before; 0 where missing
        self._begin = 0

    def begin(self) -> None:
        """Leave out what was written before."""
        self._produced = {
            one: one.traffic.produced_batches for one in self._partitions if _is_counted(one)
        }

    def look(self) -> list[tuple[str, WallMs]]:
        """Return the partitions that grew, with the highest timestamp of their last batch."""
        found = []
        for partition in islice(self._grown(), PARTITIONS_MAX):
            try:
                timestamp = partition.log.last_timestamp()
            except (OSError, CorruptBatch):
                continue  # whoever reads the log next reports it
            found.append((partition.name, timestamp))
        return found

    def _grown(self) -> Iterator[Partition]:
        partitions = list(self._partitions)
        known = self._produced
        self._produced = {one: known[one] for one in partitions if one in known}  # none deleted
        begin = self._begin
        for index, partition in enumerate(partitions[begin:] + partitions[:begin], begin):
            if _is_counted(partition):
                count = partition.traffic.produced_batches
                if self._produced.get(partition, 0) != count:
                    self._produced[partition] = count
                    self._begin = (index + 1) % len(partitions)
                    yield partition


def _is_counted(partition: Partition) -> bool:
    """Return whether the records of a partition have times of producers."""
    return partition.is_open and not partition.is_internal

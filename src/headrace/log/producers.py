"""What a partition remembers of idempotent producers, so that a repeated batch is written once.

Per producer id the last five batches are kept, as many as a client has in flight. All of it comes
from batch headers, so that reading a log again rebuilds it. Source: ProducerStateManager (4.3).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.wire.batches import BatchHeader

_BATCHES_KEPT = 5
_SEQUENCES = 1 << 31


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was written before, at `base_offset`."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The batch does not follow the last one of its producer."""

    message: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """A producer with a newer epoch has written."""

    message: str


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[BatchHeader] = field(default_factory=lambda: deque(maxlen=_BATCHES_KEPT))


class Producers:
    """The idempotent producers of one partition."""

    def __init__(self) -> None:
        self._by_id: dict[int, _Producer] = {}

    def check(self, header: BatchHeader) -> Duplicate | OutOfOrder | Fenced | None:
        """Whether a batch may be appended; None when it may."""
        known = self._by_id.get(header.producer_id)
        if header.producer_id < 0 or known is None:
            return None
        told = f"producer {header.producer_id} epoch {header.producer_epoch}"
        if header.producer_epoch < known.epoch:
            return Fenced(f"{told}: epoch {known.epoch} has written already")
        if header.producer_epoch > known.epoch:
            if header.base_sequence == 0:
                return None
            return OutOfOrder(f"{told} must begin at sequence 0, not {header.base_sequence}")
        for batch in known.batches:
            if (batch.base_sequence, batch.record_count) == (
                header.base_sequence,
                header.record_count,
            ):
                return Duplicate(batch.base_offset)
        last = known.batches[-1]
        expected = (last.base_sequence + last.record_count) % _SEQUENCES
        if header.base_sequence == expected:
            return None
        return OutOfOrder(f"{told}: sequence {expected} was expected, not {header.base_sequence}")

    def last_batches(self) -> Iterator[BatchHeader]:
        """The last batch of each producer that is remembered."""
        return (known.batches[-1] for known in self._by_id.values())

    def record(self, header: BatchHeader) -> None:
        """Remember a batch that was appended; `header` has its place in the log."""
        if header.producer_id < 0:
            return
        known = self._by_id.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = self._by_id[header.producer_id] = _Producer(header.producer_epoch)
        known.batches.append(header)

"""What a partition remembers of idempotent producers, so that a repeated batch is written once.

Per producer id the last five batches are kept, as many as a client has in flight. All of it comes
from batch headers: a snapshot and a walk over what follows it rebuild it. Producers that have been
silent for long are forgotten. Source: ProducerStateManager, ProducerStateEntry (4.3).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core.types import WallMs
from headrace.log.snapshots import Entry
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


class _Batch(NamedTuple):
    base_sequence: int
    offset_delta: int
    base_offset: int

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.offset_delta) % _SEQUENCES


@dataclass(slots=True)
class _Producer:
    """What is known of one producer: its epoch, and its last batches."""

    epoch: int
    timestamp: int = -1
    is_active: bool = False  # it has written since the last look at who is silent
    silent_since: int = -1
    batches: deque[_Batch] = field(default_factory=lambda: deque(maxlen=_BATCHES_KEPT))


class Producers:
    """The idempotent producers of one partition."""

    def __init__(self) -> None:
        self._by_id: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def highest_id(self, limit: int) -> int:
        """Return the highest producer id below `limit` that is remembered, -1 without any."""
        return max((one for one in self._by_id if one < limit), default=-1)

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
        # The same first and last sequence; the deltas say the latter, as sequences wrap.
        for batch in known.batches:
            if batch[:2] == (header.base_sequence, header.last_offset_delta):
                return Duplicate(batch.base_offset)
        expected = (known.batches[-1].last_sequence + 1) % _SEQUENCES
        if header.base_sequence == expected:
            return None
        return OutOfOrder(f"{told}: sequence {expected} was expected, not {header.base_sequence}")

    def record(self, header: BatchHeader, base_offset: int, *, is_live: bool = False) -> None:
        """Remember a batch that stands at `base_offset`.

        Args:
            is_live: it was appended just now, whatever its timestamps say.
        """
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        known = self._by_id.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            known = self._by_id[header.producer_id] = _Producer(header.producer_epoch)
        known.timestamp, known.is_active = header.max_timestamp, is_live
        known.batches.append(_Batch(header.base_sequence, header.last_offset_delta, base_offset))

    def expire(self, now: WallMs, expiration_ms: int, latest: WallMs | None = None) -> int:
        """Forget producers that are silent for so long.

        Clocks of producers may be wrong, and a clock that was wrong before the start is not known
        to be. One that wrote since the last look is silent from now on. Of one in the log only the
        timestamp is known: its age is that by `now` or by the newest producer, whichever is less.

        Args:
            now: the earliest that the time may be; producers are silent until then.
            latest: the latest that it may be; they are silent from then on. `now` without doubt.

        Returns: how many were forgotten.
        """
        latest = now if latest is None else latest
        newest = max((known.timestamp for known in self._by_id.values()), default=-1)
        old = []
        for producer_id, known in self._by_id.items():
            if known.is_active:
                known.silent_since, known.is_active = latest, False
            elif known.silent_since < 0:
                known.silent_since = latest - (newest - known.timestamp)
            known.silent_since = min(known.silent_since, latest)
            if now - max(known.timestamp, known.silent_since) >= expiration_ms:
                old.append(producer_id)
        for producer_id in old:
            del self._by_id[producer_id]
        return len(old)

    def entries(self) -> Iterator[Entry]:
        """Everything, for a snapshot."""
        for producer_id, known in self._by_id.items():
            for batch in known.batches:
                last_offset = batch.base_offset + batch.offset_delta
                yield Entry(
                    producer_id, known.epoch, batch.last_sequence, last_offset, batch.offset_delta,
                    known.timestamp,
                )  # fmt: skip

    def restore(self, entries: Iterable[Entry]) -> None:
        """Remember what a snapshot does."""
        for one in entries:
            known = self._by_id.get(one.producer_id)
            if known is None or known.epoch != one.epoch:
                known = self._by_id[one.producer_id] = _Producer(one.epoch)
            known.timestamp = one.timestamp
            first = (one.last_sequence - one.offset_delta) % _SEQUENCES
            known.batches.append(
                _Batch(first, one.offset_delta, one.last_offset - one.offset_delta)
            )

"""What a partition remembers of idempotent producers, so that a repeated batch is written once.

Per producer id the last five batches are kept, as many as a client has in flight. All of it comes
from batch headers: a snapshot and a walk over what follows it rebuild it. Producers that have been
silent for long are forgotten.

Clients choose producer ids, and every producer that starts has a new one. So a `ProducerLimit`
bounds how many the partitions of a broker remember together, which bounds memory, and the time of
what looks at all producers of a partition. From half of it on producers are forgotten once they
have been silent for longer than clients repeat a batch. At the limit only producers that are
remembered may write; of those in a log that is opened the latest are remembered.

Hot path: `check` and `record` are run for every batch; bench/requests.py. What is remembered of a
producer is one immutable tuple of some 350 bytes, so that `remembered` costs a copy of a dict.
Source: ProducerStateManager, ProducerStateEntry (4.3).
"""

import logging
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.core.types import WallMs
from headrace.log.snapshots import Entry
from headrace.wire.batches import BatchHeader

log = logging.getLogger("headrace.log")

_SEQUENCES = 1 << 31
_BATCH = struct.Struct(">iiq")  # base sequence, last offset delta, base offset
_OLDER_BYTES_MAX = 4 * _BATCH.size  # of the batches before the newest one
_SILENT_MS = 600_000  # twice the time that librdkafka repeats a batch for by default
_PORTION = 4_000
_UNLIMITED = 1 << 62
# Since when a producer is silent, where that is no time yet.
_UNKNOWN = -1
_ACTIVE = -2  # it has written since the last look at who is silent


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


@dataclass(frozen=True, slots=True)
class TooMany:
    """The producer is new, and as many are remembered as may be."""

    message: str


class ProducerLimit:
    """Most producers that the partitions of a broker remember together.

    Args:
        producers_max: how many; a producer counts once for each partition that it wrote to.

    Logs may be opened in threads.
    """

    def __init__(self, producers_max: int = _UNLIMITED) -> None:
        self.producers_max = producers_max
        self.count = 0
        self.refused = 0  # batches
        self._is_reported = False
        self._counting = threading.Lock()

    @property
    def is_scarce(self) -> bool:
        """Whether half of the producers are remembered."""
        return self.count > self.producers_max // 2

    def add(self, count: int) -> None:
        """Count producers that are remembered from now on, or forgotten where it is negative."""
        with self._counting:
            self.count += count
        if self.count < self.producers_max:
            self._is_reported = False

    def add_most(self, count: int) -> int:
        """Count as many of `count` producers as there is room for; return how many."""
        with self._counting:
            added = min(count, max(self.producers_max - self.count, 0))
            self.count += added
        return added

    def refuse(self) -> TooMany:
        """Refuse a batch of a new producer; the first one is logged."""
        self.refused += 1
        problem = f"{self.count} idempotent producers are remembered (headrace.max.producers)"
        if not self._is_reported:
            self._is_reported = True
            log.warning(
                "%s: batches of new ones are refused until others have been silent for %d minutes;"
                " raise the setting, or let clients reuse their producers",
                problem, _SILENT_MS // 60_000,
            )  # fmt: skip
        return TooMany(f"{problem}: reuse producers, or wait until silent ones are forgotten")


class _Producer(NamedTuple):
    """What is known of one producer; never changed, but replaced."""

    epoch: int
    timestamp: int
    silent_since: int
    batches: bytes  # the last ones, each as `_BATCH`

    @property
    def last_sequence(self) -> int:
        first, delta, _ = _BATCH.unpack_from(self.batches, len(self.batches) - _BATCH.size)
        return int(first + delta) % _SEQUENCES

    @property
    def last_offset(self) -> int:
        _, delta, offset = _BATCH.unpack_from(self.batches, len(self.batches) - _BATCH.size)
        return int(offset + delta)


class Remembered:
    """The producers of a partition as they were at one moment."""

    def __init__(self, by_id: Mapping[int, _Producer]) -> None:
        self._by_id = by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def last_offset(self, producer_id: int) -> int | None:
        """Return the last offset that a producer wrote, None when it is unknown."""
        known = self._by_id.get(producer_id)
        return None if known is None else known.last_offset

    def last_entries(self) -> Iterator[Entry]:
        """Return the last batch of each producer."""
        for producer_id, known in self._by_id.items():
            yield next(_entries(producer_id, known, len(known.batches) - _BATCH.size))

    def entries(self) -> Iterator[Entry]:
        """Return everything, for a snapshot."""
        for producer_id, known in self._by_id.items():
            yield from _entries(producer_id, known)


def _entries(producer_id: int, known: _Producer, start: int = 0) -> Iterator[Entry]:
    for first, delta, offset in _BATCH.iter_unpack(known.batches[start:]):
        last_sequence = (first + delta) % _SEQUENCES
        yield Entry(producer_id, known.epoch, last_sequence, offset + delta, delta, known.timestamp)


class Producers:
    """The idempotent producers of one partition.

    Args:
        limit: how many may be remembered, counted from `count_in` on.
    """

    def __init__(self, limit: ProducerLimit | None = None) -> None:
        self._limit = ProducerLimit() if limit is None else limit
        self._is_counted = False
        self._by_id: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def count_in(self) -> None:
        """Count the producers in the limit; where they are too many, forget the oldest."""
        self._keep_latest(self._limit.add_most(len(self._by_id)))
        self._is_counted = True

    def release(self) -> None:
        """Forget all producers, because the log is closed or read again."""
        if self._is_counted:
            self._limit.add(-len(self._by_id))
        self._is_counted, self._by_id = False, {}

    def highest_id(self, limit: int) -> int:
        """Return the highest producer id below `limit` that is remembered, -1 without any."""
        return max((one for one in self._by_id if one < limit), default=-1)

    def check(self, header: BatchHeader) -> Duplicate | OutOfOrder | Fenced | TooMany | None:
        """Whether a batch may be appended; None when it may."""
        if header.producer_id < 0:
            return None
        known = self._by_id.get(header.producer_id)
        if known is None:
            limit = self._limit
            return None if limit.count < limit.producers_max else limit.refuse()
        epoch, _, _, kept = known
        first = header.base_sequence
        if header.producer_epoch == epoch:
            last, delta, _ = _BATCH.unpack_from(kept, len(kept) - _BATCH.size)
            expected = (last + delta + 1) % _SEQUENCES
            if first == expected:
                return None
            # The same first and last sequence; the deltas say the latter, as sequences wrap.
            for sequence, delta, offset in _BATCH.iter_unpack(kept):
                if sequence == first and delta == header.last_offset_delta:
                    return Duplicate(offset)
        told = f"producer {header.producer_id} epoch {header.producer_epoch}"
        if header.producer_epoch < epoch:
            return Fenced(f"{told}: epoch {epoch} has written already")
        if header.producer_epoch > epoch:
            if first == 0:
                return None
            return OutOfOrder(f"{told} must begin at sequence 0, not {first}")
        return OutOfOrder(f"{told}: sequence {expected} was expected, not {first}")

    def record(self, header: BatchHeader, base_offset: int, *, is_live: bool = False) -> None:
        """Remember a batch that stands at `base_offset`.

        Args:
            is_live: it was appended just now, whatever its timestamps say.
        """
        if header.producer_id < 0 or header.base_sequence < 0:
            return
        batch = _BATCH.pack(header.base_sequence, header.last_offset_delta, base_offset)
        self._remember(
            header.producer_id, header.producer_epoch, header.max_timestamp, batch, is_live=is_live
        )

    def _remember(
        self, producer_id: int, epoch: int, timestamp: int, batch: bytes, *, is_live: bool
    ) -> None:
        known = self._by_id.get(producer_id)
        if known is None:
            if self._is_counted:
                self._limit.add(1)
            elif len(self._by_id) >= 2 * self._limit.producers_max:
                self._keep_latest(self._limit.producers_max)
        elif known.epoch == epoch:
            batch = known.batches[-_OLDER_BYTES_MAX:] + batch
        silent_since = _ACTIVE if is_live else _UNKNOWN
        fields = (epoch, timestamp, silent_since, batch)
        self._by_id[producer_id] = tuple.__new__(_Producer, fields)  # its own is in Python

    def _keep_latest(self, count: int) -> None:
        if len(self._by_id) <= count:
            return
        ends = sorted(known.last_offset for known in self._by_id.values())
        oldest = ends[-count] if count else ends[-1] + 1
        by_id = self._by_id.items()
        self._by_id = {one: known for one, known in by_id if known.last_offset >= oldest}

    def expire(self, now: WallMs, expiration_ms: int, latest: WallMs | None = None) -> int:
        """Forget producers that are silent for so long, as `expiring`; return how many."""
        before = len(self._by_id)
        for _ in self.expiring(now, expiration_ms, latest):
            pass
        return before - len(self._by_id)

    def expiring(
        self, now: WallMs, expiration_ms: int, latest: WallMs | None = None
    ) -> Iterator[None]:
        """Forget producers that are silent for so long, some in each step.

        Clocks of producers may be wrong, and the clock of the machine may have been set between two
        batches. So a producer that wrote since the last look is silent from now on, and so is one
        that the log had when it was opened. Only where many are remembered, the latter is silent
        for as long as its timestamp is behind that of the newest producer.

        Args:
            now: the earliest that the time may be; producers are silent until then.
            latest: the latest that it may be; they are silent from then on. `now` without doubt.
        """
        latest = now if latest is None else latest
        newest = -1  # no producer is older
        if self._limit.is_scarce:
            expiration_ms = min(expiration_ms, _SILENT_MS)
            newest = max((known.timestamp for known in self._by_id.values()), default=-1)
        ids = list(self._by_id)
        for start in range(0, len(ids), _PORTION):
            if len(ids) > _PORTION:
                yield
            for producer_id in ids[start : start + _PORTION]:
                known = self._by_id.get(producer_id)
                if known is not None:
                    self._look(producer_id, known, now, expiration_ms, latest, newest)

    def _look(
        self,
        producer_id: int,
        known: _Producer,
        now: WallMs,
        expiration_ms: int,
        latest: WallMs,
        newest: int,
    ) -> None:
        since = known.silent_since
        if since == _ACTIVE:
            since = latest
        elif since == _UNKNOWN:
            since = latest - max(newest - known.timestamp, 0)
        since = min(since, latest)
        if now - max(known.timestamp, since) >= expiration_ms:
            del self._by_id[producer_id]
            if self._is_counted:
                self._limit.add(-1)
        elif since != known.silent_since:
            self._by_id[producer_id] = _Producer(known.epoch, known.timestamp, since, known.batches)

    def remembered(self) -> Remembered:
        """Return the producers as they are now, whatever is recorded later."""
        return Remembered(self._by_id.copy())

    def entries(self) -> Iterator[Entry]:
        """Everything, for a snapshot."""
        return Remembered(self._by_id).entries()

    def restore(self, entries: Iterable[Entry]) -> None:
        """Remember what a snapshot does."""
        for one in entries:
            first = (one.last_sequence - one.offset_delta) % _SEQUENCES
            batch = _BATCH.pack(first, one.offset_delta, one.last_offset - one.offset_delta)
            self._remember(one.producer_id, one.epoch, one.timestamp, batch, is_live=False)

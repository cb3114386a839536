"""Check records and positions as a Kafka test of Jepsen does: lost, duplicate, reordered, stale.

The auditor keeps every value that a producer sent, every offset that a response acknowledged, and
every record that any reader received. Values are unique, so that a value at two offsets is a
duplicate and an unknown value is a phantom; key, timestamp and headers of a value are those that
were sent, and a look-up by time finds the first record that is as late. The auditor shares no code
with the broker. A response counts from the moment at which it leaves the broker, whether or not it
arrives.

After a power cut without `fsync` the end of a log may be lost. `power_was_cut` opens that window:
the first end that the next broker reports is the new end, and no record below it may differ. What
lies above the end at the start of a broker is lost even if no response shows it: records that are
never acknowledged may take its offsets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random

from headrace.sim.facts import START, Asked, Mark, Moment, Place

EVERYTHING = 1 << 62
Sent = tuple[str, int]  # the stream of a producer, and the number of the value within it


@dataclass(slots=True)
class _Partition:
    """What is known of one partition.

    Attributes:
        sent: stream, number and key of every value that a producer sent.
        marks: timestamp and headers of every value.
        deleted_with: timestamp and headers of the tombstone of an offset.
        stood: value and key of every offset that a response contained.
        at: offset of every value, the other way round.
        acknowledged: when the acknowledgement of an offset left the broker.
        end: highest log end that a response implies, and when it left.
        start: highest log start that a response contained, and when it left.
        cut: offset up to which an actor requested deletion.
        is_compacted: whether older records of a key may go.
        tombstones_us: how long after it was sent a tombstone stays at least.
        newest: highest known offset of every key.
        tombstones: how many tombstones of every key a producer sent whose offsets are not known.
        deleted_at: when a producer first sent the tombstone of an offset, in us.
        may_be_shorter: whether a power cut may have taken the end of the log.
        synced_us: when the first record was stored that power cuts since the start may have taken.
    """

    sent: dict[bytes | None, tuple[str, int, bytes | None]] = field(default_factory=dict)
    marks: dict[bytes, Mark] = field(default_factory=dict)
    deleted_with: dict[int, Mark] = field(default_factory=dict)
    stood: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    at: dict[bytes, int] = field(default_factory=dict)
    acknowledged: dict[int, Moment] = field(default_factory=dict)
    newest: dict[bytes, int] = field(default_factory=dict)
    tombstones: dict[bytes, int] = field(default_factory=dict)
    deleted_at: dict[int, int] = field(default_factory=dict)
    end: int = 0
    end_at: Moment = START
    start: int = 0
    start_at: Moment = START
    cut: int = 0
    is_compacted: bool = False
    tombstones_us: int = 0
    may_be_shorter: bool = False
    synced_us: int = EVERYTHING


class RecordAuditor:
    """Promises about the records of all partitions.

    Args:
        now: returns the moment of a response that leaves the broker.
        broken: called with each promise that the broker broke.
    """

    def __init__(self, now: Callable[[], Moment], broken: Callable[[str], None]) -> None:
        self._now = now
        self._broken = broken
        self._by_place: dict[Place, _Partition] = {}
        self.retention_ms: int | None = None

    def _of(self, place: Place) -> _Partition:
        found = self._by_place.get(place)
        if found is None:
            found = self._by_place[place] = _Partition()
        return found

    def compacts(self, place: Place, tombstones_ms: int) -> None:
        """Allow older records of a key to go, and tombstones after a time."""
        one = self._of(place)
        one.is_compacted, one.tombstones_us = True, tombstones_ms * 1000

    def clock_was_set(self) -> None:
        """The wall clock jumps: tombstones may be due at any time."""
        for one in self._by_place.values():
            one.tombstones_us = 0

    def forget(self, place: Place) -> None:
        """A topic is deleted: a later one of its name begins empty."""
        self._by_place.pop(place, None)

    def deleting(self, place: Place, before: int) -> None:
        """Allow records below an offset to go: an actor requested it, or retention may."""
        one = self._of(place)
        one.cut = max(one.cut, before)

    def deleted(self, place: Place, before: int) -> None:
        """A deletion of records is acknowledged: the start never lies below it again."""
        one = self._of(place)
        if before > one.start:
            one.start, one.start_at = before, self._now()

    def expired(self, place: Place, before: int, retention_us: int) -> None:
        """Retention deleted records below an offset: each has to be old enough.

        Args:
            retention_us: least time since the acknowledgement of a record.
        """
        one = self._of(place)
        for offset in range(one.cut, before):
            at = one.acknowledged.get(offset)
            if at is not None and self._now().us - at.us < retention_us:
                age_s = (self._now().us - at.us) // 1_000_000
                self._broken(f"{_at(place, offset)} expired after {age_s} s")
                break
        self.deleting(place, before)

    def known_end(self, place: Place) -> int:
        """Return the end of a log as far as responses imply it."""
        return self._of(place).end

    def is_kept(self, place: Place, offset: int) -> bool:
        """Return whether a record was acknowledged, and may not be deleted."""
        one = self._of(place)
        return offset in one.acknowledged and offset >= one.cut

    def power_was_cut(self, synced_us: Callable[[Place], int] = lambda _: 0) -> None:
        """Allow the end of every log to be lost: it was not promised to be on the disk.

        Args:
            synced_us: returns the time before which all that was acknowledged was synced.
        """
        for place, one in self._by_place.items():
            one.may_be_shorter = True
            one.start = 0
            one.synced_us = min(one.synced_us, synced_us(place))

    def opened(self, place: Place, end: int) -> None:
        """A broker starts with a log of this end, which a power cut may have moved."""
        one = self._of(place)
        if one.may_be_shorter:
            lost = (offset for offset in one.acknowledged if offset >= max(end, one.cut))
            for offset in lost:
                if one.acknowledged[offset].us < one.synced_us:
                    self._broken(f"{_at(place, offset)} was synced, and the log ends at {end}")
            self._lose(one, end)
            one.synced_us = EVERYTHING

    def quarantined(
        self, place: Place, lost: Iterable[tuple[int, int | None]], begin: int = 0
    ) -> None:
        """A repair reports offsets as lost, first and last of each range; None for the end.

        Args:
            begin: offset at which a log without a known end may begin again.
        """
        one = self._of(place)
        for first, last in lost:
            behind = max(one.end, begin) if last is None else last + 1
            for offset in [n for n in one.stood if first <= n < max(behind, first)]:
                self._drop(one, offset)
            if first <= one.cut:
                one.cut = max(one.cut, behind)
            if last is None:
                one.end = min(one.end, first)

    def starts_lost(self, known: Set[Place] = frozenset()) -> None:
        """A repair reports that deleted records may be there again, save in some logs."""
        for place, one in self._by_place.items():
            if place not in known:
                one.start = 0

    # ---- producers

    def sending(
        self,
        place: Place,
        stream: str,
        first: int,
        pairs: Sequence[tuple[bytes | None, bytes]],
        marks: Sequence[Mark],
    ) -> None:
        """A producer sends records, of which each has a value of its own."""
        one = self._of(place)
        for number, ((key, value), mark) in enumerate(zip(pairs, marks, strict=True), first):
            one.sent[value] = stream, number, key
            one.marks[value] = mark

    def deleting_key(self, place: Place, key: bytes) -> None:
        """A producer sends a tombstone."""
        tombstones = self._of(place).tombstones
        tombstones[key] = tombstones.get(key, 0) + 1

    def refused(self, place: Place, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        """A batch that was sent once is refused: nothing of it may be stored."""
        one = self._of(place)
        for key, value in pairs:
            if value is not None:
                one.sent.pop(value, None)
            elif key is not None:
                one.tombstones[key] -= 1

    def acknowledged(
        self,
        asked: Asked,
        place: Place,
        first: int,
        pairs: Sequence[tuple[bytes | None, bytes | None]],
        marks: Sequence[Mark] = (),
        *,
        again: bool = False,
    ) -> None:
        """A response contains the offset of a batch.

        Args:
            marks: timestamps and headers, of a batch with tombstones.
            again: the batch was acknowledged before.
        """
        one = self._of(place)
        if one.may_be_shorter and not again:
            self._shorten(one, first)
        now = self._now()
        for offset, (key, value) in enumerate(pairs, first):
            self.stood(place, offset, value, key)
            if offset not in one.acknowledged:
                if not again and offset < one.end and asked.follows(one.end_at):
                    self._broken(
                        f"{_at(place, offset)} was acknowledged, and the log ended at {one.end}"
                        " before the request"
                    )
                one.acknowledged[offset] = now
                if value is None and key is not None and not again:
                    one.deleted_at[offset] = asked.at_us
                    if marks:
                        one.deleted_with[offset] = marks[offset - first]
                    one.tombstones[key] -= 1
        self._reaches(one, first + len(pairs))

    # ---- readers

    def stood(
        self, place: Place, offset: int, value: bytes | None, key: bytes | None = None
    ) -> None:
        """A response contains a record."""
        one = self._of(place)
        known = one.stood.get(offset)
        if known is not None:
            if known[0] != value:
                self._broken(f"{_at(place, offset)} was {known[0]!r} and is {value!r}")
            return
        if value is not None:
            if one.sent and value not in one.sent:
                self._broken(f"{_at(place, offset)} has {value!r}, which no producer sent there")
            other = one.at.setdefault(value, offset)
            if other != offset:
                self._broken(f"{value!r} stands twice in {_name(place)}: at {other} and {offset}")
        elif key is not None and key not in one.tombstones:
            self._broken(f"{_at(place, offset)} deletes {key!r}, which no producer requested")
        one.stood[offset] = value, key
        if key is not None and offset > one.newest.get(key, -1):
            one.newest[key] = offset

    def contained(
        self, place: Place, offset: int, value: bytes | None, key: bytes | None, mark: Mark
    ) -> None:
        """A response contains a record with this timestamp and these headers."""
        one = self._of(place)
        if value is not None and value in one.sent and one.sent[value][2] != key:
            self._broken(f"{_at(place, offset)} was sent with {one.sent[value][2]!r}, has {key!r}")
        sent = self._mark(one, offset, value)
        if sent is not None and sent != mark:
            self._broken(f"{_at(place, offset)} was sent with {sent}, and has {mark}")

    def drawn_time(self, place: Place, rng: Random) -> int:
        """Return the time of a record that is known to be stored, or a time just beside it."""
        one = self._of(place)
        offset = rng.choice(list(one.stood) or [-1])
        mark = self._mark(one, offset, one.stood[offset][0]) if offset in one.stood else None
        return max((mark[0] if mark is not None else 0) + rng.randint(-1, 1), 0)

    def looked_up(self, asked: Asked, place: Place, time: int, offset: int, found: int) -> None:
        """A response contains the first record that is as late as `time`.

        Args:
            offset: of the record, -1 for none.
            found: its timestamp.
        """
        one = self._of(place)
        if one.may_be_shorter:
            return
        told = f"from time {time} on {_name(place)} has {offset} of {found} first"
        if offset >= 0 and found < time:
            self._broken(told)
        for known, (value, key) in one.stood.items():
            mark = self._mark(one, known, value)
            if mark is None or known < one.cut:
                continue
            if known == offset and mark[0] != found:
                self._broken(f"{told}, and its time is {mark[0]}")
            is_before = offset < 0 or known < offset
            at = one.acknowledged.get(known)
            is_visible = at is not None and asked.follows(at)
            if mark[0] < time or not is_before or not is_visible:
                continue
            if one.is_compacted and key is not None and self._may_be_gone(one, key, known, value):
                continue
            self._broken(f"{told}, and not {known} of {mark[0]}")

    def _mark(self, one: _Partition, offset: int, value: bytes | None) -> Mark | None:
        return one.deleted_with.get(offset) if value is None else one.marks.get(value)

    def fetched(
        self,
        asked: Asked,
        place: Place,
        position: int,
        *,
        log_start: int,
        high_watermark: int,
        records: Mapping[int, tuple[bytes | None, bytes | None]],
    ) -> None:
        """A response to Fetch contains records (value and key by offset) from `position` on."""
        one = self._of(place)
        self.saw_end(asked, place, high_watermark)
        self._saw_start(asked, place, log_start)
        before = -1
        for offset, (value, key) in records.items():
            if offset <= before:
                self._broken(f"{_at(place, offset)} was sent after {before}")
            before = offset
            self.stood(place, offset, value, key)
        if before >= high_watermark:
            self._broken(f"{_at(place, before)} was sent, the high watermark is {high_watermark}")
        last = max(records, default=-1)
        self._nothing_skipped(one, place, max(position, log_start), last, records)

    def _nothing_skipped(
        self,
        one: _Partition,
        place: Place,
        first: int,
        last: int,
        records: Mapping[int, tuple[bytes | None, bytes | None]],
    ) -> None:
        """Report acknowledged records between two offsets that a reader did not receive."""
        # A damaged offset may be far beyond the end.
        for offset in range(first, min(last + 1, one.end)):
            if offset in records or offset not in one.stood or offset < one.cut:
                continue
            value, key = one.stood[offset]
            if one.is_compacted and key is not None and self._may_be_gone(one, key, offset, value):
                continue
            self._broken(f"{_at(place, offset)} was skipped by a reader")

    def saw_end(self, asked: Asked, place: Place, end: int) -> None:
        """A response contains the end of a log."""
        one = self._of(place)
        if one.may_be_shorter:
            self._shorten(one, end)
        if end < one.end and asked.follows(one.end_at):
            self._broken(f"the end of {_name(place)} was {one.end} and is {end}")
        self._reaches(one, end)

    def _saw_start(self, asked: Asked, place: Place, start: int) -> None:
        one = self._of(place)
        if start < one.start and asked.follows(one.start_at) and not one.may_be_shorter:
            self._broken(f"the start of {_name(place)} was {one.start} and is {start}")
        if start > one.cut:
            self._broken(f"{_name(place)} begins at {start}, and nothing above {one.cut} may go")
        if start > one.start:
            one.start, one.start_at = start, self._now()

    def _reaches(self, one: _Partition, end: int) -> None:
        if end > one.end:
            one.end, one.end_at = end, self._now()

    def _shorten(self, one: _Partition, end: int) -> None:
        one.may_be_shorter = False
        one.end = min(one.end, end)
        self._lose(one, end)

    def _lose(self, one: _Partition, end: int) -> None:
        for offset in [offset for offset in one.stood if offset >= end]:
            self._drop(one, offset)
        one.newest = {}
        for offset, (_, key) in one.stood.items():
            if key is not None:
                one.newest[key] = max(offset, one.newest.get(key, -1))

    def _drop(self, one: _Partition, offset: int) -> None:
        """Forget a record that may be lost, or come back: its producer may send it again."""
        value, key = one.stood.pop(offset)
        one.acknowledged.pop(offset, None)
        if value is not None:
            one.at.pop(value, None)
        elif key is not None:
            one.deleted_at.pop(offset, None)
            one.deleted_with.pop(offset, None)
            one.tombstones[key] = one.tombstones.get(key, 0) + 1

    # ---- the end

    def ended(
        self, place: Place, log_start: int, records: Mapping[int, tuple[bytes | None, bytes | None]]
    ) -> None:
        """All is quiet, and the whole log was read: nothing may be missing or out of order."""
        one = self._of(place)
        for offset in sorted(one.acknowledged):
            value, key = one.stood[offset]
            if offset in records or offset < min(log_start, one.cut):
                continue
            if one.is_compacted and key is not None and self._may_be_gone(one, key, offset, value):
                continue
            self._broken(f"{_at(place, offset)} was acknowledged and is lost")
        last: dict[str, tuple[int, int]] = {}
        for offset, (value, _) in records.items():
            if value not in one.sent:
                continue
            stream, number, _ = one.sent[value]
            before, where = last.get(stream, (-1, -1))
            if number <= before:
                self._broken(
                    f"{_name(place)}: number {number} of {stream} stands at {offset}, behind"
                    f" {before} at {where}"
                )
            last[stream] = number, offset

    def _may_be_gone(self, one: _Partition, key: bytes, offset: int, value: bytes | None) -> bool:
        """Return whether compaction may have removed a record.

        A later record of its key may have an offset that no response contained yet.
        """
        if one.newest[key] > offset or one.tombstones.get(key, 0):
            return True
        if value is None:
            sent_us = one.deleted_at.get(offset)
            if sent_us is None or self._now().us - sent_us >= one.tombstones_us:
                return True
        return any(
            known == key and other not in one.at for other, (_, _, known) in one.sent.items()
        )


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _at(place: Place, offset: int) -> str:
    return f"record {_name(place)}@{offset}"

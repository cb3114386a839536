"""Events of a share-partition as runs to be laid, as many as possible in one go."""

from headrace.core.runs import Piece, Runs, State, Status
from headrace.core.share_words import DELAYED, Acquired, Delayed, Hold, Replayed, Settled
from headrace.core.types import MemberId

_Plain = tuple[State, int, str | None, MemberId | None]


class Laying:
    """Collects runs that follow each other; `done` lays them, as does one that goes back."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._pieces: list[Piece] = []
        self._end = runs.end  # once the pieces are laid
        self._last = -1  # of the pieces
        self._made_of: tuple[object, ...] | None = None
        self._made = _NONE  # what the latest acquisition became
        self._settled: dict[_Plain, Status] = {}

    def done(self) -> None:
        """Lay what was collected."""
        if self._pieces:
            self._runs.lay_all(self._pieces)
            self._pieces = []
            self._made_of = None
            self._settled.clear()  # statuses that nothing is in any more are not known any more
            self._last = -1

    def settled(self, event: Settled) -> None:
        """The span left the hands of its holder."""
        _, span, state, deliveries, reason, hold = event
        first, last = span.first, span.last
        if deliveries > 1 and state is State.AVAILABLE:
            was = self._was(first)
            lot = was.lot if was is not None else None
            self._add(first, last, self._runs.status(state, deliveries, reason=reason, lot=lot))
            return
        plain = (state, deliveries, reason, None if reason is None else _holder(hold))
        status = self._settled.get(plain)
        if status is None or not self._last < first < self._end or last >= self._end:
            self._add(first, last, self._plain(plain))
        else:
            self._pieces.append((first, last, status))
            self._last = last

    def replayed(self, event: Replayed) -> None:
        """What the journal says of many spans."""
        kind: tuple[object, ...] | None = None
        for first, last, state, deliveries, reason, hold in event.ranges:
            if kind != (state, deliveries, reason, hold):  # most are as the one before
                kind = state, deliveries, reason, hold
                holder = None if reason is None else _holder(hold)
                status = self._plain((state, deliveries, reason, holder))
                untouched: Status | None = None
            if first < self._end:
                self._add(first, last, status)
                kind = None  # statuses may have been laid, and be others from now on
                continue
            if first > self._end:
                untouched = untouched or self._plain(_UNTOUCHED)
                self._pieces.append((self._end, first - 1, untouched))
            self._pieces.append((first, last, status))
            self._last, self._end = last, last + 1

    def acquired(self, event: Acquired) -> None:
        """A holder has the spans, which were of one status."""
        spans, made_of = event.spans, event[2:]
        together = len(spans) > 1 and spans.last < self._end
        if together or spans.firsts[0] <= self._last:
            self.done()
        if made_of != self._made_of or event.stored is None:
            self._made_of = made_of
            self._made = self._lock(event)
        if together:
            self._runs.lay_alike(spans, self._made)
        else:
            for first, last in spans:
                self._add(first, last, self._made)

    def delayed(self, event: Delayed) -> None:
        """Records of one status, which nobody holds, are withheld, or are no longer."""
        _, span, until = event
        was = self._was(span.first)
        assert was is not None, f"{span} is not in flight"
        count, lot = was.deliveries, was.lot
        if until is None:
            status = self._runs.status(State.AVAILABLE, count, lot=lot)
        else:
            status = self._runs.status(State.ACQUIRED, count, DELAYED, until, count, lot=lot)
        self._add(span.first, span.last, status)

    def _lock(self, event: Acquired) -> Status:
        stored, since = event.stored, event.since
        if stored is None:
            was = self._was(event.spans.firsts[0])
            stored = was.deliveries if was is not None else 0
            if was is not None and was.state is State.ACQUIRED:
                stored, since = was.stored, was.since if since is None else since
        return self._runs.status(
            State.ACQUIRED, event.deliveries, event.holder, event.deadline, stored, None, event.lot,
            since,
        )  # fmt: skip

    def _plain(self, key: _Plain) -> Status:
        status = self._settled.get(key)
        if status is None:
            state, deliveries, reason, holder = key
            status = self._runs.status(state, deliveries, holder, reason=reason)
            self._settled[key] = status
        return status

    def _was(self, first: int) -> Status | None:
        if first <= self._last:
            self.done()
        return self._runs.at(first)

    def _add(self, first: int, last: int, status: Status) -> None:
        if first <= self._last:
            self.done()
            status = self._runs.status(*status.key)
        if first > self._end:
            # In recovery what lies before a known span was acquired and forgotten: never delivered.
            self._pieces.append((self._end, first - 1, self._plain(_UNTOUCHED)))
        self._pieces.append((first, last, status))
        self._last = last
        if last >= self._end:
            self._end = last + 1


def _holder(hold: Hold | None) -> MemberId | None:
    """Who had them last: it stays known of archived records, which alone have a reason."""
    return None if hold is None else hold.holder


_NONE = Status(State.ACQUIRED)
_UNTOUCHED: _Plain = (State.AVAILABLE, 0, None, None)

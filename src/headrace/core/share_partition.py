"""One share-partition: which records are in flight, with whom, how often delivered. KIP-932.

Theory of operation. Records below SPSO (`start`) are finished, records from SPEO (`end`, exclusive)
on are untouched; `runs` tile what lies between. An acquisition moves AVAILABLE records, and new
ones at the end, to ACQUIRED with one delivery more; accept, reject, release and the acquisition
lock's end settle them; SPSO follows the finished head. Acquisitions and renewals are volatile:
a process that dies forgets its locks. Everything else is an event for the journal.

A record on its way to a dead-letter topic is ARCHIVING, and holds SPSO back, until its copy is
durable: so it is never in neither place (design §8).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import assert_never

from headrace.core.errors import Refused, Why
from headrace.core.laying import Laying
from headrace.core.redelivery import shrinks_from, shrunk
from headrace.core.runs import Piece, Runs, State, Status
from headrace.core.settling import Settling, released
from headrace.core.share_words import (
    NO_RECORD,
    PORTION_RUNS,
    Acknowledge,
    Acquire,
    Acquired,
    Advanced,
    Command,
    DeadLettered,
    Delayed,
    Ended,
    Event,
    Hold,
    Leaving,
    LogStartMoved,
    Policy,
    Reclaim,
    ReleaseHeld,
    Replayed,
    Settled,
    ShareKey,
    Started,
    Verdict,
)
from headrace.core.spans import Alike, Each, Spans, grouped, one_by_one
from headrace.core.types import MemberId, MonoMs, Now, Span, WallMs, after

_ENOUGH_RUNS_MAX = 10_000  # that are kept for who asks again: a megabyte
_NEVER = 1 << 15  # more deliveries than can be counted


class SharePartition:
    """The state machine of one share-partition."""

    def __init__(self, key: ShareKey, start: int, state_epoch: int = 0) -> None:
        self.key = key
        self.state_epoch = state_epoch
        self.runs = Runs(start)
        self.leaving: frozenset[MemberId] = frozenset()  # whose records are being released
        # What was asked last, and told.
        self._enough: tuple[int, int, Sequence[Alike[Status]]] | None = None

    @property
    def start(self) -> int:
        """SPSO: every record below it is finished."""
        return self.runs.start

    @property
    def end(self) -> int:
        """SPEO, exclusive: no record from here on was ever acquired."""
        return self.runs.end

    @property
    def unfinished(self) -> int:
        """Records in flight that are neither acknowledged nor archived: what the window bounds."""
        records = self.runs.records
        return records[State.AVAILABLE] + records[State.ACQUIRED] + records[State.ARCHIVING]

    @property
    def finished(self) -> int:
        """Finished records inside the window (DeliveryCompleteCount of KIP-1226)."""
        return self.runs.records[State.ACKNOWLEDGED] + self.runs.records[State.ARCHIVED]

    def next_fetch_offset(self) -> int:
        """Where a reader looks first: the first AVAILABLE record, or SPEO."""
        first = next(self.runs.available(self.start, 1), None)
        return self.end if first is None else first[0].firsts[0]

    def enough(self, offset: int, records: int) -> Sequence[Alike[Status]]:
        """AVAILABLE runs, the first of which holds or follows `offset`, until they are `records`.

        Who asks again before anything changed, also from further on, is told without a look.
        """
        if self._enough is not None:
            begin, asked, told = self._enough
            head = told[0][1].firsts[0] if told else self.end
            if asked == records and begin <= offset <= head:
                return told
        found = grouped(self.runs.available(offset, records))
        runs = sum([len(spans) for _, spans in found])
        self._enough = (offset, records, found) if runs <= _ENOUGH_RUNS_MAX else None
        return found

    def next_deadline(self) -> MonoMs | None:
        """When the next acquisition lock ends; in the past while more than a portion has ended."""
        return MonoMs(0) if self.leaving else self.runs.next_deadline()

    def decide(self, command: Command, now: Now, policy: Policy) -> list[Event] | Refused:
        """The events that `command` makes true, or why not. Changes nothing."""
        match command:
            case Acquire():
                return self._acquire(command, now, policy)
            case Acknowledge():
                return self._acknowledge(command, after(now.mono, policy.lock_ms), policy)
            case ReleaseHeld(holder, runs_max):
                held = self.runs.of(self.runs.held_by(holder))
                left = Settling(self.key, policy, Ended.MEMBER_LEFT)
                events = released(islice(held, runs_max), left)
                return [*events, Leaving(self.key, holder)] if next(held, None) else events
            case Reclaim():
                return self._reclaim(command, after(now.mono, policy.lock_ms), now.wall)
            case DeadLettered():
                return self._dead_lettered(command)
            case LogStartMoved(start, runs_max):
                if start <= self.start:
                    return []
                return [Advanced(self.key, self.runs.reach(self.start, start - 1, runs_max) + 1)]
            case _:
                assert_never(command)

    def expired(self, now: Now, policy: Policy, runs_max: int = PORTION_RUNS) -> list[Event]:
        """Release records whose acquisition lock, or whose holder's session, has ended.

        At most `runs_max` runs of them; where there are more, `next_deadline` stays in the past.
        """
        due = self.next_deadline()
        if due is None or due > now.mono:
            return []
        left = [one for holder in self.leaving for one in self.runs.held_by(holder)]
        events = released(
            islice(self.runs.of(left), runs_max), Settling(self.key, policy, Ended.MEMBER_LEFT)
        )
        overdue = [one for one in self.runs.due(now.mono) if one.holder not in self.leaving]
        expired = Settling(self.key, policy, Ended.LOCK_EXPIRED)
        return events + released(islice(self.runs.of(overdue), runs_max - len(events)), expired)

    def apply(self, event: Event) -> None:
        """The only place where the state changes."""
        self.apply_all((event,))

    def apply_all(self, events: Iterable[Event]) -> None:
        """Apply events in order, those that lay runs one behind the other in one go."""
        self._enough = None
        laying = Laying(self.runs)
        for event in events:
            if isinstance(event, Acquired):  # matching costs twice as much
                laying.acquired(event)
            elif isinstance(event, Settled):
                laying.settled(event)
            elif isinstance(event, Replayed):
                laying.replayed(event)
            elif isinstance(event, Delayed):
                laying.delayed(event)
            else:
                laying.done()
                self._follow_finished_head()
                self._change(event)
                laying = Laying(self.runs)
        laying.done()
        self._follow_finished_head()
        if self.leaving:
            self.leaving = frozenset(one for one in self.leaving if self.runs.held_by(one))

    # ---- decisions

    def _acquire(self, command: Acquire, now: Now, policy: Policy) -> list[Event]:
        gap = command.gap
        events = [] if gap is None else self._without_records(gap)
        if not command.batches or command.holder in self.leaving:
            return events
        key, holder, since = self.key, command.holder, now.wall
        deadline = after(now.mono, policy.lock_ms)
        from_offset, to_offset = command.batches[0].first, command.batches[-1].last
        left = command.records_max
        near = shrinks_from(policy.delivery_limit) if command.isolate else _NEVER
        available, is_cut = self._available(command, min(left, to_offset - from_offset + 1))
        for status, runs in available:
            if left <= 0 or runs.firsts[0] > to_offset:
                break
            stored, count = status.deliveries, status.deliveries + 1
            if stored >= near:
                if left == command.records_max:
                    events += self._suspects(command, runs.firsts[0], to_offset, now, policy)
                return events
            spans = runs.through(to_offset)
            if spans.records > left:  # all but the last of them fit
                first, fit = spans.firsts[-1], spans.ends[-1] - (spans.records - left)
                spans = spans.through(_taken_to(command, first, spans.last, fit - first))
            left -= spans.records
            # Each range that comes near the limit is a lot of its own, and an event.
            lots = [(spans, status.lot)]
            if count == near:
                lots = [(Spans.of(one), Span(*one)) for one in spans]
            for one, lot in lots:
                events.append(Acquired(key, one, count, holder, deadline, lot, stored, since))
        left = 0 if is_cut else left  # what is available comes before what is new
        fresh_from = self.end
        if gap is not None and gap.first <= fresh_from <= gap.last:
            fresh_from = gap.last + 1
        if left > 0 and from_offset <= fresh_from <= to_offset:
            allowance = min(left, command.window - self.unfinished)
            if allowance > 0:
                stop = _taken_to(command, fresh_from, to_offset, allowance)
                fresh = Spans.of((fresh_from, stop))
                events.append(Acquired(key, fresh, 1, holder, deadline, since=since))
        return events

    def _available(self, command: Acquire, records: int) -> tuple[Sequence[Alike[Status]], bool]:
        """Return AVAILABLE runs until they are enough, and whether `runs_max` left some out."""
        offset, runs_max = command.batches[0].first, command.runs_max
        if runs_max is None:
            return self.enough(offset, records), False
        parts, runs = list[Each[Status]](), 0
        for part in self.runs.available(offset, records):
            if runs >= runs_max:
                return grouped(parts), True
            parts.append(part)
            runs += len(part[0])
        return grouped(parts), False

    def _suspects(
        self, command: Acquire, first: int, to_offset: int, now: Now, policy: Policy
    ) -> list[Event]:
        """Acquire what may be given of records that are near the delivery limit."""
        limit, key, holder = policy.delivery_limit, self.key, command.holder
        available = one_by_one(self.runs.available(first))
        given = shrunk(available, to_offset, limit, command.records_max)
        deadline = after(now.mono, policy.lock_ms)
        return [
            Acquired(
                key, Spans.of((one.first, one.last)), one.deliveries + 1, holder, deadline, one.lot,
                since=now.wall,
            )
            for one in given
        ]  # fmt: skip

    def _without_records(self, gap: Span) -> list[Event]:
        """Archive what compaction removed: nobody can be given it, and SPSO must pass it."""
        nobody = Hold(None, None, Ended.NO_RECORD)
        events: list[Event] = [
            Settled(self.key, Span(first, last), State.ARCHIVED, old.deliveries, NO_RECORD, nobody)
            for first, last, old in self.runs.between(gap.first, gap.last)
            if old.state is State.AVAILABLE
        ]
        if gap.first <= self.end <= gap.last:
            beyond = Span(self.end, gap.last)
            events.append(Settled(self.key, beyond, State.ARCHIVED, 0, NO_RECORD, nobody))
        return events

    def _acknowledge(
        self, command: Acknowledge, deadline: MonoMs, policy: Policy
    ) -> list[Event] | Refused:
        events: list[Event] = []
        settle = Settling(self.key, policy, Ended.ACKNOWLEDGED)
        before = -1
        for batch in command.batches:
            span, verdicts = batch.span, batch.verdicts
            if span.first <= before:
                return Refused(
                    Why.NOT_THE_HOLDER if span.first == before else Why.INVALID_REQUEST,
                    f"{span} does not follow {before}",
                )
            before = span.last
            if len(verdicts) not in (1, span.count):
                return Refused(Why.INVALID_REQUEST, f"{len(verdicts)} acknowledge types for {span}")
            if span.last < self.start:
                continue
            held = self.runs.between(span.first, span.last)
            refused = self._not_held(span, held, command.holder)
            if refused is not None:
                return refused
            for first, last, old, verdict in _by_verdict(span, verdicts, held):
                whole = first == span.first and last == span.last
                part = span if whole else Span(first, last)
                if verdict is Verdict.RENEW:
                    count, holder, kept = old.deliveries, command.holder, Spans.of(part)
                    events.append(Acquired(self.key, kept, count, holder, deadline, old.lot))
                else:
                    events.append(settle(part, old, verdict, batch.reason))
        return events

    def _not_held(self, span: Span, held: Sequence[Piece], holder: MemberId) -> Refused | None:
        if self.end == self.start:
            return Refused(Why.NOT_THE_HOLDER, f"{span} is not in flight")
        if span.last >= self.end:
            return Refused(Why.INVALID_REQUEST, f"{span} goes past the last in-flight record")
        for first, last, status in held:
            if status.state is not State.ACQUIRED:
                return Refused(Why.NOT_THE_HOLDER, f"{Span(first, last)} is not acquired")
            if status.holder != holder:
                return Refused(Why.NOT_THE_HOLDER, f"{Span(first, last)} is held by another member")
        return None

    def _dead_lettered(self, command: DeadLettered) -> list[Event]:
        target = command.copied_to
        ended = Ended.NOT_COPIED if target is None else Ended.COPIED
        events: list[Event] = []
        for span in command.spans:
            for first, last, old in self.runs.between(span.first, span.last):
                if old.state is State.ARCHIVING:
                    hold = Hold(old.holder, None, ended, target)
                    part, count, reason = Span(first, last), old.deliveries, old.reason
                    if command.trouble:
                        reason = f"{reason}; no dead letter: {command.trouble}"
                    events.append(Settled(self.key, part, State.ARCHIVED, count, reason, hold))
        return events

    def _reclaim(self, command: Reclaim, deadline: MonoMs, now: WallMs) -> list[Event]:
        span, deliveries, holder = command.span, command.deliveries, command.holder
        events: list[Event] = [
            Acquired(
                self.key, Spans.of((first, last)), deliveries, holder, deadline, old.lot,
                since=None if old.state is State.ACQUIRED else now,
            )
            for first, last, old in self.claimable(span, deliveries, holder)
        ]  # fmt: skip
        if deliveries == 1 and span.last >= self.end:
            beyond = Spans.of((max(self.end, span.first), span.last))
            events.append(Acquired(self.key, beyond, 1, holder, deadline, since=now))
        return events

    def claimable(self, span: Span, deliveries: int, holder: MemberId) -> list[Piece]:
        """The runs of `span` that are `holder`'s on this delivery, locked or (see Reclaim) not."""
        unlocked, locked = (deliveries, deliveries - 1), (holder, deliveries)
        return [
            (first, last, one)
            for first, last, one in self.runs.between(span.first, span.last)
            if (one.state is State.AVAILABLE and one.deliveries in unlocked)
            or (one.state is State.ACQUIRED and (one.holder, one.deliveries) == locked)
        ]

    # ---- changes, called by apply_all only

    def _change(self, event: Started | Advanced | Leaving) -> None:
        match event:
            case Started(_, start, state_epoch):
                self.runs = Runs(start)
                self.leaving = frozenset()
                self.state_epoch = state_epoch
            case Advanced(_, start):
                if start > self.start:
                    self.runs.drop_below(start)
            case Leaving(_, holder):
                self.leaving |= {holder}
            case _:
                assert_never(event)

    def _follow_finished_head(self) -> None:
        start = self.start
        head = self.runs.at(start)
        if head is None or not head.state.finished:
            return
        for _, last, status in self.runs.pieces():
            if not status.state.finished:
                break
            start = last + 1
        self.runs.drop_below(start)


def _taken_to(command: Acquire, first: int, last: int, records_max: int) -> int:
    """The last of `first` to `last` that is acquired where there is room for so many."""
    stop = first + records_max - 1
    if stop >= last:
        return last
    if command.exact:
        return stop
    batches = command.batches
    index = min(bisect_left(batches, stop, key=_last), len(batches) - 1)
    return min(batches[index].last, last)  # to the end of the batch that it is in, or before


def _last(span: Span) -> int:
    return span.last


def _by_verdict(
    span: Span, verdicts: Sequence[Verdict], held: Sequence[Piece]
) -> Iterable[tuple[int, int, Status, Verdict]]:
    """The pieces of `span` in parts of one verdict each."""
    if len(verdicts) == 1:
        return [(first, last, status, verdicts[0]) for first, last, status in held]
    return _cut_by_verdict(span, verdicts, held)


def _cut_by_verdict(
    span: Span, verdicts: Sequence[Verdict], held: Sequence[Piece]
) -> Iterator[tuple[int, int, Status, Verdict]]:
    for begin, last, status in held:
        first, verdict = begin, verdicts[begin - span.first]
        for offset in range(begin + 1, last + 1):
            said = verdicts[offset - span.first]
            if said is not verdict:
                yield first, offset - 1, status, verdict
                first, verdict = offset, said
        yield first, last, status, verdict

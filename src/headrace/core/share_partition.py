"""One share-partition: which records are in flight, with whom, how often delivered. KIP-932.

Theory of operation. Records below SPSO (`start`) are finished, records from SPEO (`end`, exclusive)
on are untouched; `runs` tile what lies between. An acquisition moves AVAILABLE records, and new
ones at the end, to ACQUIRED with one delivery more; accept, reject, release and the acquisition
lock's end settle them; SPSO follows the finished head. Acquisitions and renewals are volatile:
a process that dies forgets its locks. Everything else is an event for the journal.

A record on its way to a dead-letter topic is ARCHIVING, and holds SPSO back, until its copy is
durable: so it is never in neither place (design §8).
"""

from collections.abc import Sequence
from typing import assert_never

from headrace.core.errors import Refused, Why
from headrace.core.runs import Run, Runs, State
from headrace.core.share_words import (
    Acknowledge,
    Acquire,
    Acquired,
    Advanced,
    Command,
    DeadLettered,
    Event,
    LogStartMoved,
    Policy,
    Reclaim,
    ReleaseHeld,
    Settled,
    ShareKey,
    Started,
    Verdict,
)
from headrace.core.types import MemberId, MonoMs, Now, Span, after

_NO_RECORD = "no record at this offset"


class SharePartition:
    """The state machine of one share-partition."""

    def __init__(self, key: ShareKey, start: int, state_epoch: int = 0) -> None:
        self.key = key
        self.state_epoch = state_epoch
        self.runs = Runs(start)

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
        first = next(self.runs.available(self.start), None)
        return self.end if first is None else first.span.first

    def next_deadline(self) -> MonoMs | None:
        """When the next acquisition lock ends."""
        return self.runs.next_deadline()

    def decide(self, command: Command, now: Now, policy: Policy) -> list[Event] | Refused:
        """The events that `command` makes true, or why not. Changes nothing."""
        match command:
            case Acquire():
                return self._acquire(command, after(now.mono, policy.lock_ms))
            case Acknowledge():
                return self._acknowledge(command, after(now.mono, policy.lock_ms), policy)
            case ReleaseHeld(holder):
                return [
                    self.settle(run, Verdict.RELEASE, policy)
                    for run in self.runs
                    if run.state is State.ACQUIRED and run.holder == holder
                ]
            case Reclaim():
                return self._reclaim(command, after(now.mono, policy.lock_ms))
            case DeadLettered(spans):
                return [
                    Settled(self.key, run.span, State.ARCHIVED, run.deliveries, run.reason)
                    for span in spans
                    for run in self._inside(span)
                    if run.state is State.ARCHIVING
                ]
            case LogStartMoved(start):
                return [Advanced(self.key, start)] if start > self.start else []
            case _:
                assert_never(command)

    def expired(self, now: Now, policy: Policy) -> list[Event]:
        """Release every record whose acquisition lock has ended."""
        due = self.next_deadline()
        if due is None or due > now.mono:
            return []
        return [
            self.settle(run, Verdict.RELEASE, policy)
            for run in self.runs
            if run.deadline is not None and run.deadline <= now.mono
        ]

    def apply(self, event: Event) -> None:
        """The only place where the state changes."""
        match event:
            case Started(_, start, state_epoch):
                self.runs = Runs(start)
                self.state_epoch = state_epoch
            case Acquired(_, span, deliveries, holder, deadline):
                self._fill_to(span.first)
                stored = self._stored(span)
                self.runs.put(Run(span, State.ACQUIRED, deliveries, holder, deadline, stored))
            case Settled(_, span, state, deliveries, reason):
                self._fill_to(span.first)
                self.runs.put(Run(span, state, deliveries, reason=reason))
                self._follow_finished_head()
            case Advanced(_, start):
                if start > self.start:
                    self.runs.drop_below(start)
                    self._follow_finished_head()
            case _:
                assert_never(event)

    # ---- decisions

    def _acquire(self, command: Acquire, deadline: MonoMs) -> list[Event]:
        gap = command.gap
        events = [] if gap is None else self._without_records(gap)
        if not command.batches:
            return events
        first, last = command.batches[0].first, command.batches[-1].last
        left = command.records_max

        def take(span: Span, deliveries: int, allowance: int) -> int:
            """Acquire from the head of `span`; returns how many records were taken."""
            count = min(len(span), allowance)
            if count <= 0:
                return 0
            stop = span.first + count - 1
            if not command.exact:
                stop = min(_batch_end(command.batches, stop), span.last)
            taken = Span(span.first, stop)
            events.append(Acquired(self.key, taken, deliveries, command.holder, deadline))
            return len(taken)

        for run in self.runs.available(first):
            if left <= 0 or run.span.first > last:
                break
            span = Span(run.span.first, min(run.span.last, last))
            left -= take(span, run.deliveries + 1, left)
        fresh_from = self.end
        if gap is not None and gap.first <= fresh_from <= gap.last:
            fresh_from = gap.last + 1
        if left > 0 and first <= fresh_from <= last:
            allowance = min(left, command.window - self.unfinished)
            take(Span(fresh_from, last), 1, allowance)
        return events

    def _without_records(self, gap: Span) -> list[Event]:
        """Archive what compaction removed: nobody can be given it, and SPSO must pass it."""
        events: list[Event] = [
            Settled(self.key, run.span, State.ARCHIVED, run.deliveries, _NO_RECORD)
            for run in self._inside(gap)
            if run.state is State.AVAILABLE
        ]
        if gap.first <= self.end <= gap.last:
            beyond = Span(self.end, gap.last)
            events.append(Settled(self.key, beyond, State.ARCHIVED, 0, _NO_RECORD))
        return events

    def _acknowledge(
        self, command: Acknowledge, deadline: MonoMs, policy: Policy
    ) -> list[Event] | Refused:
        events: list[Event] = []
        before = -1
        for batch in command.batches:
            span, verdicts = batch.span, batch.verdicts
            if span.first <= before:
                return Refused(
                    Why.NOT_THE_HOLDER if span.first == before else Why.INVALID_REQUEST,
                    f"{span} does not follow {before}",
                )
            before = span.last
            if len(verdicts) not in (1, len(span)):
                return Refused(Why.INVALID_REQUEST, f"{len(verdicts)} acknowledge types for {span}")
            if span.last < self.start:
                continue
            refused = self._not_held(span, command.holder)
            if refused is not None:
                return refused
            for part, verdict in _by_verdict(span, verdicts, self.start):
                for run in self.runs.within(part):
                    if verdict is Verdict.RENEW:
                        events.append(
                            Acquired(self.key, run.span, run.deliveries, command.holder, deadline)
                        )
                    else:
                        events.append(self.settle(run, verdict, policy, batch.reason))
        return events

    def _not_held(self, span: Span, holder: MemberId) -> Refused | None:
        if self.end == self.start or span.first >= self.end:
            return Refused(Why.NOT_THE_HOLDER, f"{span} is not in flight")
        if span.last >= self.end:
            return Refused(Why.INVALID_REQUEST, f"{span} goes past the last in-flight record")
        for run in self._inside(span):
            if run.state is not State.ACQUIRED:
                return Refused(Why.NOT_THE_HOLDER, f"{run.span} is not acquired")
            if run.holder != holder:
                return Refused(Why.NOT_THE_HOLDER, f"{run.span} is held by another member")
        return None

    def _reclaim(self, command: Reclaim, deadline: MonoMs) -> list[Event]:
        span, deliveries, holder = command.span, command.deliveries, command.holder
        events: list[Event] = [
            Acquired(self.key, run.span, deliveries, holder, deadline)
            for run in self.claimable(span, deliveries, holder)
        ]
        if deliveries == 1 and span.last >= self.end:
            beyond = Span(max(self.end, span.first), span.last)
            events.append(Acquired(self.key, beyond, 1, holder, deadline))
        return events

    def claimable(self, span: Span, deliveries: int, holder: MemberId) -> list[Run]:
        """The runs of `span` that are `holder`'s on this delivery, locked or (see Reclaim) not."""
        unlocked, locked = (deliveries, deliveries - 1), (holder, deliveries)
        return [
            run
            for run in self._inside(span)
            if (run.state is State.AVAILABLE and run.deliveries in unlocked)
            or (run.state is State.ACQUIRED and (run.holder, run.deliveries) == locked)
        ]

    def settle(
        self, run: Run, verdict: Verdict, policy: Policy, reason: str | None = None
    ) -> Settled:
        """What `verdict` makes of a run; the seed's state diagram, row by row."""
        archive = State.ARCHIVING if policy.dead_letters else State.ARCHIVED
        match verdict:
            case Verdict.ACCEPT:
                state, reason = State.ACKNOWLEDGED, None
            case Verdict.GAP:
                state, reason = State.ARCHIVED, _NO_RECORD
            case Verdict.REJECT:
                state, reason = archive, reason or "rejected by the consumer"
            case Verdict.RELEASE if run.deliveries < policy.delivery_limit:
                state, reason = State.AVAILABLE, None
            case Verdict.RELEASE:
                limit = f"delivery count limit {policy.delivery_limit} reached"
                state, reason = archive, f"{limit}: {reason}" if reason else limit
            case _:
                raise AssertionError(f"{verdict} settles nothing")
        return Settled(self.key, run.span, state, run.deliveries, reason)

    def _inside(self, span: Span) -> list[Run]:
        return self.runs.within(span) if span.last >= self.start else []

    # ---- changes, called by apply only

    def _fill_to(self, first: int) -> None:
        """In recovery what lies before a known span was acquired and forgotten: never delivered."""
        if first > self.end:
            self.runs.put(Run(Span(self.end, first - 1), State.AVAILABLE))

    def _stored(self, span: Span) -> int:
        """What the journal knows of the deliveries of a span that is acquired as one."""
        for run in self.runs.within(span):
            return run.stored if run.state is State.ACQUIRED else run.deliveries
        return 0

    def _follow_finished_head(self) -> None:
        start = self.start
        for run in self.runs:
            if not run.state.finished:
                break
            start = run.span.last + 1
        if start > self.start:
            self.runs.drop_below(start)


def _batch_end(batches: Sequence[Span], offset: int) -> int:
    """The last offset of the record batch that holds `offset`, or follows it."""
    low, high = 0, len(batches) - 1
    while low < high:
        middle = (low + high) // 2
        if batches[middle].last < offset:
            low = middle + 1
        else:
            high = middle
    return batches[low].last


def _by_verdict(span: Span, verdicts: Sequence[Verdict], start: int) -> list[tuple[Span, Verdict]]:
    """The span as runs of one verdict each, without what lies below `start`."""
    if len(verdicts) == 1:
        return [(Span(max(span.first, start), span.last), verdicts[0])]
    parts: list[tuple[Span, Verdict]] = []
    first = max(span.first, start)
    for offset in range(first + 1, span.last + 2):
        ended = offset > span.last or (
            verdicts[offset - span.first] is not verdicts[first - span.first]
        )
        if ended:
            parts.append((Span(first, offset - 1), verdicts[first - span.first]))
            first = offset
    return parts

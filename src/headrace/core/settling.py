"""What a verdict makes of records: the seed's state diagram, row by row. KIP-932."""

from collections.abc import Iterable

from headrace.core.runs import Piece, State, Status
from headrace.core.share_words import (
    DELAYED,
    NO_RECORD,
    Delayed,
    Ended,
    Event,
    Hold,
    Policy,
    Settled,
    ShareKey,
    Verdict,
)
from headrace.core.types import MemberId, Span

LIMIT_REACHED = "delivery count limit"  # how the reason begins that is given then
_Outcome = tuple[State, str | None, Hold]


class Settling:
    """Settles records of one share-partition; those that are alike are decided once.

    `ended` is why they are settled. `holder` has them where their lock has lapsed.
    """

    def __init__(
        self, key: ShareKey, policy: Policy, ended: Ended, holder: MemberId | None = None
    ) -> None:
        self.key = key
        self._policy = policy
        self._ended = ended
        self._holder = holder
        self._decided: dict[tuple[Status, Verdict, str | None], _Outcome] = {}

    def __call__(
        self, span: Span, status: Status, verdict: Verdict, reason: str | None = None
    ) -> Settled:
        """What `verdict`, for a reason, makes of the records of a span."""
        asked = (status, verdict, reason)
        outcome = self._decided.get(asked)
        if outcome is None:
            state, why = self._outcome(status, verdict, reason)
            hold = Hold(status.holder or self._holder, status.since, self._ended)
            outcome = self._decided[asked] = (state, why, hold)
        return Settled(self.key, span, outcome[0], status.deliveries, outcome[1], outcome[2])

    def _outcome(
        self, status: Status, verdict: Verdict, reason: str | None
    ) -> tuple[State, str | None]:
        limit = self._policy.delivery_limit
        archive = State.ARCHIVING if self._policy.dead_letters else State.ARCHIVED
        match verdict:
            case Verdict.ACCEPT:
                return State.ACKNOWLEDGED, None
            case Verdict.GAP:
                return State.ARCHIVED, NO_RECORD
            case Verdict.REJECT:
                return archive, reason or "rejected by the consumer"
            case Verdict.RELEASE if status.deliveries < limit:
                return State.AVAILABLE, None
            case Verdict.RELEASE:
                reached = f"{LIMIT_REACHED} {limit} reached"
                return archive, f"{reached}: {reason}" if reason else reached
            case _:
                raise AssertionError(f"{verdict} settles nothing")


def released(pieces: Iterable[Piece], settle: Settling) -> list[Event]:
    """The end of locks, and of delays, which charge nobody."""
    key, release = settle.key, Verdict.RELEASE
    return [
        settle(Span(first, last), status, release)
        if status.holder != DELAYED
        else Delayed(key, Span(first, last), None)
        for first, last, status in pieces
    ]

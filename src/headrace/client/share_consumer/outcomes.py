"""What became of verdicts and renewals: counted, told to the user and to the log.

A connection that is lost takes hundreds of records along, whose handlers notice one after the
other; the log is told together what came together.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from headrace.client.errors import BrokerError, ClientError
from headrace.client.share_consumer.parcels import Saying
from headrace.client.share_consumer.records import Acknowledgement, BaseRecord
from headrace.client.share_consumer.words import LockLost, Settings, ShareStats, Verdict

LOG = logging.getLogger(__name__)

FAILURES_MAX = 1_000  # that wait for a commit to tell them
_TOGETHER_S = 0.5
_RANGES_MAX = 10  # of offsets in one line


class Outcomes:
    """The outcomes of one consumer. `failed` is told what ends it, an error of the user's callback.

    `ended` is for the thread of a running event loop.
    """

    def __init__(
        self, settings: Settings, stats: ShareStats, *, failed: Callable[[ClientError], None]
    ) -> None:
        self._settings = settings
        self._stats = stats
        self._failed = failed
        self._failures: deque[tuple[Acknowledgement, ClientError]] = deque(maxlen=FAILURES_MAX)
        self._untold: dict[tuple[str, int, str], list[int]] = {}
        self._is_closed = False

    def ended(self, sayings: Sequence[Saying], error: ClientError | None) -> None:
        """These hold, or have failed for good."""
        known = [one for one in sayings if one.record is not None]
        for one in known:
            self._count(one, error)
            if error is not None and one.answer is not None and one.answer.error is not None:
                self._failures.append((one.answer, error))
        if error is not None:
            self._tell_later([one.record for one in known if one.record and one.answer], error)
        if self._settings.on_acknowledged is not None:
            try:
                for one in known:
                    # Renewals that nobody asked for are told when they fail.
                    if one.answer is not None or one.verdict is not Verdict.RENEW or error:
                        self._settings.on_acknowledged(one.result(error))
            except Exception as raised:
                error = ClientError(f"on_acknowledged raised {raised!r}")
                error.__cause__ = raised
                self._failed(error)

    def unseen(self) -> ClientError | None:
        """The first failure since the last call that nobody has awaited."""
        failures = [error for answer, error in self._failures if not answer.is_observed]
        self._failures.clear()
        return failures[0] if failures else None

    def close(self) -> None:
        """Tell the log at once from now on: the event loop may end any time."""
        self._is_closed = True
        self._tell()

    def _tell(self) -> None:
        """Write a line for each partition and reason."""
        untold, self._untold = self._untold, {}
        for (topic, partition, why), offsets in untold.items():
            LOG.warning(
                "share group %s: %s-%d %s: %s",
                self._settings.group, topic, partition, _ranges(offsets), why,
            )  # fmt: skip

    def _tell_later(self, records: Iterable[BaseRecord], error: ClientError) -> None:
        why = _reason(error)
        for record in records:
            if not self._untold and not self._is_closed:
                asyncio.get_running_loop().call_later(_TOGETHER_S, self._tell)
            self._untold.setdefault((record.topic, record.partition, why), []).append(record.offset)
        if self._is_closed:
            self._tell()

    def _count(self, one: Saying, error: ClientError | None) -> None:
        stats = self._stats
        if error is not None:
            stats.lost += isinstance(error, LockLost) and one.verdict is not Verdict.RENEW
            return
        match one.verdict:
            case Verdict.ACCEPT:
                stats.accepted += 1
            case Verdict.RELEASE:
                stats.released += 1
            case Verdict.REJECT:
                stats.rejected += 1
            case Verdict.RENEW:
                stats.renewed += 1


def _reason(error: ClientError) -> str:
    """What went wrong, without the offsets that it concerns."""
    if isinstance(error, LockLost):
        return f"{error.why}; delivered again unless finished before"
    what = f"{error.name}: {error.message}" if isinstance(error, BrokerError) else str(error)
    return f"the verdict failed, {what}"


def _ranges(offsets: Iterable[int]) -> str:
    """For people: `offset 7`, or `offsets 1 to 4, 7 (5 records)`."""
    found: list[list[int]] = []
    count = 0
    for offset in sorted(set(offsets)):
        count += 1
        if found and found[-1][1] + 1 == offset:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    if count == 1:
        return f"offset {found[0][0]}"
    shown = [f"{first} to {last}" if first < last else f"{first}" for first, last in found]
    more = [f"{len(shown) - _RANGES_MAX} ranges more"] if len(shown) > _RANGES_MAX else []
    return f"offsets {', '.join(shown[:_RANGES_MAX] + more)} ({count} records)"

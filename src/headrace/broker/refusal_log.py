"""Log messages of refused requests: each once a minute, then how many were left out."""

import logging
from dataclasses import dataclass

from headrace.broker.background import Background
from headrace.core.errors import Refused, Why
from headrace.core.types import MonoMs, elapsed_ms
from headrace.log.api import Clock

log = logging.getLogger("headrace.broker")

_PAUSE_MS = 60_000
_KEYS_MAX = 1000
_TEXT_MAX = 300


@dataclass(slots=True)
class _Logged:
    """A refusal that was logged at `at`, and how many like it were left out since."""

    at: MonoMs
    level: int
    left_out: int = 0


class RefusalLog:
    """Logs refusals, throttled by who was refused and why.

    The number of refusals that were left out is logged when their minute is over, and by `close`.
    At most `_KEYS_MAX` reasons are remembered; the oldest is forgotten first.
    """

    def __init__(self, clock: Clock) -> None:
        self.work = Background("refusals that were left out of the log are not counted there")
        self._clock = clock
        self._logged: dict[tuple[str, str, str], _Logged] = {}

    def start(self) -> None:
        """Begin to report what was left out, on the running event loop."""
        self.work.begin(self._report_on())

    async def close(self) -> None:
        """Report what was left out so far, and stop."""
        await self.work.stop()
        while self._logged:
            self._forget(next(iter(self._logged)))

    def log_member(self, group: str, client: str, refused: Refused) -> None:
        """Log a refused request of a member of a group. Malformed requests are warnings.

        A member that is to join again as its group rebalances is not logged: it did nothing wrong.
        """
        if refused.why is Why.REBALANCE_IN_PROGRESS:
            return
        level = logging.WARNING if refused.why is Why.INVALID_REQUEST else logging.INFO
        self.refused(f"group {group}", client, refused.message, level=level)

    def refused(self, subject: str, client: str, reason: str, *, level: int) -> None:
        """Log that a request about `subject` was refused.

        Args:
            subject: object of the message, for example `group billing`.
            client: member or client id with its address.
            reason: the rule, as the response has it.
            level: of `logging`.
        """
        key = subject[:_TEXT_MAX], client, reason[:_TEXT_MAX]
        now = self._clock.mono()
        known = self._logged.get(key)
        if known is not None and elapsed_ms(known.at, now) < _PAUSE_MS:
            known.left_out += 1
            return
        if known is not None:
            self._forget(key)
        if len(self._logged) >= _KEYS_MAX:
            self._forget(next(iter(self._logged)))
        self._logged[key] = _Logged(now, level)
        log.log(level, "%s: refused %s: %s", *key)

    def report(self) -> None:
        """Log how many refusals were left out in minutes that are over."""
        now = self._clock.mono()
        for key, known in list(self._logged.items()):  # oldest first
            if elapsed_ms(known.at, now) < _PAUSE_MS:
                break
            self._forget(key)

    def _forget(self, key: tuple[str, str, str]) -> None:
        known = self._logged.pop(key)
        if known.left_out:
            subject, client, reason = key
            log.log(
                known.level, "%s: refused %s %d more times: %s",
                subject, client, known.left_out, reason,
            )  # fmt: skip

    async def _report_on(self) -> None:
        while await self.work.pause(_PAUSE_MS // 2):
            self.report()

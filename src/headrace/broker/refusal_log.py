"""Log messages of refused requests: each once a minute, with how many were left out since."""

import logging

from headrace.core.errors import Refused, Why
from headrace.core.types import MonoMs
from headrace.log.api import Clock

log = logging.getLogger("headrace.broker")

_PAUSE_MS = 60_000
_KEYS_MAX = 1000
_TEXT_MAX = 300


class RefusalLog:
    """Logs refusals, throttled by who was refused and why.

    At most `_KEYS_MAX` reasons are remembered; the oldest is forgotten first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, ...], tuple[MonoMs, int]] = {}

    def heartbeat(self, group: str, client: str, refused: Refused) -> None:
        """Log a refused heartbeat or join of a group. Malformed requests are warnings."""
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
        key, now = (subject, client, reason), self._clock.mono()
        at, left_out = self._logged.pop(key, (None, 0))
        if at is not None and now - at < _PAUSE_MS:
            self._logged[key] = at, left_out + 1
            return
        if len(self._logged) >= _KEYS_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[key] = now, 0
        more = f" ({left_out} more since the last message)" if left_out else ""
        log.log(level, "%s: refused %s: %s%s", subject, client, reason[:_TEXT_MAX], more)

"""The driver of a lease that is started again, over a scripted connection."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.sim import drivers
from headrace.sim.auditor import Auditor
from headrace.wire import leases as wire

SECOND_US = 1_000_000
PLACE = ("orders", 0)


class Unplugged(Exception):
    """The connection fails for good."""


class Scripted:
    """A connection to a broker where acquisition 1 is outstanding; it fails after the last answer.

    Args:
        opened: called once the session is opened; without it, that answer is the last one.
    """

    def __init__(self, opened: Callable[[], None] | None) -> None:
        self._opened = opened

    async def own(self, call: wire.Call, _: object, let_out: Callable[[object], None]) -> object:
        """Serve a request."""
        if isinstance(call, wire.OpenRequest):
            answer = wire.OpenResponse(0, None, 2, outstanding=(1,))
            let_out(answer)
            if self._opened is not None:
                self._opened()
                return answer
        else:
            let_out(wire.AcquireResponse(0, None, (wire.Range(*PLACE, 0, 1, 1),)))
        raise Unplugged

    def close(self) -> None:
        """Hang up."""


@pytest.mark.parametrize("is_late", [False, True], ids=["before the open", "after the open"])
def test_a_driver_that_is_started_again_may_hold_records_for_less_time(
    is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a session, and to repeat an acquisition, restarts locks with the current setting.

    The auditor expected the longer duration of before (seed 8217641).
    """
    clock = SimpleNamespace(now_us=0)
    auditor = Auditor(lambda: clock.now_us, limit=3, lock_ms=10_000)
    world: Any = SimpleNamespace(
        seed=1,
        auditor=auditor,
        loop=clock,
        options=SimpleNamespace(topic_changes=False),
        history=SimpleNamespace(step=lambda *_: None),
    )

    def shorten() -> None:
        auditor.lock_changes("blue", 1000)
        auditor.lock_lasts("blue", 1000)

    driver = drivers.LeaseDriver(world, "checkpoint", "blue", ("orders",))
    monkeypatch.setattr(drivers, "Connection", lambda *_: Scripted(shorten if is_late else None))
    auditor.delivered(auditor.asked("blue", "lease/checkpoint"), PLACE, [(0, 1, 1)])
    clock.now_us = SECOND_US
    if not is_late:
        shorten()
    with pytest.raises(Unplugged):
        asyncio.run(driver.take())
    clock.now_us = 2 * SECOND_US
    auditor.delivered(auditor.asked("blue", "ann"), PLACE, [(0, 1, 2)])
    assert auditor.failures == []

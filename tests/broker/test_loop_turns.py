"""How connections share the event loop: cheap requests do not wait for all costly ones."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import finalize

import pytest

from headrace.broker.config import Config
from headrace.broker.dispatch import Buffers, Peer, Pending
from headrace.broker.loop_stalls import LoopStalls
from headrace.broker.loop_turns import COSTLY_SECONDS, TURN_SECONDS, InTurns, LoopUse, Turns
from headrace.broker.server import Server
from headrace.broker.services import open_services

from .connection_rig import StubDispatcher, on_a_connection, receive

COSTLY, COSTLY_TASK, CHEAP, CHEAP_TASK = 0, 1, 2, 3  # first bytes of requests
ATTACKERS, PIPELINED, PORTIONS = 40, 10, 5


class Work:
    """A time that moves only while requests are worked on, and the order of the steps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps: list[bool] = []  # whether each one was costly

    def step(self, *, costly: bool) -> None:
        self.seconds += 1.1 * TURN_SECONDS if costly else COSTLY_SECONDS / 10
        self.steps.append(costly)


class WorkingDispatcher(StubDispatcher):
    """Answers COSTLY and CHEAP at once, the others in tasks of PORTIONS steps, or one."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def respond(
        self, frame: bytearray, peer: Peer, before: Sequence[bytearray] = ()
    ) -> Buffers | Pending | Coroutine[Any, Any, Buffers]:  # fmt: skip
        kind = frame[0]
        if kind in {COSTLY_TASK, CHEAP_TASK}:
            return self._portions(frame)
        self._work.step(costly=kind == COSTLY)
        return [frame]

    async def _portions(self, frame: bytearray) -> Buffers:
        for _ in range(PORTIONS if frame[0] == COSTLY_TASK else 1):
            self._work.step(costly=frame[0] == COSTLY_TASK)
            await asyncio.sleep(0)
        return [frame]


def serve(folder: Path, test: Callable[[Server, Work], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        work = Work()
        services = open_services(Config.parse({}), folder, new_id=uuid4)
        try:
            dispatcher: Any = WorkingDispatcher(work)
            await test(
                Server(services, dispatcher, lambda: work.seconds, lambda: work.seconds), work
            )
        finally:
            await services.close()

    asyncio.run(run())


async def rest(turns: int = 50) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.mark.parametrize("attack", [COSTLY, COSTLY_TASK])
@pytest.mark.parametrize("request_", [CHEAP, CHEAP_TASK])
def test_a_cheap_request_does_not_wait_for_all_costly_ones(
    tmp_path: Path, attack: int, request_: int
) -> None:
    async def test(server: Server, work: Work) -> None:
        polite, written = on_a_connection(server)
        for _ in range(20):  # its requests are known to be cheap
            receive(polite, CHEAP)
            await rest(2)
        attackers = [on_a_connection(server) for _ in range(ATTACKERS)]
        for attacker, _ in attackers:
            receive(attacker, *[attack] * PIPELINED)
        for _ in range(10):
            await rest(3)
            answered, begun = len(written.written), len(work.steps)
            receive(polite, request_)
            while len(written.written) == answered:  # noqa: ASYNC110  # turn by turn
                await asyncio.sleep(0)
            assert sum(work.steps[begun:]) <= 4  # of turns, each with one costly step
        await rest(ATTACKERS * PIPELINED * PORTIONS * 4)
        assert all(len(transport.written) == PIPELINED for _, transport in attackers)

    serve(tmp_path, test)


def test_costly_connections_take_turns(tmp_path: Path) -> None:
    async def test(server: Server, work: Work) -> None:
        attackers = [on_a_connection(server) for _ in range(ATTACKERS)]
        for attacker, _ in attackers:
            receive(attacker, *[COSTLY] * PIPELINED)
        await rest(ATTACKERS * PIPELINED * 2)
        answered = [len(transport.written) for _, transport in attackers]
        while sum(answered) < ATTACKERS * PIPELINED:
            assert max(answered) - min(answered) <= 3
            await asyncio.sleep(0)
            answered = [len(transport.written) for _, transport in attackers]

    serve(tmp_path, test)


def wall() -> float:
    return 0.0


def cpu() -> float:
    return 0.0


def test_steps_count_by_processor_time() -> None:
    async def run() -> None:
        turns = Turns(wall, cpu)
        use = LoopUse(turns)
        turns.spend(TURN_SECONDS)
        waits = [use.must_wait]  # of a new connection nothing is known
        assert use.timer is cpu
        for _ in range(50):
            use.add(COSTLY_SECONDS / 2, use.timer)
        waits.append(use.must_wait)
        assert use.timer is wall
        for _ in range(5):  # other processes ran meanwhile
            use.add(COSTLY_SECONDS, wall)
            assert use.timer is cpu
            use.add(COSTLY_SECONDS / 2, cpu)
        waits.append(use.must_wait)
        for _ in range(2):
            use.add(COSTLY_SECONDS, use.timer)
            use.add(COSTLY_SECONDS / 2, use.timer)
        assert [*waits, use.must_wait] == [True, False, False, True]

    asyncio.run(run())


def test_a_request_that_is_cancelled_gives_its_turn_away() -> None:
    """It is begun nevertheless: a coroutine that never began warns and cleans nothing up."""

    async def run() -> None:
        turns = Turns(wall, cpu)
        done: list[int] = []
        cleaned: list[int] = []

        async def work(number: int) -> None:
            done.append(number)
            try:
                await asyncio.sleep(0)
            finally:
                cleaned.append(number)

        stalls, loop = LoopStalls(), asyncio.get_running_loop()
        tasks = [
            loop.create_task(InTurns(stalls, "work", work(number), LoopUse(turns)))
            for number in range(3)
        ]
        turns.spend(TURN_SECONDS)
        await asyncio.sleep(0)
        assert done == []
        tasks[1].cancel()
        assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [
            type(None), asyncio.CancelledError, type(None),
        ]  # fmt: skip
        assert done == [0, 1, 2]
        assert sorted(cleaned) == [0, 1, 2]
        assert turns.waiting == 0

    asyncio.run(run())


@pytest.mark.parametrize("is_in_turns", [False, True])
def test_a_task_that_is_cancelled_frees_what_it_keeps_at_once(*, is_in_turns: bool) -> None:
    """Not only when the garbage collector runs: it can be many megabytes."""

    class Kept:
        pass

    async def run() -> None:
        freed = list[bool]()

        async def work() -> None:
            kept = Kept()
            finalize(kept, freed.append, True)
            await asyncio.sleep(60)
            del kept

        stalls = LoopStalls()
        task = asyncio.get_running_loop().create_task(
            InTurns(stalls, "work", work(), LoopUse(Turns(wall, cpu)))
            if is_in_turns
            else stalls.timed("work", work())
        )
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        assert freed

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


def test_requests_behind_a_cancelled_one_are_not_begun(tmp_path: Path) -> None:
    """They would begin while the loop is closed, and never end."""

    async def test(server: Server, work: Work) -> None:
        connection, transport = on_a_connection(server)
        receive(connection, COSTLY_TASK, COSTLY_TASK)
        await asyncio.sleep(0)
        begun = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(begun) == 1
        for task in begun:
            task.cancel()
        await rest()
        assert len(work.steps) == 1
        assert transport.is_closing()

    serve(tmp_path, test)

"""Answers that wait for a journal: their order, their bounds, and what comes behind them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headrace.broker import server as server_module
from headrace.broker.config import Config
from headrace.broker.server import Connection, Server
from headrace.broker.services import open_services

from .connection_rig import (
    LATER,
    REFUSED,
    StubDispatcher,
    StubTransport,
    on_a_connection,
    ready,
    receive,
)

TIMEOUT = 10


@pytest.fixture
def dispatcher() -> StubDispatcher:
    return StubDispatcher()


@pytest.fixture
def connected(tmp_path: Path, dispatcher: Any) -> Callable[[Any], None]:
    """Runs a coroutine function on a connection that `dispatcher` answers."""

    def run(go: Callable[[Connection, StubTransport], Coroutine[Any, Any, None]]) -> None:
        async def within() -> None:
            services = open_services(Config.parse({}), tmp_path, new_id=uuid4)
            await go(*on_a_connection(Server(services, dispatcher)))
            await services.close()

        asyncio.run(within())

    return run


def test_decisions_need_not_wait_for_the_answers_before_them(
    dispatcher: StubDispatcher, connected: Callable[[Any], None]
) -> None:
    async def go(connection: Connection, transport: StubTransport) -> None:
        receive(connection, LATER, LATER, LATER, 0)
        assert len(dispatcher.decided) == 3
        assert len(dispatcher.asked) == 3  # the last is of another kind, and waits
        ready(dispatcher.decided[1])
        await asyncio.sleep(0)
        assert transport.written == []  # answers keep the order of requests
        ready(dispatcher.decided[0])
        await asyncio.sleep(0)
        assert transport.written == [b"answer 1;answer 2;"]
        ready(dispatcher.decided[2])
        await asyncio.sleep(0)
        assert transport.written[1:] == [b"answer 3;", bytearray(8)]

    connected(go)


def test_answers_that_wait_are_bounded(
    dispatcher: StubDispatcher, connected: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "UNSENT_MAX", 2)

    async def go(connection: Connection, transport: StubTransport) -> None:
        receive(connection, LATER, LATER, LATER)
        assert len(dispatcher.decided) == 2
        ready(dispatcher.decided[0])
        await asyncio.sleep(0)
        assert transport.written == [b"answer 1;"]
        assert len(dispatcher.decided) == 3

    connected(go)


def test_who_sends_nonsense_still_gets_the_answers_before_it(
    dispatcher: StubDispatcher, connected: Callable[[Any], None]
) -> None:
    async def go(connection: Connection, transport: StubTransport) -> None:
        receive(connection, LATER, REFUSED, LATER)
        assert not transport.is_closing()
        ready(dispatcher.decided[0])
        await asyncio.sleep(0)
        assert transport.written == [b"answer 1;"]
        assert transport.is_closing()
        assert len(dispatcher.asked) == 2

    connected(go)


def test_a_stop_waits_for_what_is_decided(
    dispatcher: StubDispatcher, connected: Callable[[Any], None]
) -> None:
    async def go(connection: Connection, transport: StubTransport) -> None:
        receive(connection, LATER)
        ending = connection.finish()
        assert ending is not None
        await asyncio.sleep(0)
        assert not ending.done()
        ready(dispatcher.decided[0])
        await asyncio.wait_for(ending, TIMEOUT)
        assert transport.written == [b"answer 1;"]
        assert transport.is_closing()

    connected(go)


def test_requests_whose_answers_wait_are_bounded_by_their_size(
    dispatcher: StubDispatcher, connected: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "BYTES_QUEUED_MAX", 12)

    async def go(connection: Connection, _: StubTransport) -> None:
        receive(connection, LATER, LATER, LATER)  # of eight bytes each
        assert len(dispatcher.decided) == 2
        ready(dispatcher.decided[0])
        await asyncio.sleep(0)
        assert len(dispatcher.decided) == 3

    connected(go)


def test_what_follows_nonsense_is_not_decided(
    dispatcher: StubDispatcher, connected: Callable[[Any], None]
) -> None:
    async def go(connection: Connection, _: StubTransport) -> None:
        receive(connection, LATER, REFUSED)
        receive(connection, LATER)
        assert len(dispatcher.decided) == 1

    connected(go)


def test_a_stop_does_not_wait_for_answers_about_to_leave(
    dispatcher: StubDispatcher, connected: Callable[[Any], None]
) -> None:
    async def go(connection: Connection, transport: StubTransport) -> None:
        receive(connection, LATER)
        ready(dispatcher.decided[0])
        ending = connection.finish()
        assert ending is not None
        await asyncio.wait_for(ending, TIMEOUT)
        assert transport.written == [b"answer 1;"]
        assert transport.is_closing()

    connected(go)


def test_who_goes_away_is_not_answered(
    dispatcher: StubDispatcher, connected: Callable[[Any], None]
) -> None:
    async def go(connection: Connection, transport: StubTransport) -> None:
        receive(connection, LATER)
        transport.abort()
        connection.connection_lost(None)
        ready(dispatcher.decided[0])
        await asyncio.sleep(0)
        assert transport.written == []

    connected(go)

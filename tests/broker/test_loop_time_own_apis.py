"""Requests of Headrace's own APIs that name or show very much are answered in short steps."""

import asyncio
import struct
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from headrace.broker.errors import Code
from headrace.broker.handlers import describe_share_records
from headrace.wire import leases as wire
from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_archived import (
    ClearArchivedRequest,
    ListArchivedRequest,
    Place,
)
from headrace.wire.share_records import (
    DescribeShareRecordsRequest,
    DescribeShareRecordsResponse,
    PartitionCursor,
    TopicCursor,
)
from headrace.wire.structs import Struct

from .loop_rig import Client, LoopRig
from .test_loop_time import ELEMENTS, MEMBER, SECONDS_MAX, WIDE, created

AnswerT = TypeVar("AnswerT", bound=Struct)


Own = wire.Call | DescribeShareRecordsRequest | ListArchivedRequest | ClearArchivedRequest


async def ask(client: Client, request: Own, answer: type[AnswerT]) -> AnswerT:
    """What the broker answers to a request of its own APIs."""
    return answer.read(Reader((await client.ask(framed(request)))[1:]))


def framed(request: Own) -> bytes:
    """A whole request of Headrace's own APIs with its size."""
    body = Writer()
    request.write(body)
    head = struct.pack(">hhihb", request.KEY, 0, 1, -1, 0)
    return struct.pack(">i", len(head) + len(body.data)) + head + bytes(body.data)


PARTITIONS = 201  # more than are encoded on the event loop


@pytest.fixture(scope="module")
def wide() -> Iterator[LoopRig]:
    """A broker with a group that reads a topic by members and by a lease."""
    rig = LoopRig()
    try:
        rig.run(_begin(rig))
        yield rig
    finally:
        rig.close()


async def _begin(rig: LoopRig) -> None:
    client = Client(rig.server)
    topics = [created(WIDE, num_partitions=PARTITIONS)]
    await client.call(19, 7, topics=topics, timeout=0, validate_only=False)
    opening = wire.OpenRequest("g", "session", -1, (WIDE,), "earliest")
    assert (await ask(client, opening, wire.OpenResponse)).epoch == 1


def _named(count: int) -> DescribeShareRecordsRequest:
    cursors = tuple(PartitionCursor(number, 0) for number in range(count))
    return DescribeShareRecordsRequest("g", (TopicCursor(WIDE, cursors),))


def _cleared(count: int) -> ClearArchivedRequest:
    return ClearArchivedRequest("g", tuple(Place("x", number) for number in range(count)))


def _listed(count: int) -> ListArchivedRequest:
    return ListArchivedRequest("g", tuple(f"{MEMBER}{number}" for number in range(count)))


@pytest.mark.parametrize("request_of", [_named, _listed, _cleared])
def test_the_largest_request_is_answered_in_short_steps(wide: LoopRig, request_of: Any) -> None:
    frame = framed(request_of(ELEMENTS))

    async def send() -> None:
        await asyncio.sleep(0)
        await Client(wide.server).ask(frame)

    wide.require_short(send, SECONDS_MAX)


@pytest.mark.parametrize("request_of", [_named, _listed, _cleared])
def test_a_request_with_too_many_elements_ends_its_connection(
    wide: LoopRig, request_of: Any
) -> None:
    limit = wide.services.config.elements_max

    async def send(count: int) -> None:
        await Client(wide.server).ask(framed(request_of(count)))

    wide.run(send(limit - 1))
    with pytest.raises(AssertionError, match="the broker closed the connection"):
        wide.run(send(limit + 1))


def test_nothing_is_described_of_a_state_that_was_given_up_meanwhile(
    wide: LoopRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, one = wide.services.shares.shard("g"), describe_share_records._partition

    def recovered(place: Any, *args: Any) -> Any:
        if place[1] == PARTITIONS - 1:
            shard.load()
        return one(place, *args)

    async def describe() -> DescribeShareRecordsResponse:
        request = DescribeShareRecordsRequest("g")
        return await ask(Client(wide.server), request, DescribeShareRecordsResponse)

    assert wide.run(describe()).error_code == Code.NONE
    monkeypatch.setattr(describe_share_records, "_partition", recovered)
    answer = wide.run(describe())
    assert (answer.error_code, answer.partitions) == (Code.COORDINATOR_NOT_AVAILABLE, ())


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (_named(PARTITIONS), DescribeShareRecordsResponse),
        (wire.DescribeRequest("g", "session", 1), wire.DescribeResponse),
    ],
)
def test_a_description_of_many_partitions_is_encoded_in_a_thread(
    wide: LoopRig, request_: Any, response: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, on_loop = response.write, list[bool]()

    def noted(answer: Any, out: Writer) -> None:
        on_loop.append(threading.get_ident() == threading.main_thread().ident)
        write(answer, out)

    async def describe() -> Any:
        return await ask(Client(wide.server), request_, response)

    monkeypatch.setattr(response, "write", noted)
    answer = wide.run(describe())
    assert [one.partition for one in answer.partitions] == list(range(PARTITIONS))
    assert on_loop == [False]

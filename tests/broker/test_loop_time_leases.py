"""A task of a lease that sets many records aside: the broker stages them in short steps."""

import struct
from typing import TypeVar

from headrace.wire import batches
from headrace.wire import leases as wire
from headrace.wire.batches import Record
from headrace.wire.primitives import Reader, Writer
from headrace.wire.share_records import DescribeShareRecordsRequest
from headrace.wire.structs import Struct

from .loop_rig import Client, LoopRig
from .test_loop_time import SECONDS_MAX, created, scaled

SPREAD, RECORDS_PER_BATCH = "spread", 1000
AnswerT = TypeVar("AnswerT", bound=Struct)


async def ask(
    client: Client, request: wire.Call | DescribeShareRecordsRequest, answer: type[AnswerT]
) -> AnswerT:
    """What the broker answers to a request of its own APIs."""
    body = Writer()
    request.write(body)
    head = struct.pack(">hhihb", request.KEY, 0, 1, -1, 0)
    frame = struct.pack(">i", len(head) + len(body.data)) + head + bytes(body.data)
    return answer.read(Reader((await client.ask(frame))[1:]))


def test_many_dispositions_of_a_task_are_staged_in_short_steps() -> None:
    count = scaled(9900)
    said = tuple(
        wire.Disposition(
            SPREAD, 0, 2 * n, 2 * n, (wire.Verdict.RELEASE, wire.Verdict.REJECT)[n % 2]
        )
        for n in range(count)
    )

    async def acquire() -> int:
        client = Client(rig.server)
        topics = [created(SPREAD)]
        await client.call(19, 7, topics=topics, timeout=0, validate_only=False)
        data = bytes(batches.build([Record(0, 1000, None, b"v")] * RECORDS_PER_BATCH))
        for _ in range(2 * count // RECORDS_PER_BATCH + 1):
            parts = [{"index": 0, "records": data}]
            await client.call(
                0, 8, transactional_id=None, acks=1, timeout=1,
                topic_data=[{"name": SPREAD, "partition_data": parts}],
            )  # fmt: skip
        opening = wire.OpenRequest("g", "session", -1, (SPREAD,), "earliest")
        epoch = (await ask(client, opening, wire.OpenResponse)).epoch
        acquiring = wire.AcquireRequest("g", "session", epoch, 1, 2 * count, 0)
        assert (await ask(client, acquiring, wire.AcquireResponse)).ranges
        return epoch

    async def stage() -> None:
        request = wire.StageRequest("g", "session", epoch, 1, said)
        answer = await ask(Client(rig.server), request, wire.StageResponse)
        assert answer.error_code == 0, answer

    async def commit() -> wire.CommitResponse:
        request = wire.CommitRequest("g", "session", epoch, 1)
        return await ask(Client(rig.server), request, wire.CommitResponse)

    rig = LoopRig()
    try:
        epoch = rig.run(acquire())
        rig.require_short(stage, SECONDS_MAX)
        done = rig.run(commit())
        assert (done.released, done.rejected) == ((count + 1) // 2, count // 2)
    finally:
        rig.close()

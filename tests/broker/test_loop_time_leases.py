"""Leases of very many ranges: what their drivers and tasks ask is done in short steps."""

import itertools
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from headrace.core.errors import Refused
from headrace.core.leases import Staged
from headrace.core.shard_words import (
    AdminCommand,
    AlterShareOffsets,
    DeleteShareGroup,
    Keep,
    StageLease,
)
from headrace.core.share_words import Verdict
from headrace.core.types import Span
from headrace.wire import batches
from headrace.wire import leases as wire
from headrace.wire.batches import Record
from headrace.wire.primitives import Reader

from .loop_rig import Client, LoopRig
from .test_loop_time import SECONDS_MAX, created, scaled
from .test_loop_time_own_apis import AnswerT, ask, framed

SPREAD, RECORDS_PER_BATCH = "spread", 1000
_SILENT_MS = 60_000  # after which a driver does not count as a member


class Session:
    """A session on a topic, and what its driver asks."""

    def __init__(self, rig: LoopRig) -> None:
        self._rig = rig
        self.epoch = 0
        self.opening = wire.OpenRequest("g", "session", -1, (SPREAD,), "earliest")

    async def begin(self, records: int) -> None:
        """Produce records, and open the session."""
        client = Client(self._rig.server)
        kept = [{"name": "retention.ms", "value": "-1"}]
        topics = [created(SPREAD, configs=kept)]
        await client.call(19, 7, topics=topics, timeout=0, validate_only=False)
        data = bytes(batches.build([Record(0, 1000, None, b"v")] * RECORDS_PER_BATCH))
        for _ in range(records // RECORDS_PER_BATCH + 1):
            parts = [{"index": 0, "records": data}]
            await client.call(
                0, 8, transactional_id=None, acks=1, timeout=1,
                topic_data=[{"name": SPREAD, "partition_data": parts}],
            )  # fmt: skip
        self.epoch = (await ask(client, self.opening, wire.OpenResponse)).epoch

    def acquiring(self, seq: int) -> wire.AcquireRequest:
        return wire.AcquireRequest("g", "session", self.epoch, seq, 1 << 30, 0)

    def staging(self, seq: int, count: int) -> wire.StageRequest:
        """The first records are set aside, every second of them."""
        said = tuple(
            wire.Disposition(SPREAD, 0, 2 * n, 2 * n, wire.Verdict.RELEASE) for n in range(count)
        )
        return wire.StageRequest("g", "session", self.epoch, seq, said)

    def committing(self, seq: int) -> wire.CommitRequest:
        return wire.CommitRequest("g", "session", self.epoch, seq)

    def renewing(self) -> wire.RenewRequest:
        return wire.RenewRequest("g", "session", self.epoch)


@pytest.fixture
def rig() -> Iterator[LoopRig]:
    made = LoopRig()
    yield made
    made.close()


def answered(rig: LoopRig, request: wire.Call, answer: type[AnswerT]) -> AnswerT:
    """What a request is answered that is made, sent and read in short steps of the broker."""
    frame, bodies = framed(request), list[bytes]()

    async def send() -> None:
        bodies.append(await Client(rig.server).ask(frame))

    rig.require_short(send, SECONDS_MAX)
    return answer.read(Reader(bodies[0][1:]))


async def kept(rig: LoopRig) -> None:
    """The whole state of the share-partition and of the lease is written."""
    shares = rig.services.shares
    keys = tuple(shares.machine("g").partitions_of("g"))
    assert await shares.ask("g", Keep(keys, (("g", "session"),))) is None


def test_many_dispositions_are_staged_and_committed_in_short_steps(rig: LoopRig) -> None:
    session, count = Session(rig), scaled(60_000)
    rig.run(session.begin(2 * count))
    assert len(answered(rig, session.acquiring(1), wire.AcquireResponse).ranges) == 1
    assert answered(rig, session.staging(1, count), wire.StageResponse).error_code == 0
    done = answered(rig, session.committing(1), wire.CommitResponse)
    assert (done.accepted >= count, done.released) == (True, count)


def test_many_ranges_are_acquired_and_reclaimed_in_short_steps(rig: LoopRig) -> None:
    session, count = Session(rig), scaled(30_000)
    rig.run(session.begin(2 * count))
    answered(rig, session.acquiring(1), wire.AcquireResponse)
    answered(rig, session.staging(1, count), wire.StageResponse)
    answered(rig, session.committing(1), wire.CommitResponse)
    held, seq = 0, 1
    while held < count:
        seq += 1
        ranges = answered(rig, session.acquiring(seq), wire.AcquireResponse).ranges
        assert 0 < len(ranges) < 3_000
        held += len(ranges)
    rig.require_short(partial(kept, rig), SECONDS_MAX)
    assert answered(rig, session.renewing(), wire.RenewResponse).held == count
    describing = wire.DescribeRequest("g", "session", session.epoch)
    (described,) = answered(rig, describing, wire.DescribeResponse).partitions
    assert len(described.in_flight) >= count
    opened = answered(rig, session.opening, wire.OpenResponse)
    assert len(opened.outstanding) == seq - 1
    session.epoch = opened.epoch
    again = answered(rig, session.acquiring(2), wire.AcquireResponse)
    assert 0 < len(again.ranges) < 3_000
    assert answered(rig, session.committing(seq), wire.CommitResponse).accepted == count


@pytest.mark.parametrize(
    "command",
    [AlterShareOffsets("g", ((SPREAD, 0, 0),)), DeleteShareGroup("g")],
    ids=lambda one: type(one).__name__,
)
def test_many_dispositions_are_replaced_and_discarded_in_short_steps(
    rig: LoopRig, command: AdminCommand
) -> None:
    session, count, numbers = Session(rig), scaled(300_000), itertools.count(1)
    rig.run(session.begin(count))
    shares = rig.services.shares
    (key,) = shares.machine("g").partitions_of("g")

    async def discard(parts: list[tuple[Staged, ...]]) -> None:
        client, seq = Client(rig.server), next(numbers)
        epoch = (await ask(client, session.opening, wire.OpenResponse)).epoch
        session.epoch = epoch
        assert (await ask(client, session.acquiring(seq), wire.AcquireResponse)).ranges
        while parts:
            staging = StageLease(("g", "session"), epoch, seq, parts.pop())
            assert await shares.ask("g", staging) is None
            del staging
        rig.inside.clock.advance(_SILENT_MS)
        answer = await shares.administer(command, "operator")
        assert not isinstance(answer, Refused), answer

    def part() -> tuple[Staged, ...]:
        return tuple([Staged(key, Span(at, at), Verdict.RELEASE) for at in range(count)])

    def two_parts() -> Coroutine[Any, Any, None]:
        return discard([part(), part()])

    rig.require_short(two_parts, SECONDS_MAX)

"""Leases of very many ranges: what their drivers and tasks ask is done in short steps."""

import itertools
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

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
from headrace.core.share_words import ShareKey, Started, Verdict
from headrace.core.types import Span
from headrace.wire import batches
from headrace.wire import leases as wire
from headrace.wire.batches import Record
from headrace.wire.primitives import Reader

from .loop_rig import Client, LoopRig
from .test_loop_time import SECONDS_MAX, created, scaled
from .test_loop_time_own_apis import AnswerT, ask, framed

SPREAD, RECORDS_PER_BATCH = "spread", 1000
WIDE, PARTITIONS = "wide", scaled(1_000)
SHARE_PARTITIONS = scaled(60_000)  # of other topics, in the same group
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
    """What a request is answered that is made, sent and read in short steps of the broker.

    Of several tries the first answer counts, except for an epoch: each opening takes a new one.
    """
    frame, bodies = framed(request), list[bytes]()

    async def send() -> None:
        bodies.append(await Client(rig.server).ask(frame))

    rig.require_short(send, SECONDS_MAX)
    number = -1 if isinstance(request, wire.OpenRequest) else 0
    return answer.read(Reader(bodies[number][1:]))


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


async def _fill_wide(rig: LoopRig) -> None:
    """Produce to each partition of a topic, and give the group share-partitions of other topics."""
    client = Client(rig.server)
    topics = [created(WIDE, num_partitions=PARTITIONS)]
    await client.call(19, 7, topics=topics, timeout=0, validate_only=False)
    data = bytes(batches.build([Record(0, 1000, None, b"v")] * 2))
    parts = [{"index": index, "records": data} for index in range(PARTITIONS)]
    await client.call(
        0, 8, transactional_id=None, acks=1, timeout=1,
        topic_data=[{"name": WIDE, "partition_data": parts}],
    )  # fmt: skip
    others = [uuid4() for _ in range(60)]
    keys = [ShareKey("g", others[n % 60], n // 60) for n in range(SHARE_PARTITIONS)]
    rig.services.shares.machine("g").apply_all([Started(key, 0, 0) for key in keys])


def test_a_group_with_many_share_partitions_is_acquired_in_short_steps(rig: LoopRig) -> None:
    rig.run(_fill_wide(rig))
    opening = wire.OpenRequest("g", "session", -1, (WIDE,), "earliest")
    epoch = answered(rig, opening, wire.OpenResponse).epoch
    seen, seq, committed = set[int](), 0, 0
    while len(seen) < PARTITIONS:
        seq += 1
        acquiring = wire.AcquireRequest("g", "session", epoch, seq, 2 * PARTITIONS, 0)
        ranges = answered(rig, acquiring, wire.AcquireResponse).ranges
        assert 0 < len(ranges) <= 200
        seen.update(one.partition for one in ranges)
        committing = wire.CommitRequest("g", "session", epoch, seq)
        committed += answered(rig, committing, wire.CommitResponse).accepted
    assert committed == 2 * PARTITIONS
    assert seq <= 1 + PARTITIONS // 200

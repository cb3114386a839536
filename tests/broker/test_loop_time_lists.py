"""What a broker lists of very many groups, offsets and sessions is listed in short steps."""

import struct
from collections.abc import Iterator
from uuid import uuid4

import pytest

from headrace.core.archived import ArchivedRun, PageListed
from headrace.core.catalog import TopicCreated, TopicDeleted
from headrace.core.classic_group import ClassicGroup
from headrace.core.group_words import NOBODY, Commit, Offset
from headrace.core.leases import LeaseOpened, LeaseSeen
from headrace.core.share_words import ShareKey, Started
from headrace.core.types import MemberId, Span, WallMs, after
from headrace.wire import lease_sessions, offset_expiry, share_archived
from headrace.wire.primitives import Writer
from headrace.wire.share_archived import ArchivedApi
from headrace.wire.structs import Struct

from .loop_rig import Client, LoopRig, framed
from .test_loop_time import SECONDS_MAX, WIDE, created, scaled

PAGE_RUNS = 50  # of a list of archived records
LEASES, LEASED = 50, 500  # at work, and partitions of the topic of each
COUNT = scaled(100_000)
OFFSETS = 1_000  # of one topic
GROUP = "many"
LISTS = scaled(60_000)  # of archived records, each of a share-partition
SESSIONS, SHARED = "sessions", 10


@pytest.fixture(scope="module")
def rig() -> Iterator[LoopRig]:
    rig = LoopRig()
    try:
        rig.run(_fill(rig))
        yield rig
    finally:
        rig.close()


async def _fill(rig: LoopRig) -> None:
    """Let there be `COUNT` consumer groups, share groups, offsets of a group, and sessions."""
    topics = [created(WIDE)]
    await Client(rig.server).call(19, 7, topics=topics, timeout=0, validate_only=False)
    groups, shares = rig.services.groups, rig.services.shares
    topic_id = rig.services.catalog.topics[WIDE].id
    for number in range(COUNT):
        name = f"g{number}"
        machine = groups.machine_of(groups._shard_of(name))
        machine.groups[name] = ClassicGroup(name)
        machine.names.add(name)
        shares.machine(f"s{number}").apply(Started(ShareKey(f"s{number}", topic_id, 0), 0, 0))
        group = SESSIONS if number % 2 else f"{SESSIONS}-{number % SHARED}"
        shares.machine(group).apply(LeaseOpened((group, f"session-{number}"), 1, (WIDE,)))
    for topic in range(COUNT // OFFSETS):
        offsets = tuple(Offset(f"t{topic}", n, 0, -1, "", None) for n in range(OFFSETS))
        assert await groups.ask(GROUP, Commit(GROUP, NOBODY, None, -1, offsets))


def _framed_own(key: int, request: Struct) -> bytes:
    """Return a whole request of Headrace's own APIs with its size."""
    body = Writer()
    request.write(body)
    head = struct.pack(">hhihb", key, 0, 1, -1, 0)
    return struct.pack(">i", len(head) + len(body.data)) + head + bytes(body.data)


def _require_short(rig: LoopRig, frame: bytes) -> None:
    async def send() -> None:
        client = Client(rig.server)
        await client.ask(frame)
        await client.hang_up()

    rig.require_short(send, SECONDS_MAX)


def test_all_groups_are_listed_in_short_steps(rig: LoopRig) -> None:
    _require_short(rig, framed(16, 4, {"states_filter": []}))


def test_a_page_of_offsets_that_expire_is_shown_in_short_steps(rig: LoopRig) -> None:
    _require_short(
        rig, _framed_own(offset_expiry.KEY, offset_expiry.DescribeOffsetExpiryRequest(GROUP))
    )


@pytest.mark.parametrize("group", ["", SESSIONS])
def test_a_page_of_sessions_is_listed_in_short_steps(rig: LoopRig, group: str) -> None:
    _require_short(
        rig, _framed_own(lease_sessions.KEY, lease_sessions.ListLeaseSessionsRequest(group))
    )


def test_groups_with_many_sessions_are_described_in_short_steps(rig: LoopRig) -> None:
    names = [f"{SESSIONS}-{number}" for number in range(50)]
    fields = {"group_ids": names, "include_authorized_operations": False}
    _require_short(rig, framed(77, 1, fields))


def test_a_group_that_many_leases_read_is_described_in_short_steps(rig: LoopRig) -> None:
    shares, clock = rig.services.shares, rig.services.clock

    async def fill() -> None:
        topics = [created("leased", num_partitions=LEASED)]
        await Client(rig.server).call(19, 7, topics=topics, timeout=0, validate_only=False)
        machine = shares.machine("leased")
        topic_id = rig.services.catalog.topics["leased"].id
        machine.apply(Started(ShareKey("leased", topic_id, 0), 0, 0))
        for number in range(LEASES):
            key = ("leased", f"session-{number}")
            machine.apply(LeaseOpened(key, 1, ("leased",)))
            machine.apply(LeaseSeen(key, after(clock.mono(), 600_000)))

    rig.run(fill())
    fields = {"group_ids": ["leased"], "include_authorized_operations": False}
    _require_short(rig, framed(77, 1, fields))


def test_a_page_of_archived_records_is_listed_in_short_steps(rig: LoopRig) -> None:
    """More runs than one response has, of several partitions."""
    group, partitions = "archived", 4
    topic_id = rig.services.catalog.topics[WIDE].id
    machine = rig.services.shares.machine(group)
    pages = scaled(share_archived.RUNS_MAX) // partitions // PAGE_RUNS + 1
    for partition in range(partitions):
        key = ShareKey(group, topic_id, partition)
        machine.apply(Started(key, 0, 0))
        for page in range(pages):
            runs = tuple(
                ArchivedRun(
                    number + 1,
                    Span(2 * number, 2 * number),
                    5,
                    f"reason {number} " * 8,
                    MemberId(f"member-{number:030}"),
                    WallMs(1),
                )
                for number in range(page * PAGE_RUNS, (page + 1) * PAGE_RUNS)
            )
            machine.apply(PageListed(key, page, runs, (page + 1) * PAGE_RUNS + 1, 0))
    _require_short(
        rig,
        _framed_own(ArchivedApi.LIST, share_archived.ListArchivedRequest(group)),
    )


@pytest.mark.parametrize("topics", [1, 6, LISTS])
def test_archived_records_of_many_share_partitions_are_listed_in_short_steps(
    rig: LoopRig, topics: int
) -> None:
    """A list in each partition of so many topics; the last page comes behind all but a few."""
    group, catalog, ids = f"lists-{topics}", rig.services.catalog, [uuid4() for _ in range(topics)]
    machine = rig.services.shares.machine(group)
    for number, topic_id in enumerate(ids):
        catalog.apply(TopicCreated(f"{group}-{number}", topic_id))
    run = ArchivedRun(1, Span(0, 0), 5, "reason", MemberId("member"), WallMs(1))
    for number in range(LISTS):
        key = ShareKey(group, ids[number % topics], number // topics)
        machine.apply(Started(key, 0, 0))
        machine.apply(PageListed(key, 1, (run,), 2, 0))
    last = share_archived.Place(f"{group}-{topics - 1}", LISTS // topics - 2, 1)
    try:
        for after in (share_archived.Place("", -1), last):
            request = share_archived.ListArchivedRequest(group, after=after)
            _require_short(rig, _framed_own(ArchivedApi.LIST, request))
    finally:
        for topic_id in ids:
            catalog.apply(TopicDeleted(topic_id))

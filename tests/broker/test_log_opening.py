"""Logs are opened at their first use, beside the event loop: one with many segments takes long."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from prometheus_client.exposition import choose_encoder

from headrace.broker.handlers import fetch as fetch_handler
from headrace.broker.handlers import share_fetch as share_fetch_handler
from headrace.broker.metrics_http import MetricsServer
from headrace.broker.partition import Partition
from headrace.broker.services import Services
from headrace.log.memory_disk import MemoryDisk
from headrace.log.opening import Opening
from headrace.wire import batches, share_records
from headrace.wire import leases as lease_wire
from headrace.wire.batches import Record

from .loop_rig import Client, LoopRig
from .partition_rig import TIMEOUT, until
from .test_loop_time import beat, share_fetch
from .test_loop_time_own_apis import ask

PARTITIONS, TOPIC, GROUP = 6, "wide", "sharers"
SETTINGS = {
    "headrace_metrics_granularity": "topic", "offsets_topic_num_partitions": "1",
    "share_coordinator_state_topic_num_partitions": "1",
}  # fmt: skip
Work = Callable[[LoopRig, UUID], Awaitable[Any]]
BATCH = bytes(batches.build([Record(0, 1_700_000_000_000, b"k", b"v")]))


@contextmanager
def openings(go_on: Callable[[], Any] = lambda: None) -> Iterator[list[bool]]:
    """Yield a list that gets, for each log that is opened, whether the event loop's thread did.

    Args:
        go_on: Called before each log is opened.
    """
    opened, loop_thread = Opening.open, threading.get_ident()
    on_loop: list[bool] = []

    def noted(*args: Any, **settings: Any) -> Any:
        on_loop.append(threading.get_ident() == loop_thread)
        go_on()
        return opened(*args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Opening, "open", noted)
        yield on_loop


def of_each(name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{name: index} | fields for index in range(PARTITIONS)]


FETCH: dict[str, Any] = {
    "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 30, "isolation_level": 0,
    "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
    "topics": [{"topic": TOPIC, "partitions": of_each(
        "partition", current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )}],
}  # fmt: skip
LIST_OFFSETS: dict[str, Any] = {
    "replica_id": -1, "isolation_level": 0,
    "topics": [{"name": TOPIC, "partitions": of_each(
        "partition_index", current_leader_epoch=-1, timestamp=-1
    )}],
}  # fmt: skip
PRODUCE: dict[str, Any] = {
    "transactional_id": None, "acks": 1, "timeout": 1000,
    "topic_data": [{"name": TOPIC, "partition_data": of_each("index", records=BATCH)}],
}  # fmt: skip
EPOCHS: dict[str, Any] = {
    "replica_id": -1,
    "topics": [{"topic": TOPIC, "partitions": of_each(
        "partition", current_leader_epoch=-1, leader_epoch=0
    )}],
}  # fmt: skip
DELETE: dict[str, Any] = {
    "timeout": 1000,
    "topics": [{"name": TOPIC, "partitions": of_each("partition_index", offset=0)}],
}
PRODUCERS: dict[str, Any] = {
    "topics": [{"name": TOPIC, "partition_indexes": list(range(PARTITIONS))}]
}


OFFSETS_OF_SHARES: dict[str, Any] = {"groups": [{"group_id": GROUP, "topics": None}]}


def heartbeat() -> dict[str, Any]:
    return {
        "group_id": GROUP, "member_id": beat()["member_id"], "member_epoch": 0, "rack_id": None,
        "subscribed_topic_names": [TOPIC],
    }  # fmt: skip


def alteration() -> dict[str, Any]:
    parts = of_each("partition_index", start_offset=0)
    return {"group_id": GROUP, "topics": [{"topic_name": TOPIC, "partitions": parts}]}


@pytest.fixture(scope="module")
def stopped() -> tuple[MemoryDisk, UUID]:
    return _stopped()


def _stopped() -> tuple[MemoryDisk, UUID]:
    """Return the data folder of a broker that stopped in order, and the id of its topic."""
    disk = MemoryDisk()
    rig = LoopRig(disk, **SETTINGS)
    try:
        rig.run(_fill(rig))
        return disk, rig.services.catalog.topics[TOPIC].id
    finally:
        rig.close()


async def _fill(rig: LoopRig) -> None:
    client = Client(rig.server)
    topic = {
        "name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": [],
        "configs": [{"name": "cleanup.policy", "value": "compact,delete"}],
    }  # fmt: skip
    await client.call(19, 5, topics=[topic], timeout=1000, validate_only=False)
    await client.call(0, 8, **PRODUCE)
    commits = of_each(
        "partition_index", committed_offset=0, committed_leader_epoch=-1, committed_metadata=""
    )
    await client.call(
        8, 8, group_id="readers", generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=[{"name": TOPIC, "partitions": commits}],
    )  # fmt: skip
    answer = await client.call(76, 1, **heartbeat())
    assert answer.error_code == 0, answer
    opening = lease_wire.OpenRequest(GROUP, "session", -1, (TOPIC,), "earliest")
    assert (await ask(client, opening, lease_wire.OpenResponse)).epoch == 1
    await client.call(0, 8, **PRODUCE)  # behind the start of the group


def _call(key: int, version: int, fields: dict[str, Any]) -> Work:
    return lambda rig, _: Client(rig.server).call(key, version, **fields)


def _share_fetch(rig: LoopRig, topic_id: UUID) -> Awaitable[Any]:
    return Client(rig.server).call(78, 2, **_of_shares(topic_id))


def _of_shares(topic_id: UUID) -> dict[str, Any]:
    parts = of_each("partition_index", acknowledgement_batches=[])
    return share_fetch([{"topic_id": topic_id, "partitions": parts}])


def _open_lease(rig: LoopRig, _: UUID) -> Awaitable[Any]:
    opening = lease_wire.OpenRequest(GROUP, "other", -1, (TOPIC,), "earliest")
    return ask(Client(rig.server), opening, lease_wire.OpenResponse)


def _acquire(rig: LoopRig, _: UUID) -> Awaitable[Any]:
    acquiring = lease_wire.AcquireRequest(GROUP, "session", 1, 1, 10, 0)
    return ask(Client(rig.server), acquiring, lease_wire.AcquireResponse)


def _describe_lease(rig: LoopRig, _: UUID) -> Awaitable[Any]:
    return ask(
        Client(rig.server),
        lease_wire.DescribeRequest(GROUP, "session", 1),
        lease_wire.DescribeResponse,
    )


def _describe_records(rig: LoopRig, _: UUID) -> Awaitable[Any]:
    asking = share_records.DescribeShareRecordsRequest(GROUP)
    return ask(Client(rig.server), asking, share_records.DescribeShareRecordsResponse)


async def _metrics_page(rig: LoopRig, _: UUID) -> None:
    text = b"".join(await MetricsServer(rig.server)._rendered(choose_encoder("")[0]))
    assert b'lag_sum{consumergroup="readers",topic="wide"} ' in text


def _background(
    work: Callable[[Services], Awaitable[Any]],
) -> Work:
    return lambda rig, _: work(rig.services)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(_call(0, 8, PRODUCE), id="Produce"),
        pytest.param(_call(1, 11, FETCH), id="Fetch"),
        pytest.param(_call(2, 7, LIST_OFFSETS), id="ListOffsets"),
        pytest.param(_call(21, 2, DELETE), id="DeleteRecords"),
        pytest.param(_call(23, 4, EPOCHS), id="OffsetForLeaderEpoch"),
        pytest.param(_call(61, 0, PRODUCERS), id="DescribeProducers"),
        pytest.param(_call(76, 1, heartbeat()), id="ShareGroupHeartbeat"),
        pytest.param(_share_fetch, id="ShareFetch"),
        pytest.param(_call(90, 1, OFFSETS_OF_SHARES), id="DescribeShareGroupOffsets"),
        pytest.param(_call(91, 0, alteration()), id="AlterShareGroupOffsets"),
        pytest.param(_open_lease, id="OpenLease"),
        pytest.param(_acquire, id="AcquireLease"),
        pytest.param(_describe_lease, id="DescribeLeases"),
        pytest.param(_describe_records, id="DescribeShareRecords"),
        pytest.param(_background(lambda s: s.housekeeping.expire_all()), id="retention"),
        pytest.param(_background(lambda s: s.housekeeping.clean_dirtiest()), id="compaction"),
        pytest.param(_background(lambda s: s.scrub.run_pass()), id="scrub"),
        pytest.param(_metrics_page, id="metrics"),
    ],
)
def test_no_log_is_opened_on_the_event_loop(work: Work, stopped: tuple[MemoryDisk, UUID]) -> None:
    disk, topic_id = stopped
    rig = LoopRig(disk, **SETTINGS)
    try:
        with openings() as on_loop:
            rig.run(_done(work, rig, topic_id))
        assert on_loop == [False] * PARTITIONS
    finally:
        rig.close()


async def _done(work: Work, rig: LoopRig, topic_id: UUID) -> None:
    await work(rig, topic_id)


@pytest.fixture
def rig(stopped: tuple[MemoryDisk, UUID]) -> Iterator[LoopRig]:
    rig = LoopRig(stopped[0], **SETTINGS)
    yield rig
    rig.close()


def test_logs_are_opened_one_after_the_other(rig: LoopRig) -> None:
    """Several threads that open logs would hold up the event loop: they take turns with it."""
    under_way, most = set[asyncio.Future[Any]](), 0

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        run_in_executor = loop.run_in_executor

        def counted(executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
            nonlocal most
            work = run_in_executor(executor, func, *args)
            if getattr(func, "__func__", None) is Partition.open:
                under_way.add(work)
                work.add_done_callback(under_way.discard)
                most = max(most, len(under_way))
            return work

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "run_in_executor", counted)
            await asyncio.gather(*(one.open_ready() for one in rig.services.partitions))

    rig.run(scene())
    assert most == 1


def test_retention_ends_with_the_broker_amid_its_first_look(rig: LoopRig) -> None:
    has_begun, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        has_begun.set()
        assert let_go.wait(TIMEOUT)

    async def scene() -> None:
        house = rig.services.housekeeping
        looking = asyncio.ensure_future(house.expire_all())
        await until(has_begun.is_set)
        stopping = asyncio.ensure_future(house.work.stop())
        await asyncio.sleep(0)
        assert house.work.is_stopping
        let_go.set()
        await asyncio.gather(looking, stopping)

    with openings(hold) as opened:
        rig.run(scene())
        assert len(opened) == 1


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_share_session_may_end_while_its_logs_are_opened(epoch: int) -> None:
    """Nothing is acquired for a request whose member has gone on over another connection."""
    has_begun, let_go = threading.Event(), threading.Event()
    disk, topic_id = _stopped()
    rig, fields = LoopRig(disk, **SETTINGS), _of_shares(topic_id)

    def hold() -> None:
        has_begun.set()
        assert let_go.wait(TIMEOUT)

    async def scene() -> list[Any]:
        first = asyncio.ensure_future(Client(rig.server).call(78, 2, **fields))
        await until(has_begun.is_set)
        more: dict[str, Any] = {"share_session_epoch": epoch}
        if epoch < 0:
            more["topics"] = []
        second = asyncio.ensure_future(Client(rig.server).call(78, 2, **(fields | more)))
        sessions = rig.services.shares.sessions.sessions
        session = next(iter(sessions.values()))
        await until(lambda: not any(one is session for one in sessions.values()))
        let_go.set()
        return [await first, await second]

    try:
        with openings(hold):
            answers = rig.run(scene())
    finally:
        rig.close()
    assert [answer.error_code for answer in answers] == [0, 0]
    assert [_acquired(answer) for answer in answers] == [0, 0 if epoch < 0 else PARTITIONS]


def test_a_share_session_may_be_opened_twice_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task of the first request begins when the session is that of the second one."""
    disk, topic_id = _stopped()
    rig, fields = LoopRig(disk, **SETTINGS), _of_shares(topic_id)
    monkeypatch.setattr(share_fetch_handler, "ACKNOWLEDGE_PORTION", 0)  # so there are tasks

    async def scene() -> list[Any]:
        await rig.services.partitions.open_rest()
        clients = [Client(rig.server) for _ in range(2)]
        return await asyncio.gather(*(one.call(78, 2, **fields) for one in clients))

    try:
        answers = rig.run(scene())
    finally:
        rig.close()
    assert [answer.error_code for answer in answers] == [0, 0]
    assert [_acquired(answer) for answer in answers] == [0, PARTITIONS]


def _acquired(answer: Any) -> int:
    return sum(
        len(part.acquired_records) for topic in answer.responses for part in topic.partitions
    )


def test_a_fetch_whose_logs_are_opened_keeps_no_other_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where it has read many records before: the turn for these is somebody else's then."""
    has_begun, let_go = threading.Event(), threading.Event()
    disk, _ = _stopped()
    rig = LoopRig(disk, **SETTINGS)
    monkeypatch.setattr(fetch_handler, "LOOK_PORTION", 1)
    monkeypatch.setattr(fetch_handler, "LIGHT_BYTES", 0)

    def hold() -> None:
        has_begun.set()
        assert let_go.wait(TIMEOUT)

    def fetched(*indexes: int) -> asyncio.Future[Any]:
        (topic,) = FETCH["topics"]
        named = [topic | {"partitions": [topic["partitions"][index] for index in indexes]}]
        fields = FETCH | {"topics": named}
        return asyncio.ensure_future(Client(rig.server).call(1, 11, **fields))

    async def scene() -> None:
        for index in (0, 2):
            partition = rig.services.partition(TOPIC, index)
            assert partition is not None
            await partition.open_ready()
        with openings(hold):
            first = fetched(0, 1)
            await until(has_begun.is_set)
            second = fetched(0, 2)
            await until(second.done)
            assert not first.done()
            let_go.set()
            for answer in (await first, await second):
                parts = answer.responses[0].partitions
                assert [bool(one.records) for one in parts] == [True, True]

    try:
        rig.run(scene())
    finally:
        let_go.set()
        rig.close()


def test_a_log_that_cannot_be_opened_is_tried_once_in_a_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the fetch has read many records, and begins again because others have the turn."""
    disk, _ = _stopped()
    rig = LoopRig(disk, **SETTINGS)
    monkeypatch.setattr(fetch_handler, "LOOK_PORTION", 1)
    monkeypatch.setattr(fetch_handler, "LIGHT_BYTES", 0)

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scene(indexes: list[int], *, waits: bool) -> None:
        for index in indexes:
            partition = rig.services.partition(TOPIC, index)
            assert partition is not None
            if index != 1:
                await partition.open_ready()
        budgets, other = rig.services.budgets, frozenset[int]()
        if waits:
            await budgets.begin_fetch(other)
        (topic,) = FETCH["topics"]
        named = [topic | {"partitions": [topic["partitions"][index] for index in indexes]}]
        with openings(fail) as opened:
            fields = FETCH | {"topics": named}
            answering = asyncio.ensure_future(Client(rig.server).call(1, 11, **fields))
            if waits:
                await until(lambda: budgets._fetches == 2)
                budgets.end_fetch()
            answer = await asyncio.wait_for(answering, TIMEOUT)
        assert len(opened) == 1
        parts = answer.responses[0].partitions
        assert [(one.partition_index, one.error_code, bool(one.records)) for one in parts] == [
            (index, 56 if index == 1 else 0, index != 1) for index in indexes
        ]

    try:
        rig.run(scene([0, 1], waits=False))
        rig.run(scene([0, 2, 1, 3], waits=False))
        rig.run(scene([1, 0, 2], waits=True))
    finally:
        rig.close()


def test_a_fetch_that_rests_leaves_the_turn_and_ends_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it waits for may come again and again while others have the turn."""
    disk, _ = _stopped()
    rig = LoopRig(disk, **SETTINGS)
    monkeypatch.setattr(fetch_handler, "LIGHT_BYTES", 0)
    monkeypatch.setattr(fetch_handler._Poll, "may_be_ready", lambda *_: True)
    begin_again, passes = fetch_handler._Poll.begin_again, [0]

    def counted(poll: Any) -> None:
        passes[0] += 1
        begin_again(poll)

    monkeypatch.setattr(fetch_handler._Poll, "begin_again", counted)

    async def scene() -> None:
        services, other = rig.services, frozenset[int]()
        partition = services.partition(TOPIC, 0)
        assert partition is not None
        await partition.open_ready()
        (topic,) = FETCH["topics"]
        named = [topic | {"partitions": topic["partitions"][:1]}]
        fields = FETCH | {"topics": named, "max_wait": 60_000, "min_bytes": 1 << 30}
        answering = asyncio.ensure_future(Client(rig.server).call(1, 11, **fields))
        await until(lambda: services.waits.waiting == 1)
        assert services.budgets.reserve_fetch(other)
        await services.budgets.begin_fetch(other)
        services.waits.notify(partition.key)
        await until(lambda: services.budgets._fetches == 2)
        rig.inside.clock.advance(60_000)
        services.waits.notify(partition.key)
        passes[0] = 0
        services.budgets.end_fetch()
        answer = await asyncio.wait_for(answering, TIMEOUT)
        assert answer.responses[0].partitions[0].records
        assert passes[0] <= 2

    try:
        rig.run(scene())
    finally:
        rig.close()


def test_an_append_to_a_partition_that_a_fetch_has_still_to_read_does_not_wake_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its look reads what was appended; another one would read it all once more."""
    disk, _ = _stopped()
    rig = LoopRig(disk, **SETTINGS)
    monkeypatch.setattr(fetch_handler, "LIGHT_BYTES", 0)
    monkeypatch.setattr(fetch_handler, "LOOK_PORTION", 1)
    pause, rest = fetch_handler._Poll.pause, fetch_handler._Poll.rest
    appends, rests = [False], [0]

    async def paused(poll: Any) -> None:
        if appends[0]:
            appends[0] = False
            append(1, 10)
        await pause(poll)

    def rested(poll: Any) -> None:
        rests[0] += 1
        rest(poll)

    def append(index: int, size: int) -> None:
        opened[index].append_records([Record(0, 1_700_000_000_000, b"k", bytes(size))])

    monkeypatch.setattr(fetch_handler._Poll, "pause", paused)
    monkeypatch.setattr(fetch_handler._Poll, "rest", rested)
    opened: list[Partition] = []

    async def scene() -> None:
        services = rig.services
        for index in (0, 1):
            partition = services.partition(TOPIC, index)
            assert partition is not None
            await partition.open_ready()
            opened.append(partition)
            append(index, 10)
        (topic,) = FETCH["topics"]
        parts = [one | {"fetch_offset": 1} for one in topic["partitions"][:2]]
        fields = {"topics": [topic | {"partitions": parts}], "max_wait": 60_000}
        fields["min_bytes"] = 10_000
        answering = asyncio.ensure_future(Client(rig.server).call(1, 11, **FETCH | fields))
        await until(lambda: services.waits.waiting == 1)
        await services.topics.partitions.delete_records({opened[0]: 1})
        appends[0] = True
        services.waits.notify(opened[0].key)  # whose start has moved: it is read again
        await until(lambda: not appends[0] and services.waits.waiting == 1)
        for _ in range(20):  # in which a fetch that was notified would look
            await asyncio.sleep(0)
        assert rests[0] == 2, "it waits again after one look"
        append(0, 10_000)
        answer = await asyncio.wait_for(answering, TIMEOUT)
        for one in answer.responses[0].partitions:
            offsets = [record.offset for record in batches.records(one.records)]
            assert offsets == list(range(1, one.high_watermark))

    try:
        rig.run(scene())
    finally:
        rig.close()

"""`headrace.Admin` and `headrace.SyncAdmin`: one client, to be awaited or called."""

import asyncio
import inspect
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import headrace
from headrace.client.connection import Connection
from headrace.client.groups import GroupDescription
from headrace.wire.codec import encode_response

_S_MAX = 20


def operations(face: type) -> dict[str, Any]:
    return {
        name: found
        for name, found in vars(face).items()
        if not name.startswith("_") and name != "close" and callable(found)
    }


@pytest.fixture
def admin(running: headrace.Broker) -> Iterator[headrace.SyncAdmin]:
    with headrace.SyncAdmin(running.bootstrap_servers) as made:
        yield made


@pytest.fixture
def silent(broker: Any) -> Iterator[Any]:
    """A broker that is asked for metadata (the first time sets `asked_one`) and never answers."""
    broker.asked_one, ended = threading.Event(), threading.Event()

    def never(body: Any) -> None:
        broker.asked_one.set()
        ended.wait(_S_MAX)

    broker.answers[3] = never
    yield broker
    ended.set()


def test_both_faces_offer_the_same() -> None:
    awaited, called = operations(headrace.Admin), operations(headrace.SyncAdmin)
    assert list(awaited) == list(called)
    assert len(awaited) >= 19
    for name, method in awaited.items():
        is_walk = name.startswith("browse_")  # over which one iterates instead
        assert inspect.iscoroutinefunction(method) is not is_walk
        assert not inspect.iscoroutinefunction(called[name])
        assert inspect.signature(method) == inspect.signature(called[name])
        assert next(iter(inspect.signature(method).parameters)) == "self"
        assert "Raises: " in (inspect.getdoc(method) or ""), name


def test_neither_the_client_nor_its_errors_load_the_broker() -> None:
    code = (
        "import sys, headrace; headrace.Admin, headrace.SyncAdmin, headrace.BrokerError;"
        "sys.exit('headrace.broker' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_name_of_the_package_is_there() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Amdin'"):
        # mypy tells when the ignore is unused: then any name would pass in programs of users.
        _ = headrace.Amdin  # type: ignore[attr-defined]  # on purpose


def test_topics_and_settings(admin: headrace.SyncAdmin) -> None:
    assert admin.create_topic("one", 2, configs={"retention.ms": "1000"})
    assert not admin.create_topic("one", exist_ok=True)
    with pytest.raises(headrace.BrokerError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topic("one")
    admin.create_partitions("one", 3)
    assert "one" in admin.list_topics()
    assert len(admin.describe_topics(["one"])["one"].partitions) == 3
    topic = headrace.ResourceType.TOPIC
    admin.incremental_alter_configs(topic, "one", values={"retention.ms": "2000"})
    settings = {entry.name: entry.value for entry in admin.describe_configs(topic, "one")}
    assert settings["retention.ms"] == "2000"
    admin.delete_topic("one")
    assert "one" not in admin.list_topics()


def test_settings_of_groups(admin: headrace.SyncAdmin) -> None:
    kind, name = headrace.ResourceType.GROUP, "share.auto.offset.reset"
    admin.incremental_alter_configs(kind, "g", values={name: "earliest"})
    found = {entry.name: entry.value for entry in admin.describe_configs(kind, "g")}
    assert found[name] == "earliest"


def test_the_cluster(admin: headrace.SyncAdmin, running: headrace.Broker) -> None:
    found = admin.describe_cluster()
    (node,) = found.brokers
    assert str(node.address) == running.bootstrap_servers
    assert (found.controller, bool(found.id)) == (node.id, True)


def test_groups_and_records(admin: headrace.SyncAdmin) -> None:
    admin.create_topic("two", 1)
    assert admin.alter_consumer_group_offsets("g2", {("two", 0): 0}).all() is None
    assert admin.list_consumer_group_offsets("g2") == {("two", 0): headrace.CommittedOffset(0)}
    assert [one.group for one in admin.list_consumer_groups() if one.group == "g2"] == ["g2"]
    assert [one.group for one in admin.list_groups(types=["classic"]) if one.group == "g2"]
    assert isinstance(admin.describe_consumer_groups(["g2"])["g2"], GroupDescription)
    assert admin.remove_members_from_consumer_group("g2") == {}
    end = admin.list_offsets({("two", 0): headrace.OffsetSpec.LATEST})["two", 0]
    assert end.offset == 0
    assert admin.delete_records({("two", 0): 0}) == {("two", 0): 0}
    moved = admin.reset_consumer_group_offsets("g2", {("two", 0): headrace.OffsetSpec.EARLIEST})
    assert moved["two", 0].offset == 0
    assert admin.delete_consumer_groups(["g2"]) == {"g2": None}


def test_many_threads_share_one_client(admin: headrace.SyncAdmin) -> None:
    admin.create_topic("three", 1)
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(5):
                assert "three" in admin.list_topics()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_S_MAX)
    assert failed == []


def test_it_can_be_called_where_a_loop_runs(admin: headrace.SyncAdmin) -> None:
    async def notebook() -> str | None:
        return admin.describe_cluster().id

    assert asyncio.run(notebook()) == admin.describe_cluster().id


def test_all_may_be_awaited_at_once(running: headrace.Broker) -> None:
    async def main() -> None:
        async with headrace.Admin(running.bootstrap_servers) as admin:
            names = [f"four-{number}" for number in range(12)]
            await asyncio.gather(*(admin.create_topic(name, 1) for name in names))
            assert set(names) <= set(await admin.list_topics())
            with pytest.raises(headrace.BrokerError, match="TOPIC_ALREADY_EXISTS"):
                await admin.create_topic(names[0])
            found = await admin.alter_consumer_group_offsets("g4", {("four-1", 0): 7})
            found.check()
            listed = await admin.list_consumer_group_offsets("g4", [("four-1", 0)])
            assert listed == {("four-1", 0): headrace.CommittedOffset(7)}

    asyncio.run(main())


def test_it_serves_one_loop_after_another(running: headrace.Broker) -> None:
    admin = headrace.Admin(running.bootstrap_servers)

    async def ids() -> str | None:
        return (await admin.describe_cluster()).id

    assert asyncio.run(ids()) == asyncio.run(ids())
    asyncio.run(admin.close())


@asynccontextmanager
async def patient(broker: Any) -> AsyncIterator[headrace.Admin]:
    async with headrace.Admin(broker.address, timeout_s=_S_MAX) as admin:
        yield admin


def join_threads() -> None:
    """Wait for the threads of admin clients, less long than a call may take."""
    until = time.monotonic() + _S_MAX / 2
    for thread in threading.enumerate():
        if thread.name.startswith("headrace-admin"):
            thread.join(max(0, until - time.monotonic()))
            assert not thread.is_alive()


def test_a_call_that_is_cancelled_ends_with_its_thread(silent: Any) -> None:
    async def main() -> None:
        async with patient(silent) as admin:
            call = asyncio.create_task(admin.list_topics())
            assert await asyncio.to_thread(silent.asked_one.wait, _S_MAX)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(main())
    join_threads()


def test_calls_that_wait_for_a_thread_can_be_cancelled(silent: Any) -> None:
    async def main() -> None:
        async with patient(silent) as admin:
            calls = [asyncio.create_task(admin.describe_cluster()) for _ in range(10)]
            assert await asyncio.to_thread(silent.asked_one.wait, _S_MAX)
            for call in calls:
                call.cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(one) for one in found} == {asyncio.CancelledError}
            silent.answers[3] = silent._metadata
            assert (await admin.describe_cluster()).brokers, "others go on"

    asyncio.run(main())
    join_threads()


def test_a_call_ends_with_its_time(silent: Any) -> None:
    with (
        headrace.SyncAdmin(silent.address, timeout_s=0.3) as admin,
        pytest.raises(headrace.Unreachable, match=r"describing topics: gave up after 0\.3 s"),
    ):
        admin.list_topics()


def test_all_requests_of_a_call_have_one_time(script: Any) -> None:
    """A reset whose leader moves at first, then its coordinator is away: not twice the time."""
    leader_from: list[float] = []

    def listed(body: Any) -> bytes:
        if not leader_from:  # half a second of the call itself, however late it begins
            leader_from.append(time.monotonic() + 0.5)
        code = 0 if time.monotonic() > leader_from[0] else 6
        one = {"partition_index": 0, "error_code": code, "offset": 4}
        return bytes(encode_response(2, 7, {"topics": [{"name": "t", "partitions": [one]}]}))

    script.answers[2] = listed
    script.coordinator_errors = [15] * 1000
    with (
        headrace.SyncAdmin(script.address, timeout_s=3) as admin,
        pytest.raises(headrace.Unreachable) as told,
    ):
        admin.reset_consumer_group_offsets("g", {("t", 0): headrace.OffsetSpec.LATEST})
    found = re.search(r"setting offsets of group 'g': gave up after (\S+) s", str(told.value))
    assert found is not None
    assert float(found[1]) <= 2.5


def test_closing_ends_calls_of_other_threads(silent: Any) -> None:
    admin = headrace.SyncAdmin(silent.address, timeout_s=_S_MAX)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            admin.list_topics()
        except headrace.ClientError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert silent.asked_one.wait(_S_MAX)
    admin.close()
    thread.join(_S_MAX)
    assert [type(one) for one in raised] == [headrace.Closed]
    with pytest.raises(headrace.Closed, match="make a new one"):
        admin.list_topics()


def test_closing_ends_calls_of_other_tasks(silent: Any) -> None:
    async def main() -> None:
        async with patient(silent) as admin:
            call = asyncio.create_task(admin.list_topics())
            assert await asyncio.to_thread(silent.asked_one.wait, _S_MAX)
        with pytest.raises(headrace.Closed):
            await call
        with pytest.raises(headrace.Closed, match="make a new one"):
            await admin.list_topics()

    asyncio.run(main())
    join_threads()


def test_a_key_press_in_the_middle_leaves_no_half_read_answer(
    running: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.SyncAdmin(running.bootstrap_servers) as admin:
        assert admin.describe_cluster().brokers
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "_frame", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                admin.describe_cluster()
        assert admin.describe_cluster().brokers


def _interrupted(_: object) -> None:
    raise KeyboardInterrupt


def test_what_makes_no_sense_is_told_at_once() -> None:
    for face in (headrace.Admin, headrace.SyncAdmin):
        with pytest.raises(ValueError, match="is not host:port"):
            face("localhost")
        for wrong in (0, -1, float("inf"), float("nan")):
            with pytest.raises(ValueError, match=f"timeout_s is {wrong}; give a number of seconds"):
                face("localhost:9092", timeout_s=wrong)


def test_it_says_what_it_is() -> None:
    with headrace.SyncAdmin("localhost:9092", timeout_s=5) as admin:
        assert repr(admin) == "<headrace.SyncAdmin of localhost:9092, timeout 5 s>"
    assert repr(admin) == "<headrace.SyncAdmin of localhost:9092, timeout 5 s, closed>"
    assert repr(headrace.Admin("h:1")) == "<headrace.Admin of h:1, timeout 30 s>"


def test_one_name_is_not_taken_for_several(admin: headrace.SyncAdmin) -> None:
    """A string is iterable: the groups `a` and `b` would go instead of `ab`."""
    for call in (
        lambda: admin.delete_consumer_groups("ab"),
        lambda: admin.describe_consumer_groups("ab"),
        lambda: admin.list_groups(states="Empty"),
        lambda: admin.list_consumer_groups(types="classic"),
        lambda: admin.remove_members_from_consumer_group("ab", instances="one"),
        lambda: admin.describe_topics("orders"),
        lambda: admin.delete_share_groups("ab"),
        lambda: admin.describe_share_groups("ab"),
        lambda: admin.list_share_groups(states="Empty"),
        lambda: admin.delete_share_group_offsets("ab", "orders"),
        lambda: admin.list_archived_share_records("ab", "orders"),
    ):
        with pytest.raises(TypeError, match=r"is one name, '\w+'; give a list of names"):
            call()
    assert admin.list_topics() is not None  # the client goes on


def test_none_among_names_is_told_at_once(admin: headrace.SyncAdmin) -> None:
    """It cannot be sent: the broker hung up, and was said to be away after thirty seconds."""
    unset: Any = [None]
    for call in (
        lambda: admin.delete_consumer_groups(unset),
        lambda: admin.describe_share_groups(unset),
        lambda: admin.delete_share_groups(["a", *unset]),
        lambda: admin.describe_topics(unset),
        lambda: headrace.SyncShareConsumer("localhost:1", group="g", topics=unset),
    ):
        with pytest.raises(TypeError, match="holds None, which is no name"):
            call()


def test_errors_and_results_can_be_sent_to_another_process(admin: headrace.SyncAdmin) -> None:
    result = admin.delete_consumer_group_offsets("nobody", [("t", 0)])
    copied = pickle.loads(pickle.dumps(result))
    assert repr(copied) == repr(result)
    was, error = result.all(), copied.all()
    assert was is not None
    for name in ("code", "name", "message", "retriable", "args"):
        assert getattr(error, name) == getattr(was, name)


def test_what_no_request_can_hold_is_a_value_error(admin: headrace.SyncAdmin) -> None:
    admin.create_topic("one-of-values", 1)
    for call in (
        lambda: admin.list_offsets({("one-of-values", 0): 2**70}),
        lambda: admin.alter_consumer_group_offsets("g", {("t", 0): 2**63}),
        lambda: admin.delete_consumer_group_offsets("g" * 40_000, [("t", 0)]),
        lambda: admin.describe_consumer_groups(["\udcff"]),
    ):
        with pytest.raises(ValueError, match="a request cannot hold what was given") as raised:
            call()
        assert isinstance(raised.value, headrace.ClientError)

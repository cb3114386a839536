"""Log messages of refused requests: throttled, and the number of those left out is not lost."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker import refusal_log
from headrace.broker.refusal_log import RefusalLog
from headrace.log.memory_disk import VirtualClock
from headrace.wire import codec

JOIN = 11


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def refusals(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> RefusalLog:
    caplog.set_level(logging.INFO, "headrace.broker")
    return RefusalLog(clock)


def refuse(refusals: RefusalLog, client: str = "m1", times: int = 1) -> None:
    for _ in range(times):
        refusals.refused("group g", client, "fenced", level=logging.WARNING)


def test_what_was_left_out_is_reported_when_the_minute_is_over(
    refusals: RefusalLog, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(refusals, times=4)
    assert caplog.messages == ["group g: refused m1: fenced"]
    clock.advance(59_000)
    refusals.report()
    assert len(caplog.messages) == 1, "the minute is not over"
    clock.advance(1_000)
    refusals.report()
    assert caplog.messages[1:] == ["group g: refused m1 3 more times: fenced"]
    assert caplog.records[-1].levelno == logging.WARNING
    refusals.report()
    refuse(refusals)
    assert caplog.messages[2:] == ["group g: refused m1: fenced"]


def test_a_running_broker_reports_without_a_further_refusal(
    refusals: RefusalLog, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        refusals.start()
        refuse(refusals, times=2)
        await asyncio.sleep(0)
        clock.advance(60_000)
        refusals.work.end_pauses()
        for _ in range(5):
            await asyncio.sleep(0)
        assert caplog.messages[1:] == ["group g: refused m1 1 more times: fenced"]
        refuse(refusals, "m2", times=3)
        await refusals.close()
        assert caplog.messages[3:] == ["group g: refused m2 2 more times: fenced"]

    asyncio.run(run())


def test_a_forgotten_refusal_is_reported(
    refusals: RefusalLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal_log, "_KEYS_MAX", 2)
    refuse(refusals, "m1", times=6)
    refuse(refusals, "m2")
    refuse(refusals, "m3")
    assert "group g: refused m1 5 more times: fenced" in caplog.messages


def test_each_refused_heartbeat_and_join_is_logged_with_its_rule(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Malformed requests, which end a stock client, are warnings."""
    caplog.set_level(logging.INFO, "headrace.broker")
    consumer = {"group_id": "c", "member_id": "m", "member_epoch": 0, "instance_id": None,
                "rack_id": None, "rebalance_timeout": 1000, "subscribed_topic_names": ("orders",),
                "subscribed_topic_regex": None, "server_assignor": None,
                "topic_partitions": ()}  # fmt: skip
    share = {"group_id": "s", "member_id": "m", "member_epoch": 7, "rack_id": None,
             "subscribed_topic_names": ("orders",)}  # fmt: skip
    malformed = client.wire.call(68, 1, **consumer | {"rebalance_timeout": -1})
    unknown = client.wire.call(68, 1, **consumer | {"member_epoch": 7})
    shared = client.wire.call(76, 1, **share)
    joined = client.join(group_id="j", protocols=())
    assert 0 not in {one.error_code for one in (malformed, unknown, shared, joined)}
    lines = [one for one in caplog.records if ": refused " in one.getMessage()]
    expected = [
        ("group c: refused m /127.0.0.1", malformed.error_message, logging.WARNING),
        ("group c: refused m /127.0.0.1", unknown.error_message, logging.INFO),
        ("group s: refused m /127.0.0.1", shared.error_message, logging.INFO),
        ("group j: refused ", "", logging.INFO),
    ]
    assert len(lines) == len(expected)
    for line, (begin, rule, level) in zip(lines, expected, strict=True):
        assert line.getMessage().startswith(begin)
        assert line.getMessage().endswith(rule)
        assert line.levelno == level


def test_each_refused_request_of_a_classic_member_is_logged_with_its_rule(
    connect: Callable[[], Any],
    client: Any,
    group_client: Callable[[Any], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A member that is to join again as its group rebalances is not refused for a fault."""
    caplog.set_level(logging.INFO, "headrace.broker")
    client.create_topic("orders")
    one = client.stable()
    assert client.beat("stranger", 1) == 25
    assert client.beat(one, 7) == 22
    assert client.sync(one, 8).error_code == 22
    assert client.sync(one, 1, protocol_type=None).error_code == 23
    assert client.commit(("orders", 0, 5), member=one, generation=9)[0][-1] == 22
    left = client.wire.call(13, 5, group_id="g", members=[
        {"member_id": f"gone{n}", "group_instance_id": None, "reason": None} for n in range(3)
    ])  # fmt: skip
    assert [member.error_code for member in left.members] == [25, 25, 25]
    assert client.wire.call(13, 5, group_id="", members=()).error_code == 24
    second = group_client(connect())
    joining = second.joining(second.join().member_id)
    second.wire.send(JOIN, 9, bytes(codec.encode_request(JOIN, 9, joining)))
    client.beat_until(27, one, 1)
    lines = [one for one in caplog.messages if ": refused " in one]
    assert lines == [
        "group g: refused stranger /127.0.0.1: 'stranger' is no member of group g; rejoin.",
        f"group g: refused {one} /127.0.0.1: Group g is in generation 1, not 7.",
        f"group g: refused {one} /127.0.0.1: Group g is in generation 1, not 8.",
        f"group g: refused {one} /127.0.0.1: ProtocolType and ProtocolName can't be null.",
        f"group g: refused {one} /127.0.0.1: Group g is in generation 1, not 9.",
        "group g: refused gone0 /127.0.0.1: 'gone0' is no member of group g; rejoin.",
        "group : refused - /127.0.0.1: The group id is empty.",
    ]

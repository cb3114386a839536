"""`headrace offsets forecast`: when offsets expire, why then, and what would stop it."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.cli.offsets_journal import GroupOnWire
from headrace.client.offset_expiry import offset_expiry
from headrace.wire.batches import Record

Command = Callable[..., Any]
Acting = Callable[[headrace.Broker], Any]
WEEK_MS = 7 * 86_400_000


@pytest.fixture
def forecast(broker: headrace.Broker, offline: Command) -> Command:
    """Runs `headrace offsets forecast ...`."""
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return lambda *arguments: offline("offsets", "forecast", *servers, *arguments)


def told(ended: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The group, and what is told of each topic."""
    assert (ended.code, ended.err) == (0, "")
    about, *offsets = [json.loads(line) for line in ended.text.splitlines()]
    return about, {one["topic"]: one for one in offsets}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_active_group(member: Any, forecast: Command) -> None:
    before = now_ms() - 2  # the broker's clock may be a millisecond or two apart
    member.join("orders")
    member.commit("orders", 5)
    member.commit("bills", 7)
    about, offsets = told(forecast("g", "--json"))
    assert (about["state"], about["kind"], about["removed"]) == (
        "Stable", "classic protocol, type consumer", None,
    )  # fmt: skip
    assert (about["retention_minutes"], about["retention_source"]) == (10_080, "the broker's")
    assert about["check_interval_ms"] == 600_000
    kept, due = offsets["orders"], offsets["bills"]
    assert (kept["expires"], kept["kept"], kept["stopped_by"]) == (None, "subscribed", [])
    assert kept["because"] == "subscribed by an active group"
    assert (due["base"], due["kept"], due["offset"]) == ("commit", None, 7)
    assert before <= due["expires_timestamp"] - WEEK_MS <= now_ms() + 2
    assert 0 < due["expires_in_ms"] <= WEEK_MS
    assert due["stopped_by"] == ["a member subscribes to the topic", "a commit to the partition"]


def test_empty_group_and_a_retention_of_its_own(
    broker: headrace.Broker, member: Any, forecast: Command, offline: Command
) -> None:
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    member.join("orders")
    member.commit("orders", 5)
    before = now_ms() - 2  # the broker's clock may be a millisecond or two apart
    member.leave()
    after = now_ms() + 2
    alter = ("--alter", "--group", "g", "--add-config", "offsets.retention.minutes=90")
    assert offline("configs", *servers, *alter).code == 0
    about, offsets = told(forecast("g", "--json"))
    assert (about["state"], about["retention_source"]) == ("Empty", "set for the group")
    due = offsets["orders"]
    assert due["base"] == "empty"
    assert before <= due["expires_timestamp"] - 90 * 60_000 <= after
    assert due["stopped_by"] == ["a member joins"]
    assert about["removed_timestamp"] == due["expires_timestamp"]
    head, settings, blank, columns, row, _, end = forecast("g").text.splitlines()
    assert head == f"Group g is Empty since {due['since']}; classic protocol, type consumer."
    assert settings == (
        "Offsets are kept for 1 h 30 min (offsets.retention.minutes=90, set for the group); they go"
        " with the first check at the time told or later, one every 10 min"
        " (offsets.retention.check.interval.ms)."
    )
    assert blank == ""
    assert columns.split("  ")[0] == "TOPIC"
    assert row.startswith(f"orders  0          5       {due['expires']}  1 h 29 min  the group is")
    assert row.endswith(f" empty since {due['since']}  a member joins")
    assert end == (
        f"Group g is removed with its last offset, {due['expires']}, unless a member joins."
    )


def test_simple_group_and_a_commit_with_a_retention_of_its_own(
    member: Any, forecast: Command
) -> None:
    member.commit("orders", 5)
    member.commit("bills", 6, retention_ms=0)
    about, offsets = told(forecast("g", "--json"))
    assert about["kind"] == "simple: committed to, never joined"
    assert offsets["orders"]["base"] == "commit"
    assert offsets["orders"]["stopped_by"] == ["a member joins", "a commit to the partition"]
    assert (offsets["bills"]["base"], offsets["bills"]["expires_in_ms"]) == ("own", 0)
    assert about["removed"] == offsets["orders"]["expires"]
    lines = forecast("g").text.splitlines()
    assert lines[-1].endswith(", unless a member joins or it is committed again.")
    row = next(line for line in lines if line.startswith("bills"))
    assert "  next check  the commit of " in row


def test_rebalancing_group_keeps_everything(
    broker: headrace.Broker, member: Any, forecast: Command, acting: Acting
) -> None:
    member.join("orders")
    member.commit("bills", 5)
    second = acting(broker)
    waiting = threading.Thread(target=second.join, args=("orders",))
    waiting.start()
    deadline = time.monotonic() + 20
    while (found := told(forecast("g", "--json")))[0]["state"] != "PreparingRebalance":
        assert time.monotonic() < deadline, found
    assert found[1]["bills"]["kept"] == "rebalancing"
    assert found[1]["bills"]["because"] == "the group is rebalancing"
    member.leave()  # so that the other is answered
    waiting.join()


def test_group_of_another_protocol_type(member: Any, forecast: Command) -> None:
    member.join("orders", kind="connect")
    member.commit("orders", 5)
    kept = told(forecast("g", "--json"))[1]["orders"]
    assert kept["kept"] == "other protocol"
    assert kept["because"].endswith("are not known (protocol type connect)")


def test_group_of_the_new_protocol(member: Any, forecast: Command) -> None:
    member.beat(0, "orders")
    about, offsets = told(forecast("g", "--json"))
    assert (about["kind"], offsets) == ("consumer protocol", {})
    member.beat(-1)
    member.commit("orders", 5)
    about, offsets = told(forecast("g", "--json"))
    assert (about["state"], offsets["orders"]["base"]) == ("Empty", "empty")
    assert about["empty_since"] == offsets["orders"]["since"]


def test_group_without_offsets_goes_with_the_next_check(member: Any, forecast: Command) -> None:
    member.join("orders")
    member.leave()
    lines = forecast("g").text.splitlines()
    assert lines[-1] == (
        "Group g has no offsets: the next check removes it, unless a member joins."
    )
    assert len(lines) == 4


def test_unknown_group_is_one_line(member: Any, forecast: Command) -> None:
    ended = forecast("other")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == (
        "headrace offsets forecast: group other does not exist; headrace offsets history tells"
        " what was\n"
    )


def test_nothing_is_foretold_from_half_a_journal(
    member: Any, forecast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = Record(7, 0, b"\x00\x63\x00\x01g", b"")
    monkeypatch.setattr(GroupOnWire, "read", lambda source: iter([future]))
    ended = forecast("g")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith(
        "headrace offsets forecast: record 7 of __consumer_offsets-0 (type 99) cannot be read: "
    )
    assert ended.err.endswith("; a forecast without it could be wrong\n")


def test_the_broker_foretells_the_same_over_the_wire(member: Any, forecast: Command) -> None:
    def both() -> tuple[dict[str, int | None], dict[str, int | None]]:
        wire = offset_expiry(member.cluster, "g")
        told_now = told(forecast("g", "--json"))[1]
        return (
            {topic: one.expires_at for (topic, _), one in wire.items()},
            {topic: one["expires_timestamp"] for topic, one in told_now.items()},
        )

    member.join("orders")
    member.commit("orders", 5)
    member.commit("bills", 7)
    active, printed = both()
    assert active == printed
    assert active["orders"] is None
    assert active["bills"] is not None
    reasons = {topic: one.reason for (topic, _), one in offset_expiry(member.cluster, "g").items()}
    assert reasons["orders"] == "subscribed by an active group"
    member.leave()
    empty, printed = both()
    assert empty == printed
    assert None not in empty.values()

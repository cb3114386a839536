"""`headrace offsets history`: every way in which an offset moves, told with who did it."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace
from headrace.cli.offsets_journal import Progress
from headrace.client.configs import set_group_configs
from headrace.client.connection import Cluster
from headrace.client.group_offsets import alter_group_offsets, delete_group_offsets
from headrace.client.groups import delete_groups
from headrace.client.records import read_records
from headrace.client.topics import add_partitions, create_topic, delete_topic
from headrace.log.group_history import GroupRecords
from headrace.wire.batches import CorruptBatch, Record

Command = Callable[..., Any]
Acting = Callable[[headrace.Broker], Any]


@pytest.fixture
def history(broker: headrace.Broker, offline: Command) -> Command:
    """Runs `headrace offsets history ...`."""
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return lambda *arguments: offline("offsets", "history", *servers, *arguments)


def objects(ended: Any) -> list[dict[str, Any]]:
    assert (ended.code, ended.err) == (0, "")
    return [json.loads(line) for line in ended.text.splitlines()]


def moves(ended: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(one[name] for name in ("topic", "from", "to", "cause", "by", "rewound"))
        for one in objects(ended)
        if one["type"] == "offset"
    ]


def test_every_cause_is_told_with_who_asked(member: Any, history: Command) -> None:
    cluster = member.cluster
    member.join("orders")
    told, client = f"{member.id} /127.0.0.1", "tester /127.0.0.1"
    member.commit("orders", 5)
    member.commit("bills", 7)
    member.leave()
    alter_group_offsets(cluster, "g", {("orders", 0): 2}).check()
    delete_group_offsets(cluster, "g", [("bills", 0)]).check()
    member.commit("bills", 8)
    delete_topic(cluster, "bills")
    assert delete_groups(cluster, ["g"]) == {"g": None}
    assert moves(history("g", "--json")) == [
        ("orders", None, 5, "commit", told, 0),
        ("bills", None, 7, "commit", told, 0),
        ("orders", 5, 2, "reset", client, 3),
        ("bills", 7, None, "deletion", client, 0),
        ("bills", None, 8, "reset", client, 0),
        ("bills", 8, None, "topic deletion", client, 0),
        ("orders", 2, None, "group deletion", client, 0),
    ]
    found = [one for one in objects(history("g", "--json")) if one["type"] != "offset"]
    assert [one["type"] for one in found] == ["journal", "generation", "empty", "deletion"]
    assert (found[0]["complete"], found[0]["complete_since"]) == (True, None)
    assert [one["member_id"] for one in found[1]["members"]] == [told.split()[0]]
    assert (found[3]["cause"], found[3]["by"]) == ("group deletion", client)


def test_what_a_reset_policy_seeded_is_told_with_the_rule(member: Any, history: Command) -> None:
    cluster, told = member.cluster, "tester /127.0.0.1"
    set_group_configs(cluster, "g", {"auto.offset.reset": "safe_latest"})
    set_group_configs(cluster, "g", {"offset.reset.strategy.offset-out-of-range": "nearest"})
    member.join("orders")
    asked = {"group_id": "g", "topics": ({"name": "orders", "partition_indexes": (0,)},)}
    fields = {"groups": (asked,), "require_stable": True}
    assert cluster.ask(9, 8, fields).groups[0].topics[0].partitions[0].committed_offset == 0
    add_partitions(cluster, "orders", 2)
    member.commit("orders", 5)
    assert cluster.ask(9, 8, fields).groups[0].topics[0].partitions[0].committed_offset == 0
    by_member = f"{member.id} /127.0.0.1"
    assert moves(history("g", "--json")) == [
        ("orders", None, 0, "seeded", f"safe_latest: new partition ({told})", 0),
        ("orders", None, 0, "seeded", "safe_latest: new partition", 0),
        ("orders", 0, 5, "commit", by_member, 0),
        ("orders", 5, 0, "seeded", f"nearest: outside the log ({told})", 5),
    ]
    row = history("g").text.splitlines()[-1].split()
    assert row[1:7] == ["orders", "0", "5", "0", "seeded", "nearest:"]


def test_expiry_is_told(acting: Acting, offline: Command) -> None:
    with headrace.Broker(settings={"offsets.retention.check.interval.ms": 20}) as broker:
        member = acting(broker)
        create_topic(member.cluster, "orders", 1)
        member.commit("orders", 5, retention_ms=0)
        asked = ("offsets", "history", "--bootstrap-server", broker.bootstrap_servers, "g")

        def until_removed(times: int) -> str:
            deadline = time.monotonic() + 60
            while (text := str(offline(*asked).text)).count("was removed") < times:
                assert time.monotonic() < deadline, text
            return text.splitlines()[-1]

        assert until_removed(1).endswith("  the group was removed (expiry)")
        assert moves(offline(*asked, "--json"))[1:] == [("orders", 5, None, "expiry", None, 0)]
        member.beat(0, "orders")
        member.beat(-1)
        assert until_removed(2).endswith("  the group was removed (expiry)")


def test_groups_of_the_new_protocol(member: Any, history: Command) -> None:
    member.beat(0, "orders")
    member.beat(-1)
    alter_group_offsets(member.cluster, "g", {("orders", 0): 2}).check()
    assert moves(history("g", "--json")) == [
        ("orders", None, 2, "reset", "tester /127.0.0.1", 0),
    ]
    lines = history("g").text.splitlines()
    came, epoch, went, empty, _ = (line.split("  ", 1)[1] for line in lines[3:])
    assert came == "member came: member-848 /127.0.0.1 (tester)"
    assert epoch.endswith(", 1 member")
    assert went == "member went: member-848 /127.0.0.1 (tester)"
    assert empty.startswith("the last member went")


def test_text_for_people(member: Any, history: Command) -> None:
    member.commit("orders", 5)
    member.commit("orders", 5)
    member.commit("orders", 3, metadata="again")
    first, second, blank, columns, *rows = history("g").text.splitlines()
    assert first == "Group g in __consumer_offsets-0, complete: nothing was compacted away yet."
    assert second == "1 commit of what was committed already left out; --all shows them."
    assert blank == ""
    assert columns.split() == ["TIME", "TOPIC", "PARTITION", "FROM", "TO", "CAUSE", "BY", "NOTE"]
    assert [row.split()[1:] for row in rows] == [
        ["orders", "0", "-", "5", "commit", "tester", "/127.0.0.1"],
        [
            "orders", "0", "5", "3", "commit", "tester", "/127.0.0.1",
            "rewound", "by", "2,", "metadata", '"again"',
        ],
    ]  # fmt: skip
    assert [row.index("commit") for row in rows] == [columns.index("CAUSE")] * 2
    assert len(history("g", "--all").text.splitlines()) == 6


def test_names_of_clients_do_nothing_to_a_terminal(
    broker: headrace.Broker, member: Any, history: Command
) -> None:
    with Cluster(broker.bootstrap_servers, client_id="evil\x1b[2J\nüber") as cluster:
        alter_group_offsets(cluster, "g", {("orders", 0): 2}).check()
    row = history("g").text.splitlines()[-1]
    assert row.endswith("  commit  evil\\x1b[2J\\nüber /127.0.0.1")
    assert moves(history("g", "--json"))[0][4] == "evil\x1b[2J\nüber /127.0.0.1"


def test_only_what_is_asked_for(member: Any, history: Command) -> None:
    member.join("orders")
    member.commit("orders", 5)
    member.commit("bills", 6)
    assert [one[0] for one in moves(history("g", "--json", "--topic", "bills"))] == ["bills"]
    assert len(objects(history("g", "--json", "--topic", "bills"))) == 2  # no word of members
    assert moves(history("g", "--json", "--topic", "bills:1,2")) == []
    both = ("--topic", "bills:0", "--topic", "orders")
    assert [one[0] for one in moves(history("g", "--json", *both))] == ["orders", "bills"]
    assert [one[0] for one in moves(history("g", "--json", "--limit", "1"))] == ["bills"]
    assert len(moves(history("g", "--json", "--since", "1h"))) == 2
    assert moves(history("g", "--json", "--since", "0s")) == []
    at = next(one for one in objects(history("g", "--json")) if one["type"] == "offset")["time"]
    assert len(moves(history("g", "--json", "--since", at))) == 2


def test_what_makes_no_sense_is_one_line(member: Any, history: Command) -> None:
    member.commit("orders", 5)
    for arguments, told in (
        (("other",), "group other is unknown: __consumer_offsets-0 has no record of it"),
        (("g", "--topic", "orders:x"), "Invalid partition 'x' specified in topic arg 'orders:x'"),
        (("g", "--since", "soon"), "--since soon: write how long ago, as 90m, 2h or 7d"),
        (("g", "--command-config", "/nowhere"), "/nowhere cannot be read"),
    ):
        ended = history(*arguments)
        assert (ended.code, ended.text) == (1, "")
        assert ended.err.startswith(f"headrace offsets history: {told}")
        assert ended.err.count("\n") == 1


def test_damage_that_a_broker_sends_is_one_line(
    member: Any, history: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(records: GroupRecords, data: memoryview) -> Iterator[Record]:
        raise CorruptBatch("checksum of the batch of offset 0 is wrong")

    member.commit("orders", 5)
    monkeypatch.setattr(GroupRecords, "read", damaged)
    ended = history("g")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == (
        "headrace offsets history: __consumer_offsets-0: checksum of the batch of offset 0 is"
        " wrong; headrace log dump tells what is damaged\n"
    )


def test_files_of_a_broker_that_does_not_run(
    acting: Acting, offline: Command, tmp_path: Path
) -> None:
    settings = {"offsets.topic.num.partitions": 3, "offsets.topic.segment.bytes": 1024}
    with headrace.Broker(tmp_path, settings=settings) as broker:
        member = acting(broker)
        create_topic(member.cluster, "orders", 1)
        for offset in range(30):
            member.commit("orders", offset)
        live = offline("offsets", "history", "--bootstrap-server", broker.bootstrap_servers, "g")
    asked = ("offsets", "history", "--data-dir", str(tmp_path), "g")
    ended = offline(*asked)
    assert (ended.code, ended.err, ended.text) == (0, "", live.text)
    first, *_ = sorted((tmp_path / "__consumer_offsets-1").glob("*.log"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    ended = offline(*asked, "--json")
    assert ended.code == 0
    assert ended.err.startswith(f"headrace offsets history: {first}: at byte ")
    about, *found = [json.loads(line) for line in ended.text.splitlines()]
    assert (about["complete"], len(found)) == (False, 29)
    ended = offline("offsets", "history", "--data-dir", str(first.parent), "g")
    assert ended.code == 1
    assert "-1 has no folder __consumer_offsets-0; give the data folder of a broker" in ended.err


COMPACTING = {
    "offsets.topic.segment.bytes": 1024,
    "log.cleaner.backoff.ms": 1,
    "log.cleaner.min.cleanable.ratio": 0.01,
}


def until_compaction_is_at_work(cluster: Cluster) -> None:
    """Return once another log was compacted: by then it has looked at all of them."""
    settings = {"cleanup.policy": "compact", "segment.bytes": "1024"}
    create_topic(cluster, "compacted", 1, configs=settings)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    deadline, sent = time.monotonic() + 60, 0
    while sent == len(list(read_records(cluster, "compacted", 0))):
        assert time.monotonic() < deadline, "nothing is compacted"
        for _ in range(20):
            producer.produce("compacted", b"x" * 100, b"key")
            assert producer.flush(20) == 0
            sent += 1


def test_compaction_takes_moves_away_unless_it_is_told_to_wait(
    acting: Acting, offline: Command
) -> None:
    with headrace.Broker(settings=COMPACTING) as broker:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        member = acting(broker)
        create_topic(member.cluster, "orders", 1)
        lag = ("--topic", "__consumer_offsets", "--alter", "--add-config")
        day = "min.compaction.lag.ms=86400000"
        assert offline("configs", *servers, *lag, day).code == 0

        def history() -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
            ended = offline("offsets", "history", *servers, "g", "--json")
            return objects(ended)[0], moves(ended)

        for offset in range(60):
            member.commit("orders", offset)
        until_compaction_is_at_work(member.cluster)
        about, found = history()
        assert about["complete"]
        assert [one[2] for one in found] == list(range(60))
        assert offline("configs", *servers, *lag, "min.compaction.lag.ms=0").code == 0
        deadline = time.monotonic() + 60
        while (about := history()[0])["complete"]:
            assert time.monotonic() < deadline, "nothing is compacted"
            member.commit("orders", 60)
        assert about["complete_since"] is not None
        first = history()[1][0]
        assert first[1] is None
        assert first[2] > 0
        text = offline("offsets", "history", *servers, "g").text
        assert "; older moves may have been compacted away." in text.splitlines()[0]
        assert next(line for line in text.splitlines() if "orders" in line).split()[3] == "?"


class Terminal:
    """Standard error as a person sees it."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_progress_of_a_long_read_is_told_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress(200)
    progress.tell(50)
    progress.end()
    assert terminal.text == ""
    now = 1.5
    progress.tell(100)
    progress.end()
    assert terminal.text == "\rreading the journal: 50 %\r\033[K"

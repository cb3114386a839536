"""Consumer groups beside Apache Kafka 4.3.1: commits, a million offsets, a thousand members.

    python bench/groups.py [--quick] [--only PART]

Both brokers run on loopback with their own defaults (Kafka: `__consumer_offsets` of 50 partitions;
Headrace: of one) and get the same bytes from the same client (`group_client.py`):

- commits: members of real generations commit one partition a request, as small consumers do: one
  connection that waits for each answer; one that is up to 100 requests ahead; eight of those. Each
  connection is another group, so Kafka spreads them over its partitions. Rounds in turn. Headrace
  journals the last of commits that overtake each other; `commit_rate_apart` is of commits that do
  not, since each has other metadata than the one before.
- offsets: 1,000 groups commit 1,000 partitions each, in requests of 1,000. The broker is stopped
  and launched: from the launch until an offset of every group was fetched. All are committed
  again with a retention of a millisecond (version 4), the broker is launched with
  `offsets.retention.check.interval.ms` of a few seconds, and a client asks for one offset every
  millisecond while they expire: the longest it waited.
- members: 1,000 connections join one group and are assigned.

With --quick the first two, of 50,000 offsets, in one short round. The last line is one JSON object:
`expiry_longest_pause_ms`, `expiry_sweep_s`, `recovery_s`, `join_1000_s` and `bytes_per_offset` are
Headrace's own; all else, and keys that end in `_ratio`, are Headrace / Kafka.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass

from brokers import BROKERS, Broker, prepared
from group_client import (
    COMMIT,
    COMMIT_VERSION,
    CREATE,
    EXPIRING_VERSION,
    OFFSET,
    Committer,
    Connection,
    commit_frame,
    commit_rate,
    commit_seconds,
    decoded,
    fetch_frame,
    fetched,
    join_seconds,
)  # fmt: skip

_CONNECTIONS = 8
_WINDOW = 100
_TOPICS = 10
_PARTITIONS = 100
_GROUPS_WATCHED = 100
_FILL_AHEAD = 4
_SWEEP_SECONDS_MAX = 300
_PROBE_SECONDS = 0.001
_BEFORE_SECONDS = 0.5

Figures = dict[str, float]


@dataclass(frozen=True)
class Work:
    """How much is done."""

    rounds: int
    warm_up_seconds: float
    seconds: float
    groups: int
    members: int
    settle_seconds: float
    check_ms: int


QUICK = Work(
    rounds=1, warm_up_seconds=0.5, seconds=0.5, groups=50, members=200, settle_seconds=0.3,
    check_ms=3_000,
)  # fmt: skip
FULL = Work(
    rounds=3, warm_up_seconds=5, seconds=5, groups=1_000, members=1_000, settle_seconds=2,
    check_ms=10_000,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two parts, a tenth of them, under a minute"
    )
    parser.add_argument("--only", choices=PARTS, help="one part")
    arguments = parser.parse_args()
    work = QUICK if arguments.quick else FULL
    told: Figures = {}
    for name in [arguments.only] if arguments.only else QUICK_PARTS if arguments.quick else PARTS:
        told |= PARTS[name](work)
    print(json.dumps({key: round(value, 4) for key, value in told.items()}))


def _found(part: str, name: str, figures: Figures) -> Figures:
    shown = ", ".join(f"{figure} {value:,.4g}" for figure, value in figures.items())
    print(f"{part}, {name}: {shown}", flush=True)
    return figures


def _create(broker: Broker, topics: dict[str, int]) -> None:
    connection = Connection(broker)
    fields = {"replication_factor": 1, "assignments": [], "configs": []}
    asked = [{"name": name, "num_partitions": count} | fields for name, count in topics.items()]
    connection.ask(CREATE, 5, topics=asked, timeout=60_000, validate_only=False)
    connection.close()


# ---- commits


def _commits(work: Work) -> Figures:
    rounds: dict[str, list[Figures]] = {name: [] for name in BROKERS}
    for number in range(work.rounds):
        for name in sorted(BROKERS, reverse=bool(number % 2)):
            with prepared(BROKERS[name]) as broker:
                broker.launch()
                try:
                    rounds[name].append(_found("commits", name, _commit(broker, work)))
                finally:
                    broker.stop()
    ratios = {}
    for figure in rounds["headrace"][0]:
        ours, theirs = (
            statistics.median(one[figure] for one in rounds[name]) for name in ("headrace", "kafka")
        )
        ratios[figure] = ours / theirs
    return ratios


def _commit(broker: Broker, work: Work) -> Figures:
    """Commits/s and milliseconds."""
    _create(broker, {"one": 1})
    many = [
        Committer(broker, f"group-{number}", "one", window=_WINDOW)
        for number in range(_CONNECTIONS)
    ]  # fmt: skip
    commit_rate(many, _WINDOW, work.warm_up_seconds)
    figures = {}
    cpu = broker.cpu_seconds()
    figures["commit_rate_8"] = commit_rate(many, _WINDOW, work.seconds)
    cpu = broker.cpu_seconds() - cpu
    figures["commit_cpu"] = 1e6 * cpu / (figures["commit_rate_8"] * work.seconds)
    commit_rate(many[:1], _WINDOW, work.warm_up_seconds)
    figures["commit_rate"] = commit_rate(many[:1], _WINDOW, work.seconds)
    apart = Committer(broker, "apart", "one", window=_WINDOW, alike=False)
    commit_rate([apart], _WINDOW, work.warm_up_seconds)
    figures["commit_rate_apart"] = commit_rate([apart], _WINDOW, work.seconds)
    commit_seconds(many[0], work.warm_up_seconds)
    took = commit_seconds(many[0], work.seconds)
    figures["commit_p50"] = 1000 * statistics.median(took)
    figures["commit_p99"] = 1000 * statistics.quantiles(took, n=100)[98]
    for one in (*many, apart):
        one.connection.close()
    return figures


# ---- offsets


def _offsets(work: Work) -> Figures:
    ours, theirs = (
        _found("offsets", name, _store(BROKERS[name], work)) for name in ("headrace", "kafka")
    )
    told = {key: ours[key] for key in ("expiry_longest_pause_ms", "expiry_sweep_s", "recovery_s")}
    told["bytes_per_offset"] = ours["bytes_per_offset"]
    told |= {f"{key}_ratio": ours[key] / theirs[key] for key in told if key != "bytes_per_offset"}
    return told | {key: ours[key] / theirs[key] for key in ("bulk_rate", "memory_mb")}


# A million offsets take more memory than groups get by default; Kafka ignores the setting.
_ROOM = {"headrace.groups.max.bytes": str(1 << 30)}


def _store(kind: type[Broker], work: Work) -> Figures:
    """Seconds, bytes, MB, offsets/s."""
    figures: Figures = {}
    names = [f"many-{number:06}" for number in range(work.groups)]
    count = work.groups * _TOPICS * _PARTITIONS
    with prepared(kind) as broker:
        broker.launch(_ROOM)
        _create(broker, {f"topic-{number}": _PARTITIONS for number in range(_TOPICS)})
        _find(broker, names)
        time.sleep(work.settle_seconds)
        idle_mb = broker.resident_mb()
        figures["bulk_rate"] = count / _fill(broker, names, None)
        time.sleep(work.settle_seconds)
        figures["bytes_per_offset_live"] = 1e6 * (broker.resident_mb() - idle_mb) / count
        broker.stop()
        began = time.perf_counter()
        broker.launch(_ROOM)
        _find(broker, names)
        figures["recovery_s"] = time.perf_counter() - began
        time.sleep(work.settle_seconds)
        figures["memory_mb"] = broker.resident_mb()
        figures["bytes_per_offset"] = 1e6 * (figures["memory_mb"] - idle_mb) / count
        _fill(broker, names, 1)
        broker.stop()
        broker.launch(_ROOM | {"offsets.retention.check.interval.ms": str(work.check_ms)})
        watched = names[:: max(1, len(names) // _GROUPS_WATCHED)]
        _find(broker, watched)
        figures |= _watch_expiry(broker, watched)
        broker.stop()
    return figures


def _find(broker: Broker, names: list[str], topic: str = "topic-0") -> None:
    """Return once every group has its coordinator and an offset of it was fetched."""
    connection = Connection(broker)
    for name in names:
        connection.find_coordinator(name, topic)
    connection.close()


def _fill(broker: Broker, names: list[str], retention_ms: int | None) -> float:
    """Seconds that it takes to commit an offset of every partition in every group."""
    connection = Connection(broker)
    topics = {f"topic-{number}": range(_PARTITIONS) for number in range(_TOPICS)}
    request = commit_frame(names[0], topics, retention_ms=retention_ms)
    at = request.index(names[0].encode())
    began, wanted = time.perf_counter(), b""
    for number in range(len(names) + _FILL_AHEAD):
        if number < len(names):
            name = names[number].encode()
            request[at : at + len(name)] = name
            connection.socket.sendall(request)
        if number >= _FILL_AHEAD:
            answer = connection.receive()
            if not wanted:
                version = COMMIT_VERSION if retention_ms is None else EXPIRING_VERSION
                for topic in decoded(COMMIT, version, answer).topics:
                    assert not any(one.error_code for one in topic.partitions), topic
                wanted = answer
            assert answer == wanted, "a commit was refused"
    took = time.perf_counter() - began
    connection.close()
    return took


def _watch_expiry(broker: Broker, names: list[str]) -> Figures:
    """Ask for one offset every millisecond until all groups that are watched have none."""
    connection = Connection(broker)
    watched = [fetch_frame(name, "topic-0") for name in names]
    before = connection.exchange(watched[0])
    assert fetched(before) == (0, OFFSET), "an offset is gone before the sweep"
    waits: list[tuple[float, float]] = []
    gone_at: list[float] = []
    left = deque(watched)
    until = time.perf_counter() + _SWEEP_SECONDS_MAX
    while left and (asked := time.perf_counter()) < until:
        answer = connection.exchange(left[0])
        waits.append((asked, 1000 * (time.perf_counter() - asked)))
        if fetched(answer) == (0, OFFSET):
            left.rotate()
        else:
            left.popleft()
            gone_at.append(asked)
        time.sleep(max(0.0, asked + _PROBE_SECONDS - time.perf_counter()))
    connection.close()
    if left:
        sys.exit(f"{len(left)} of {len(watched)} groups still have offsets")
    # What comes first may take its time before a group that is watched has its turn.
    since = gone_at[0] - _BEFORE_SECONDS
    return {
        "expiry_sweep_s": gone_at[-1] - gone_at[0],
        "expiry_longest_pause_ms": max(wait for at, wait in waits if at >= since),
        "idle_longest_pause_ms": max((wait for at, wait in waits if at < since), default=0.0),
    }


# ---- members


def _members(work: Work) -> Figures:
    seconds = {}
    for name, kind in BROKERS.items():
        with prepared(kind) as broker:
            broker.launch({"group.max.size": "1000"})
            try:
                _create(broker, {"one": 1})
                _find(broker, ["warm"], "one")
                asyncio.run(join_seconds(broker, "warm", work.members // 10))
                _find(broker, ["members"], "one")
                taken = asyncio.run(join_seconds(broker, "members", work.members))
                seconds[name] = _found("members", name, {"join_1000_s": taken})["join_1000_s"]
            finally:
                broker.stop()
    ours, theirs = seconds["headrace"], seconds["kafka"]
    return {"join_1000_s": ours, "join_1000_s_ratio": ours / theirs}


PARTS = {"commits": _commits, "offsets": _offsets, "members": _members}
QUICK_PARTS = ("commits", "offsets")


if __name__ == "__main__":
    main()

"""DescribeShareRecords is a look: nothing changes by it, nobody is woken, a restart keeps it."""

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.broker.partition import Partition
from headrace.broker.waits import Waits

from .share_look_rig import ACKNOWLEDGED, ACQUIRED, AVAILABLE, Member, cursor, joined, look, request
from .share_wire_rig import ACCEPT, GROUP, RELEASE, produce


@pytest.fixture
def member(connect: Callable[[], Any]) -> Member:
    return joined(connect)


def _files(data_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(data_dir.rglob("*")) if path.is_file()}


@pytest.fixture
def notified(monkeypatch: pytest.MonkeyPatch) -> list[Hashable]:
    """The keys of everybody who was woken."""
    keys: list[Hashable] = []
    notify = Waits.notify

    def noting(self: Waits, key: Hashable) -> None:
        keys.append(key)
        notify(self, key)

    monkeypatch.setattr(Waits, "notify", noting)
    return keys


def test_nothing_changes_and_nobody_is_woken(
    notified: list[Hashable], broker: headrace.Broker, member: Member, wire: Any
) -> None:
    member.hold(20)
    member.say(RELEASE, 3, 3)
    member.say(ACCEPT, 5, 9)
    assert member.hold(1) == [(3, 3, 2)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(member.hold, 10, 20_000)
        before = look(wire, request())
        files = _files(broker.data_dir)
        notified.clear()
        for _ in range(50):
            after = look(wire, request())
            look(wire, request(GROUP, cursor(4), states=(ACQUIRED,), runs_max=1))
        assert _files(broker.data_dir) == files, "not a byte is written"
        assert notified == []
        assert not waiting.done()
        produce(wire, 1)
        assert waiting.result() == [(20, 20, 1)]
    (was, _), (now, _) = before.partitions, after.partitions
    kept = [(run.first, run.last, run.state, run.delivery_count, run.holder) for run in was.runs]
    assert kept == [
        (run.first, run.last, run.state, run.delivery_count, run.holder) for run in now.runs
    ]
    for then, later in zip(was.runs, now.runs, strict=True):
        assert later.lock_left_ms <= then.lock_left_ms, "locks go on to their end"
        assert abs(later.lock_until - then.lock_until) <= 1000


def test_a_restart_forgets_locks_and_nothing_else(
    tmp_path: Path, connecting: Callable[..., Any]
) -> None:
    with headrace.Broker(data_dir=tmp_path) as broker, connecting(broker) as connect:
        member = joined(connect)
        member.hold(10)
        member.say(ACCEPT, 5, 5)
        member.say(RELEASE, 0, 1)
        before, _ = look(connect(), request()).partitions
    with headrace.Broker(data_dir=tmp_path) as broker, connecting(broker) as connect:
        answer = look(connect(), request())
        after, _ = answer.partitions
    assert [run.state for run in before.runs] == [AVAILABLE, ACQUIRED, ACKNOWLEDGED, ACQUIRED]
    assert [(run.first, run.last, run.state) for run in after.runs] == [
        (0, 4, AVAILABLE), (5, 5, ACKNOWLEDGED), (6, 9, AVAILABLE)
    ]  # fmt: skip
    assert answer.holders == ()


def test_logs_that_are_not_asked_for_stay_closed(
    tmp_path: Path, connecting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.Broker(data_dir=tmp_path) as broker, connecting(broker) as connect:
        joined(connect).hold(10)
    opened: list[str] = []
    open_log = Partition.open

    def noting(self: Partition) -> None:
        opened.append(self.name)
        open_log(self)

    monkeypatch.setattr(Partition, "open", noting)
    with headrace.Broker(data_dir=tmp_path) as broker, connecting(broker) as connect:
        opened.clear()
        assert look(connect(), request(GROUP, cursor())).error_code == 0
        assert opened == ["orders-0"]

"""Crews of unmodified share consumers, Java's and Python's, with members and brokers in trouble.

Each test accounts for every record that was produced: finished once, delivered again only where a
release, a death, an ended lock or a restart allows it, and in the end nothing is left.
"""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .share_account import Crew, Worker, crew
from .share_worker import RELEASED

JAVA, PYTHON = "java", "python"
REFUSED = {"_INVALID_RECORD_STATE", "INVALID_RECORD_STATE", "InvalidRecordStateException"}
LIMIT = 5


def close_the_books(crew: Crew) -> dict[tuple[int, int], list[int]]:
    """All have gone; what must be true of every account. The delivery counts of each record."""
    assert crew.left() == 0
    assert crew.finished_once()
    deliveries = crew.deliveries()
    assert deliveries.keys() == crew.places(), crew.places() ^ deliveries.keys()
    assert all(1 <= count <= LIMIT for counts in deliveries.values() for count in counts)
    return deliveries


def enough(crew: Crew, records: int) -> bool:
    return crew.finished() >= records


def held(worker: Worker) -> int:
    return len(worker.took)


@pytest.mark.parametrize("kinds", [(JAVA, PYTHON) * 2, (PYTHON, JAVA) * 2], ids="-".join)
def test_members_that_die_are_slow_or_fenced(
    kinds: tuple[str, ...], tmp_path: Path, classes: Path
) -> None:
    """Beside a worker without troubles: one is killed, one is slow, one is stopped and goes on.

    The one that is killed holds the first records all the time: a verdict on what the start offset
    has passed already would be no error, however late.
    """
    with crew(tmp_path, classes, share_record_lock_duration_ms="60000") as all_:
        killed = all_.hire(kinds[0], "hold")
        all_.produce(300)
        all_.until(lambda: held(killed))
        (first,) = all_.members()
        all_.configure(share_record_lock_duration_ms="1000")
        steady, slow, fenced = (all_.hire(kind, "hold") for kind in kinds[1:])
        all_.until(lambda: all(map(held, all_.workers)))
        fenced.signal(signal.SIGSTOP)
        all_.until(lambda: len(all_.members()) == 3)
        steady.order("go")
        all_.until(lambda: all_.finished() == 300 - all_.acquired(first))
        slow.order("go")
        all_.until(lambda: slow.failed)
        fenced.order("go")
        fenced.signal(signal.SIGCONT)
        all_.until(lambda: fenced.failed)
        killed.end(kill=True)
        all_.until(lambda: all_.finished() == 300)
        assert {*slow.failed, *fenced.failed} <= REFUSED, (slow.failed, fenced.failed)
        steady.end()
        slow.end()
        all_.produce(60)  # which the one that was fenced works on alone
        all_.until(lambda: all_.finished() == 360)
        fenced.end()
        deliveries = close_the_books(all_)
        for counts in deliveries.values():
            # What was on its way to one that was killed or stopped was never seen.
            assert counts == sorted(set(counts)), counts
        lost = {place for one in (killed, slow, fenced) for place, count in one.took if count == 1}
        lost -= {place for one in (slow, fenced) for place, _ in one.settled}
        released = {place for place in deliveries if place[1] % 10 == RELEASED}
        assert all(deliveries[place][-1] > 1 for place in lost | released)


@pytest.mark.parametrize(
    ("kinds", "mode"),
    [
        ((JAVA, JAVA), "explicit"),
        ((PYTHON, PYTHON), "implicit"),
        ((JAVA, PYTHON), "explicit"),
        ((JAVA, PYTHON), "implicit"),
    ],
    ids=["java", "python", "both-explicit", "both-implicit"],
)
def test_a_broker_that_is_killed_and_one_that_is_stopped(
    kinds: tuple[str, ...], mode: str, tmp_path: Path, classes: Path
) -> None:
    """What was confirmed to be accepted is never delivered again; all the rest arrives."""
    with crew(tmp_path, classes, mode, partitions=3) as all_:
        for kind in kinds:
            all_.hire(kind)
        ends: list[Callable[[], None]] = [all_.server.kill, all_.server.stop]
        for number, end in enumerate(ends, 1):
            all_.produce(300)
            all_.until(partial(enough, all_, 300 * number - 200))
            end()
            all_.server.start()
        all_.produce(300)
        all_.until(lambda: all_.left() == 0)
        for worker in all_.workers:
            worker.end()
        deliveries = close_the_books(all_)
        if mode == "explicit":
            released = [place for place in deliveries if place[1] % 10 == RELEASED]
            # Their first deliveries may have been on their way to nobody.
            assert all(deliveries[place][-1] > 1 for place in released)

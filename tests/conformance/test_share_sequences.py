"""The same sequences of raw requests of share groups to Kafka and Headrace: the same answers.

Each story is told to both; where Headrace means to answer otherwise, the step is listed with what
it answers and why (docs/share-groups.md, "Where Headrace differs").
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .share_asking import (
    ACCEPT,
    FINAL,
    GAP,
    JOIN,
    LEAVE,
    REJECT,
    RELEASE,
    RENEW,
    SOON_MS,
    WAIT_MS,
    Asking,
    steps,
)
from .side_by_side import Side, Sides

Told = Iterator[tuple[str, Any]]
EXACT = {"share_acquire_mode": 1}
STRANGE = UUID(int=99)


@dataclass(frozen=True, slots=True)
class Intended:
    """Why Headrace answers a step otherwise than Apache Kafka, and what it answers."""

    why: str
    told: Any


def agreed(
    sides: Sides,
    story: Callable[[Asking], Told],
    intended: dict[str, Intended] | None = None,
    **settings: Any,
) -> None:
    """Both sides tell the same, but for what is listed."""

    def tell(side: Side) -> dict[str, Any]:
        with Asking(side, **settings) as asking:
            return steps(story(asking))

    kafka, headrace = sides.both(tell)
    differing = {
        step: {"kafka": kafka[step], "headrace": headrace[step]}
        for step in kafka
        if kafka[step] != headrace[step]
    }
    expected = {step: one.told for step, one in (intended or {}).items()}
    assert {step: headrace[step] for step in differing} == expected, differing


def _heartbeats(asking: Asking) -> Told:
    member = asking.member(joins=False)
    topic = asking.name
    asking.member("other")  # so that the group is there
    joining: list[dict[str, Any]] = [
        {"group_id": ""}, {"member_id": ""}, {"member_id": "x" * 37}, {"rack_id": ""},
        {"member_epoch": -2}, {"member_epoch": 0, "subscribed_topic_names": None},
        {"member_epoch": 0, "subscribed_topic_names": ()}, {"member_epoch": 1},
        {"member_epoch": LEAVE}, {"group_id": topic + "-absent", "member_epoch": 1},
        {"group_id": topic + "-absent", "member_epoch": LEAVE},
    ]  # fmt: skip
    for other in joining:
        named = {name: value for name, value in other.items() if name != "group_id"}
        yield f"join with {named or 'no group'}", member.beat_code(**other)
    yield (
        "join a topic that is not there",
        member.beat_code(subscribed_topic_names=(topic + "-absent",)),
    )
    member.join()
    yield "a heartbeat", member.beat_code(subscribed_topic_names=None)
    yield "an epoch to come", member.beat_code(member.member_epoch + 5)
    yield "an epoch long gone", member.beat_code(-3)
    yield "join again", member.beat_code(JOIN)
    yield "unsubscribe", member.beat_code(subscribed_topic_names=())
    yield "subscribe", member.beat_code(subscribed_topic_names=(topic,))
    left = member.beat(LEAVE)
    yield "leave", (left.error_code, left.member_epoch, left.heartbeat_interval, left.assignment)
    yield "leave again", member.beat_code(LEAVE)


NOBODY_KNOWN = "a restart forgets members: on 25 clients rejoin, 69 is fatal to them"


def test_heartbeats(sides: Sides) -> None:
    intended = {
        f"join with {{'member_epoch': {epoch}}} (2)": Intended(NOBODY_KNOWN, 25)
        for epoch in (1, LEAVE)
    }
    agreed(sides, _heartbeats, intended)


def _sessions(asking: Asking) -> Told:
    asking.produce(5, 5)
    member = asking.member()
    for epoch in (1, 7, FINAL):
        yield f"fetch {epoch} without a session", member.fetch(epoch=epoch)
        yield f"acknowledge {epoch} without a session", member.acknowledge(epoch=epoch)
    yield "acknowledge 0", member.acknowledge(epoch=0)
    for other in ({"group_id": None}, {"member_id": ""}, {"member_id": "x" * 37}):
        yield f"fetch with {other}", member.fetch(**other)
        yield f"acknowledge with {other}", member.acknowledge(**other)
    yield "open with acknowledgements", member.fetch((0, 0, ACCEPT))
    yield "open without partitions", member.fetch(partitions=(), wait_ms=0)
    yield "add a partition", member.fetch(partitions=(0,))
    yield "nothing new", member.fetch(wait_ms=SOON_MS)
    for epoch in (1, 2, 9):
        yield f"a wrong epoch {epoch}", member.fetch(epoch=epoch)
        yield (
            f"a wrong epoch {epoch} for acknowledging",
            member.acknowledge((0, 0, ACCEPT), epoch=epoch),
        )
    yield "the right epoch", member.acknowledge((0, 1, ACCEPT))
    yield "fetch that brings some", member.fetch((2, 2, ACCEPT), (3, 3, REJECT), wait_ms=SOON_MS)
    yield "open anew", member.fetch(epoch=0, wait_ms=SOON_MS)
    member.session_epoch = 1
    yield "what it held is its own", member.acknowledge((4, 9, ACCEPT))
    yield "a partition that is not there", member.fetch(partitions=(0, 7), wait_ms=0)
    yield "once more", member.fetch(wait_ms=0)
    yield "an acknowledgement of it", member.acknowledge((2, 2, ACCEPT))
    gone = [{"topic_id": asking.topic_id, "partitions": [7]}]
    yield "forgotten", member.fetch(forgotten_topics_data=gone, wait_ms=0)
    yield "close", member.acknowledge(epoch=FINAL)
    yield "close again", member.acknowledge(epoch=FINAL)


def test_sessions(sides: Sides) -> None:
    agreed(sides, _sessions)


def _limits(asking: Asking) -> Told:
    asking.produce(9, 9, 9, 9)
    member = asking.member()
    yield "whole batches", member.fetch(max_records=20)
    yield "the rest", member.fetch(max_records=20)
    asking.produce(10, 10, 10)
    yield "cut at batches", member.fetch(batch_size=5)
    asking.produce(10, 10, 10)
    yield "cut at every other", member.fetch(batch_size=15)
    asking.produce(50)
    for round_ in range(3):
        yield f"exactly {round_}", member.fetch(max_records=20, **EXACT)
    asking.produce(3, 3)
    yield "exactly over batches", member.fetch(max_records=5, batch_size=1, **EXACT)
    yield "no records", member.fetch(max_records=0)
    yield "no bytes", member.fetch(max_bytes=0)
    yield "one byte", member.fetch(max_bytes=1)
    yield "a mode that is none", member.fetch(share_acquire_mode=2, wait_ms=0)


def test_how_much_is_acquired(sides: Sides) -> None:
    intended = {"a mode that is none": Intended("the request is at fault, not the server", 42)}
    agreed(sides, _limits, intended)


def _verdicts(asking: Asking) -> Told:
    asking.produce(10, 10)
    member, other = asking.member(), asking.member("other")
    yield "all", member.take()
    other.fetch(wait_ms=0)
    for first, last, *types in (
        (5, 4, ACCEPT), (-1, 0, ACCEPT), (0, 1), (0, 2, ACCEPT, ACCEPT), (0, 0, 5), (0, 0, -1),
        (20, 25, ACCEPT), (15, 25, ACCEPT), (100, 100, ACCEPT),
    ):  # fmt: skip
        yield f"{first} to {last}: {types}", member.acknowledge((first, last, *types))
    yield "backwards", member.acknowledge((5, 6, ACCEPT), (0, 1, ACCEPT))
    yield "overlapping", member.acknowledge((5, 7, ACCEPT), (7, 8, ACCEPT))
    yield "nothing", member.acknowledge()
    yield "of a stranger", other.acknowledge((0, 1, ACCEPT))
    yield "renewal not said to be one", member.acknowledge((0, 0, RENEW), is_renew_ack=False)
    yield "renewal with limits", member.fetch((0, 0, RENEW), is_renew_ack=True)
    quiet = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "wait_ms": 0}
    yield "renewal", member.fetch((0, 0, RENEW), is_renew_ack=True, **quiet)
    yield "renewal without any", member.fetch((0, 0, ACCEPT), is_renew_ack=True, **quiet)
    yield "mixed with others", member.acknowledge((1, 3, RENEW, ACCEPT, RELEASE))
    yield "released", other.take()
    yield "of the one before", member.acknowledge((3, 3, ACCEPT))
    yield "good and bad", member.acknowledge((4, 5, ACCEPT), (3, 3, ACCEPT))
    yield "good and then bad", member.acknowledge((4, 5, ACCEPT), (6, 7, ACCEPT))
    yield "twice", member.acknowledge((4, 4, ACCEPT))
    yield "gaps", member.acknowledge((8, 9, GAP, REJECT))
    yield "all over two batches", member.acknowledge((10, 19, *[ACCEPT, RELEASE] * 5))
    yield "every other", other.take()
    yield "unknown topic", member.acknowledge(
        topics=[{"topic_id": STRANGE, "partitions": [
            {"partition_index": 0, "acknowledgement_batches": [
                {"first_offset": 0, "last_offset": 0, "acknowledge_types": [ACCEPT]}]}]}]
    )  # fmt: skip
    yield "close", member.acknowledge((1, 1, ACCEPT), epoch=FINAL)
    yield "below the start", other.acknowledge((0, 1, ACCEPT), (3, 3, ACCEPT))
    yield "the others", other.acknowledge((11, 19, ACCEPT))
    yield "one by one", other.acknowledge(*((at, at, ACCEPT) for at in range(11, 20, 2)))
    yield "left", asking.stands()[1]


def test_verdicts(sides: Sides) -> None:
    intended = {"-1 to 0: [1]": Intended("there is no offset -1: nothing is settled by it", 42)}
    agreed(sides, _verdicts, intended)


def _counts(asking: Asking) -> Told:
    asking.produce(16)
    member = asking.member()
    yield "first", (found := member.take())
    member.acknowledge(*((first, last, RELEASE) for first, last, _ in found))
    for delivery in range(2, 60):
        if asking.stands()[1] == 0:
            break
        found = member.take()
        yield f"delivery {delivery}", found
        member.acknowledge(*((first, last, RELEASE) for first, last, _ in found))
    yield "left", asking.stands()[1]


def test_ranges_shrink_near_the_limit(sides: Sides) -> None:
    agreed(sides, _counts)


def test_the_lowest_limit(sides: Sides) -> None:
    agreed(sides, _counts, share_delivery_count_limit="2")


def test_a_limit_of_four(sides: Sides) -> None:
    agreed(sides, _counts, share_delivery_count_limit="4")


def _leaving(asking: Asking) -> Told:
    asking.produce(4, 4)
    first, second = asking.member("first"), asking.member("second")
    yield "first", first.take(max_records=4)
    yield "second", second.take()
    yield "leave", first.leave()
    yield "still its own", first.acknowledge((0, 0, ACCEPT))
    yield "close", first.acknowledge((1, 1, ACCEPT), epoch=FINAL)
    yield "returned", second.take()
    third = asking.member("third", joins=False)
    yield "a stranger", third.fetch(wait_ms=SOON_MS)
    second.cluster.close()
    yield "of one whose connection is gone", third.take()
    yield "accepted", third.acknowledge((2, 7, ACCEPT))
    yield "left", asking.stands()[1]


def test_members_leave(sides: Sides) -> None:
    agreed(sides, _leaving)


def _elsewhere(asking: Asking) -> Told:
    asking.produce(3)
    stranger = asking.member(joins=False)
    yield "a group that is not there", stranger.fetch(wait_ms=SOON_MS)
    yield "its acknowledgement", stranger.acknowledge((0, 0, ACCEPT))
    member = asking.member()
    yield "before the deletion", member.take()
    asking.deleted()
    yield "a deleted topic", member.fetch(wait_ms=SOON_MS)
    yield "a heartbeat", member.beat_code()


def test_what_is_not_there(sides: Sides) -> None:
    intended = {
        "a group that is not there": Intended(
            "clients ask for metadata on 3 and on -1", [{"code": 3}]
        ),
        "a deleted topic": Intended("it fails its own partitions, not the others", [{"code": 100}]),
    }
    agreed(sides, _elsewhere, intended)


def _described(asking: Asking) -> Told:
    asking.produce(10)
    yield "before", asking.stands()
    member = asking.member()
    yield "joined", asking.stands()
    member.take()
    yield "acquired", asking.stands()
    for step in ((0, 3, ACCEPT), (6, 6, REJECT), (9, 9, RELEASE), (4, 5, ACCEPT)):
        yield f"acknowledge {step}", member.acknowledge(step)
        yield f"after {step}", asking.stands()
    yield "again", member.take()
    yield "described", asking.described()
    yield "set with a member", asking.alter(0)
    yield "close", member.acknowledge(epoch=FINAL)
    yield "leave", member.leave()
    yield "described", asking.described()
    for offset in (0, 4, 10):
        yield f"set to {offset}", asking.alter(offset)
        yield f"stands at {offset}", asking.stands()
    yield "set to -1", asking.alter(-1)


AFTER = "the stored start offset is the one after the move"
KNOWN = "known with the subscription, not only after the first acknowledgement"


def test_where_a_group_stands(sides: Sides) -> None:
    intended = {
        "joined": Intended(KNOWN, (0, 10)),
        "acquired": Intended(KNOWN, (0, 10)),
        "after (0, 3, 1)": Intended(AFTER, (4, 6)),
        "after (4, 5, 1)": Intended(AFTER, (7, 3)),
    }
    agreed(sides, _described, intended)


def _joined(acquired: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Ranges that continue one another as one: Kafka keeps what it acquired apart, apart."""
    found: list[tuple[int, int, int]] = []
    for first, last, count in acquired:
        if found and found[-1][1] + 1 == first and found[-1][2] == count:
            first = found.pop()[0]
        found.append((first, last, count))
    return found


def _restless(asking: Asking) -> Told:
    """Three members and many verdicts, by turns; what each of them is given."""
    members = [asking.member(name) for name in "abc"]
    kinds = (ACCEPT, RELEASE, ACCEPT, REJECT, ACCEPT)
    asking.produce(*[7] * 12)
    for turn in range(60):
        member = members[turn % 3]
        limits: dict[str, Any] = {"max_records": 1 + turn * 5 % 11, "batch_size": 1 + turn % 9}
        if turn % 2:
            limits |= EXACT
        if asking.stands()[1] == 0:
            break
        # Kafka has to load the share-partition first.
        found = member.fetch(wait_ms=SOON_MS if turn else WAIT_MS, **limits)
        for told in found:
            told["acquired"] = _joined(told.get("acquired", []))
        yield f"turn {turn}", found
        for told in found:
            acks = [
                (first, last, *(kinds[(at + turn) % 5] for at in range(first, last + 1)))
                for first, last, _ in told["acquired"]
            ]
            yield f"verdicts {turn}", member.acknowledge(*acks)
    yield "left", asking.stands()[1]


def test_many_members_and_verdicts(sides: Sides) -> None:
    agreed(sides, _restless)

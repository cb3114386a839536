"""Records archived without a dead letter: over the wire, from Python, in the broker's log."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import headrace
from headrace.broker.archived_log import PAUSE_MS, ArchivedLog
from headrace.client import share_archived
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.share_archived import (
    ArchivedRecords,
    clear_archived_share_records,
    list_archived_share_records,
)
from headrace.core.archived import ArchivedRun, PageForgotten, PageListed
from headrace.core.share_words import ShareKey
from headrace.core.types import MemberId, MonoMs, Span, WallMs
from headrace.wire import share_archived as wire
from headrace.wire.primitives import Reader, Writer

from .share_wire_rig import GROUP, MEMBER, REJECT, TOPIC, configure, cut, produce, reset
from .test_share_admin_wire import Admin
from .test_share_settings import Connecting

REMOVED = "removed from the log, by retention or an administrator, before it was finished"


class Member(Admin):
    """A member that rejects, and looks at the list."""

    def page(self, **asked: Any) -> wire.ListArchivedResponse:
        out = Writer()
        wire.ListArchivedRequest(**{"group": GROUP} | asked).write(out)
        self.wire.send(20907, 0, b"\0" + bytes(out.data))
        return wire.ListArchivedResponse.read(Reader(self.wire.receive()[1][1:]))


def begun(wire: Any) -> Member:
    """A member that holds the first ten records of a topic."""
    found = Member(wire, wire.create(TOPIC, num_partitions=2).topic_id)
    produce(wire, 10)
    configure(wire, share_auto_offset_reset="earliest")
    found.join()
    assert found.take() == [(0, 9, 1)]
    return found


@pytest.fixture
def member(connect: Callable[[], Any]) -> Member:
    return begun(connect())


@pytest.fixture
def cluster(broker: headrace.Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as found:
        yield found


def rows(found: ArchivedRecords) -> list[tuple[int, int, int, str, str | None, int | None]]:
    return [
        (one.first, one.last, one.delivery_count, one.reason, one.member, one.readable)
        for one in found.runs
    ]


def test_the_list_tells_all_of_a_record(member: Member, cluster: Cluster) -> None:
    assert rows(list_archived_share_records(cluster, GROUP)) == []
    member.say(REJECT, 2, 4)
    found = list_archived_share_records(cluster, GROUP)
    assert rows(found) == [(2, 4, 1, "rejected by the consumer", MEMBER, 3)]
    assert {(one.topic, one.partition) for one in found.runs} == {(TOPIC, 0)}
    assert found.runs[0].archived_at > 1_700_000_000_000
    assert found.dropped == {}
    cut(member.wire, 4)
    assert rows(list_archived_share_records(cluster, GROUP)) == [
        (2, 4, 1, "rejected by the consumer", MEMBER, 1),
        (0, 1, 1, REMOVED, MEMBER, 0),
    ]
    cut(member.wire, 5)
    assert rows(list_archived_share_records(cluster, GROUP))[0][5] == 0


def test_topics_may_be_named(member: Member, cluster: Cluster) -> None:
    member.say(REJECT, 0, 0)
    assert len(list_archived_share_records(cluster, GROUP, [TOPIC, "nosuch"]).runs) == 1
    assert list_archived_share_records(cluster, GROUP, ["nosuch"]).runs == ()
    assert list_archived_share_records(cluster, GROUP, []).runs == ()


def test_what_was_seen_is_cleared_and_no_more(member: Member, cluster: Cluster) -> None:
    member.say(REJECT, 0, 0)
    seen = list_archived_share_records(cluster, GROUP)
    member.say(REJECT, 5, 5)
    clear_archived_share_records(cluster, GROUP, seen)
    assert [one.first for one in list_archived_share_records(cluster, GROUP).runs] == [5]
    clear_archived_share_records(cluster, GROUP, list_archived_share_records(cluster, GROUP))
    assert list_archived_share_records(cluster, GROUP).runs == ()


def test_a_long_list_comes_in_pages(member: Member) -> None:
    for at in (0, 2, 4, 6):
        member.say(REJECT, at, at)
    first = member.page(runs_max=3)
    assert ([one.first for one in first.partitions[0].runs], first.more) == ([0, 2, 4], 1)
    after = wire.Place(TOPIC, 0, first.partitions[0].runs[-1].number)
    rest = member.page(runs_max=3, after=after)
    assert ([one.first for one in rest.partitions[0].runs], rest.more) == ([6], 0)
    assert member.page(after=wire.Place("zebra", 0)).partitions == ()


def test_many_pages_are_read_as_one_list(
    member: Member, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in (0, 2, 4, 6, 8):
        member.say(REJECT, at, at)
    monkeypatch.setattr(wire, "RUNS_MAX", 2)
    found = list_archived_share_records(cluster, GROUP)
    assert [one.first for one in found.runs] == [0, 2, 4, 6, 8]
    clear_archived_share_records(cluster, GROUP, found)
    assert list_archived_share_records(cluster, GROUP).runs == ()


def test_lists_of_many_partitions_are_cleared_by_several_requests(
    member: Member, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.say(REJECT, 0, 0)
    seen = list_archived_share_records(cluster, GROUP)
    through = {(TOPIC, number): 0 for number in range(1, 8)} | dict(seen.through)
    sent = list[int]()
    write = wire.ClearArchivedRequest.write

    def counted(request: wire.ClearArchivedRequest, out: Writer) -> None:
        sent.append(len(request.places))
        write(request, out)

    monkeypatch.setattr(share_archived, "_PLACES_MAX", 3)
    monkeypatch.setattr(wire.ClearArchivedRequest, "write", counted)
    clear_archived_share_records(cluster, GROUP, ArchivedRecords((), {}, through))
    assert sent == [3, 3, 2]
    assert list_archived_share_records(cluster, GROUP).runs == ()


@pytest.mark.parametrize(
    ("asked", "code"),
    [({"group": ""}, 24), ({"group": "nosuch"}, 69), ({"runs_max": 0}, 42), ({}, 0)],
)
def test_what_cannot_be_listed(member: Member, asked: dict[str, Any], code: int) -> None:
    assert member.page(**asked).error_code == code


def test_groups_that_are_none(member: Member, cluster: Cluster) -> None:
    seen = ArchivedRecords((), {}, {(TOPIC, 0): 5, ("nosuch", 0): 5})
    clear_archived_share_records(cluster, GROUP, seen)
    for group, code in (("nosuch", 69), ("", 24)):
        with pytest.raises(BrokerError) as refusal:
            clear_archived_share_records(cluster, group, seen)
        assert refusal.value.code == code
    assert member.topic_id


def test_the_list_outlives_the_process_and_goes_with_the_offsets(
    connecting: Connecting, tmp_path: Path
) -> None:
    with headrace.Broker(tmp_path) as broker, connecting(broker) as open_:
        member = begun(open_())
        member.say(REJECT, 0, 3)
        member.leave()
        assert reset(member.wire, 0) == 0
    with headrace.Broker(tmp_path) as broker, connecting(broker) as open_:
        member = Member(open_(), member.topic_id)
        (partition,) = member.page().partitions
        assert [(one.first, one.last) for one in partition.runs] == [(0, 3)]
        member.join()  # after a restart a group is empty once its members were heard of
        member.leave()
        assert member.delete_offsets(TOPIC).error_code == 0
        page = member.page()
        assert (page.error_code, page.partitions) == (0, ())


class Topics:
    """A catalogue that knows one topic."""

    def __init__(self, topic_id: UUID) -> None:
        self.catalog = self
        self.topics_by_id = {topic_id: type("Topic", (), {"name": TOPIC})}


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.ms = 0

    def mono(self) -> MonoMs:
        return MonoMs(self.ms)


def listed(group: str, first: int, news: int = 1, dropped: int = 0) -> PageListed:
    run = ArchivedRun(1, Span(first, first), 5, "bad", MemberId("me"), WallMs(0))
    return PageListed(ShareKey(group, UUID(int=1), 0), 0, (run,), 2, dropped, news)


def test_a_group_has_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock: Any = Hand()
    topics: Any = Topics(UUID(int=1))
    log = ArchivedLog(clock, topics)
    with caplog.at_level(logging.WARNING):
        log.tell([listed("work", 7), listed("work", 8), listed("other", 1)])
        log.tell([listed("work", 9, news=0), PageForgotten(ShareKey("work", UUID(int=1), 0), 0)])
        clock.ms = PAUSE_MS - 1
        log.tell([listed("work", 10)])
        clock.ms = PAUSE_MS
        log.tell([listed("work", 11, dropped=4)])
        log.tell([listed("work", 12)])
        clock.ms = 2 * PAUSE_MS - 1
        log.tell_rest()
        clock.ms = 2 * PAUSE_MS
        log.tell_rest()
        log.tell([listed("work", 13)])
        log.tell_rest()
        log.tell_rest(is_end=True)
        log.tell_rest(is_end=True)
    assert [line.message for line in caplog.records] == [
        "group work: 1 record was archived without a dead letter; the last is 7 of orders-0, after "
        "5 deliveries: bad; see: headrace share archived work",
        "group other: 1 record was archived without a dead letter; the last is 1 of orders-0, "
        "after 5 deliveries: bad; see: headrace share archived other",
        "group work: 3 records were archived without a dead letter; the last is 11 of orders-0, "
        "after 5 deliveries: bad; see: headrace share archived work",
        "group work: its list of archived records is full in partition 0 of that topic; 4 older "
        "ones were dropped from it; clear it: headrace share archived work --clear",
        "group work: 1 record was archived without a dead letter; the last is 12 of orders-0, "
        "after 5 deliveries: bad; see: headrace share archived work",
        "group work: 1 record was archived without a dead letter; the last is 13 of orders-0, "
        "after 5 deliveries: bad; see: headrace share archived work",
    ]

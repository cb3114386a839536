"""Share groups under administration: what a reset leaves of locks, counts and leases."""

from dataclasses import replace
from uuid import UUID

import pytest

from headrace.core.errors import Refused, Why
from headrace.core.leases import Held
from headrace.core.shard_words import (
    AcquireLease,
    AlterShareOffsets,
    CommitLease,
    Committed,
    DeleteShareGroup,
    DeleteShareOffsets,
    ForgetTopic,
    On,
    OpenLease,
    RenewLease,
)
from headrace.core.share_group import Heartbeat, Timing, TopicView
from headrace.core.share_words import Acquire, ShareKey
from headrace.core.spans import Spans
from headrace.core.types import MemberId, Span

from .share_shard_rig import ShardRig

TOPIC, OTHER = UUID(int=5), UUID(int=6)
LEASE = ("work", "checkpoint")
LOCK_MS = 30_000
BACK = AlterShareOffsets("work", (("jobs", 0, 0),))


class Broker(ShardRig):
    """With two topics; the log of each partition has the records 10 to 99."""

    partitions = 2

    def topic(self, name: str) -> TopicView | None:
        known = {"jobs": TOPIC, "other": OTHER}
        if name not in known:
            return None
        return TopicView(known[name], (10,) * self.partitions, (100,) * self.partitions)

    def starts(self) -> dict[tuple[UUID, int], int]:
        found = self.shard.partitions_of("work").items()
        return {(key.topic_id, key.partition): one.start for key, one in found}


@pytest.fixture
def broker() -> Broker:
    return Broker()


def place(partition: int = 0) -> ShareKey:
    return ShareKey("work", TOPIC, partition)


def test_starts_are_set_raised_to_the_log_and_kept(broker: Broker) -> None:
    asked = (("jobs", 0, 50), ("jobs", 1, 3), ("jobs", 2, 0), ("none", 0, 0), ("jobs", 0, 101))
    replies = broker.ask(AlterShareOffsets("work", asked))
    assert [refused and refused.why for refused in replies] == [
        None,
        None,
        Why.UNKNOWN_PARTITION,
        Why.UNKNOWN_PARTITION,
        Why.OFFSET_OUT_OF_RANGE,
    ]
    for _ in range(2):
        assert broker.starts() == {(TOPIC, 0): 50, (TOPIC, 1): 10}
        broker.restart()


@pytest.mark.parametrize(("earliest", "start"), [(True, 10), (False, 100)])
def test_the_policy_leads_where_it_leads_now(broker: Broker, earliest: bool, start: int) -> None:
    """Also in the partitions of a new topic that are not named."""
    broker.earliest = earliest
    broker.ask(AlterShareOffsets("work", (("jobs", 0, -1),)))
    assert broker.starts() == {(TOPIC, 0): start, (TOPIC, 1): start}


def test_partitions_that_are_added_later_begin_at_their_first_record(broker: Broker) -> None:
    broker.ask(AlterShareOffsets("work", (("jobs", 0, 50), ("jobs", 1, 50))))
    broker.partitions = 3
    broker.ask(OpenLease(LEASE, ("jobs",), earliest=False))
    assert broker.starts()[TOPIC, 2] == 0


def test_each_reset_has_a_state_epoch_of_its_own(broker: Broker) -> None:
    for epoch in range(3):
        broker.ask(BACK)
        assert broker.shard.partitions[place()].state_epoch == epoch
    broker.restart()
    assert broker.shard.partitions[place()].state_epoch == 2


def test_locks_and_counts_are_gone_at_once(broker: Broker) -> None:
    broker.ask(BACK)
    take = On(place(), Acquire(MemberId("gone"), [Span(10, 19)], 10, 100, exact=True))
    broker.ask(take)
    broker.elapse(LOCK_MS)
    (again,) = broker.ask(take)
    assert again.deliveries == 2
    broker.ask(AlterShareOffsets("work", (("jobs", 0, 15),)))
    (anew,) = broker.ask(
        On(place(), Acquire(MemberId("other"), [Span(10, 19)], 10, 100, exact=True))
    )
    assert (anew.spans, anew.deliveries) == (Spans.of((15, 19)), 1)


def test_a_driver_that_calls_keeps_its_group(broker: Broker) -> None:
    epoch = broker.ask(OpenLease(LEASE, ("jobs",), earliest=True)).epoch
    for change in (BACK, DeleteShareOffsets("work", ("jobs",)), DeleteShareGroup("work")):
        broker.elapse(LOCK_MS - 1)
        refused = broker.ask(change)
        assert isinstance(refused, Refused)
        assert refused.why is Why.NON_EMPTY_GROUP
        broker.ask(RenewLease(LEASE, epoch))
    assert isinstance(broker.ask(RenewLease(LEASE, epoch - 1)), Refused)  # a fenced one does not
    broker.elapse(LOCK_MS)
    assert broker.ask(BACK) == (None,)


def test_a_driver_may_come_back_after_a_restart_of_the_broker(broker: Broker) -> None:
    broker.ask(OpenLease(LEASE, ("jobs",), earliest=True))
    broker.elapse(LOCK_MS)
    broker.restart()
    assert isinstance(broker.ask(BACK), Refused)
    broker.elapse(LOCK_MS)
    assert broker.ask(BACK) == (None,)


def test_members_of_before_a_restart_are_waited_for(broker: Broker) -> None:
    """They are not known any more, and say so with their next heartbeat."""
    broker.ask(BACK)
    broker.restart()
    broker.elapse(2 * Timing().heartbeat_ms - 1)
    refused = broker.ask(BACK)
    assert isinstance(refused, Refused)
    assert refused.why is Why.COORDINATOR_GONE
    broker.elapse(1)
    assert broker.ask(BACK) == (None,)
    broker.restart()
    join = Heartbeat("work", MemberId("m"), 0, frozenset({"jobs"}))
    broker.ask(join)
    assert broker.ask(BACK).why is Why.NON_EMPTY_GROUP
    broker.ask(replace(join, epoch=-1))
    assert broker.ask(BACK) == (None,)  # it was heard of, and left


def test_a_number_whose_records_were_reset_is_not_given_others(broker: Broker) -> None:
    """A sink that has the batch of that number would drop them."""
    epoch = broker.ask(OpenLease(LEASE, ("jobs",), earliest=True)).epoch
    held = broker.ask(AcquireLease(LEASE, epoch, 1, 20))
    assert [(one.key, one.span) for one in held] == [
        (place(0), Span(10, 19)),
        (place(1), Span(10, 19)),
    ]
    broker.elapse(LOCK_MS)
    assert broker.ask(BACK) == (None,)
    broker.restart()
    epoch = broker.ask(OpenLease(LEASE, ("jobs",), earliest=True)).epoch
    assert broker.ask(AcquireLease(LEASE, epoch, 1, 20)) == (Held(place(1), Span(10, 19), 1),)
    anew = broker.ask(AcquireLease(LEASE, epoch, 2, 10))
    assert {one.span: one.deliveries for one in anew if one.key == place(0)}[Span(10, 14)] == 1
    assert broker.ask(CommitLease(LEASE, epoch, 1)) == Committed(10, 0, 0, 0)
    assert broker.starts()[TOPIC, 0] == 10


def test_only_the_topics_that_are_named_are_forgotten(broker: Broker) -> None:
    broker.ask(AlterShareOffsets("work", (("jobs", 0, 50), ("other", 0, 50))))
    told = broker.ask(DeleteShareOffsets("work", ("jobs", "jobs", "none")))
    assert [refused and refused.why for refused in told] == [
        None,
        Why.UNKNOWN_TOPIC,
        Why.UNKNOWN_TOPIC,
    ]
    broker.restart()
    assert set(broker.starts()) == {(OTHER, 0), (OTHER, 1)}


def test_a_deleted_group_leaves_nothing(broker: Broker) -> None:
    broker.ask(OpenLease(LEASE, ("jobs",), earliest=True))
    broker.ask(AlterShareOffsets("kept", (("jobs", 0, 50),)))
    broker.elapse(LOCK_MS)
    broker.ask(DeleteShareGroup("work"))
    for _ in range(2):
        assert broker.starts() == {}
        assert broker.shard.leases == {}
        assert broker.shard.partitions_of("kept")
        broker.restart()
    refused = broker.ask(DeleteShareGroup("work"))
    assert isinstance(refused, Refused)
    assert refused.why is Why.UNKNOWN_GROUP


def test_names_that_nothing_stands_behind_are_not_kept(broker: Broker) -> None:
    """Whoever asks for topics that do not exist leaves no group behind, however he goes."""
    left, silent, other = MemberId("left"), MemberId("silent"), MemberId("other")
    for topic, group in (("none", "nothing"), ("jobs", "work")):
        for member in (left, silent, other):
            assert not isinstance(
                broker.ask(Heartbeat(group, member, 0, frozenset({topic}))), Refused
            )
        broker.ask(Heartbeat(group, left, -1))
    assert broker.shard.groups["nothing"].members.keys() == {silent, other}
    broker.elapse(Timing().session_ms)
    assert broker.shard.groups.keys() == {"work"}
    assert broker.shard.groups["work"].epoch > 0
    broker.ask(Heartbeat("nothing", left, 0, frozenset({"none"})))
    broker.ask(Heartbeat("nothing", left, -1))
    assert broker.shard.groups.keys() == {"work"}
    assert broker.shard.next_deadline() is None


def test_a_group_without_share_partitions_stays_until_it_is_deleted(broker: Broker) -> None:
    """As in Kafka, whether its last offsets were deleted or their topic."""
    broker.ask(AlterShareOffsets("work", (("jobs", 0, 50), ("other", 0, 50))))
    broker.ask(DeleteShareOffsets("work", ("jobs",)))
    assert broker.shard.retained == set(), "it still has share-partitions"
    broker.ask(ForgetTopic(OTHER))
    broker.restart()
    assert broker.shard.queue("work").exists
    (nothing,) = broker.ask(DeleteShareOffsets("work", ("jobs",)))
    assert nothing.why is Why.UNKNOWN_TOPIC
    broker.ask(AlterShareOffsets("work", (("jobs", 0, 50),)))
    broker.ask(DeleteShareOffsets("work", ("jobs",)))
    broker.ask(DeleteShareGroup("work"))
    for _ in range(2):
        assert not broker.shard.queue("work").exists
        broker.restart()

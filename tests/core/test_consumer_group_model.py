"""A group of KIP-848 with members as stock clients are: lazy, stalled, fenced, with answers lost.

Whatever they do and whenever the broker restarts, a partition is read by one member at a time, and
who reads it may commit for it; left alone, all comes to what the assignor wanted. The journal,
compacted or not, gives the live state.
"""

import re
from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_words import (
    NOTHING,
    ConsumerBeat,
    ConsumerState,
    GroupCommand,
    Partitions,
)
from headrace.core.errors import Refused, Why
from headrace.core.group_shard import GroupShard
from headrace.core.group_words import Commit, DeleteGroup, Offset
from headrace.core.machine import Entry
from headrace.core.types import MemberId, TopicPartition

from .consumer_client import REBALANCE_MS, Client
from .group_rig import ConsumerDriver

NAMES = ("aa", "ab", "bb")
REGEXES = ("a.*", "b.*", ".*")
BEAT_MS, SESSION_MS = 5_000, 45_000
CALM_BEATS = 2 * (SESSION_MS + REBALANCE_MS) // BEAT_MS


class Consumers(RuleBasedStateMachine):
    """One group "g"; there is no classic member."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerDriver()
        self.driver.drop_topic("t")
        self.driver.make_topic("aa", 3)
        self.driver.make_topic("bb", 2)
        self.replica, self.replayed = GroupShard(self.driver), 0
        self.clients: list[Client] = []
        self.made = 0
        self.epochs = (0, 0)

    @property
    def group(self) -> ConsumerGroup | None:
        return self.driver.consumers() if self.driver.shard.groups else None

    def ask(self, command: GroupCommand) -> Any:
        return self.driver.do(command)

    def elapse(self, ms: int) -> None:
        self.driver.elapse(ms)

    def pick(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients))

    def subscription(self, data: st.DataObject) -> tuple[frozenset[str], str]:
        topics = data.draw(st.frozensets(st.sampled_from(NAMES), min_size=1))
        regex = data.draw(st.sampled_from(("", "", "", *REGEXES)))
        return topics, regex

    # ---- topics

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 4))
    def topic_is_made_or_grows(self, name: str, more: int) -> None:
        known = self.driver.topics.get(name)
        self.driver.make_topic(name, more + (known.partitions if known else 0))

    @precondition(lambda self: self.driver.topics)
    @rule(data=st.data())
    def topic_is_deleted(self, data: st.DataObject) -> None:
        self.driver.drop_topic(data.draw(st.sampled_from(sorted(self.driver.topics))))

    # ---- members

    @precondition(lambda self: len(self.clients) < 5)
    @rule(data=st.data(), instance=st.sampled_from([None, None, "i", "j"]))
    def member_begins(self, data: st.DataObject, instance: str | None) -> None:
        self.begin(data, instance)

    @precondition(lambda self: self.away())
    @rule(data=st.data())
    def static_member_is_back(self, data: st.DataObject) -> None:
        self.begin(data, data.draw(st.sampled_from(self.away())))

    def away(self) -> list[str | None]:
        """The instances that left for now."""
        group = self.group or ConsumerGroup("g")
        holdings = group.holdings
        return [one.instance for one in group.members.values() if holdings[one.id].epoch < 0]

    def begin(self, data: st.DataObject, instance: str | None) -> None:
        topics, regex = self.subscription(data)
        assignor = data.draw(st.sampled_from([None, "uniform", "range"]))
        self.made += 1
        client = Client(MemberId(f"m{self.made}"), instance, topics, regex, assignor)
        answer = self.ask(client.request())
        known = self.group.with_instance(instance) if self.group and instance else None
        if isinstance(answer, Refused):
            assert answer.why is Why.INSTANCE_IN_USE
            assert known is not None
            assert known.id != client.id
            return
        client.hear(answer)
        self.clients.append(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), works=st.booleans())
    def member_beats(self, data: st.DataObject, works: bool) -> None:
        client = self.pick(data)
        self.beat(client)
        if works:
            client.work()

    @rule(times=st.integers(1, 3), works=st.booleans())
    def everybody_beats(self, times: int, works: bool) -> None:
        for client in self.clients[:] * times:
            if client in self.clients:
                self.beat(client)
                if works:
                    client.work()

    def beat(self, client: Client) -> None:
        answer = self.ask(client.request())
        if isinstance(answer, Refused) and answer.why in (
            Why.INSTANCE_IN_USE,
            Why.FENCED_INSTANCE,
        ):
            self.clients.remove(client)  # another has its instance; it ends
            return
        client.hear(answer)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def answer_is_lost(self, data: st.DataObject) -> None:
        client = self.pick(data)
        self.ask(client.request())
        client.says_all = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def member_works(self, data: st.DataObject) -> None:
        self.pick(data).work()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def member_subscribes_otherwise(self, data: st.DataObject) -> None:
        client = self.pick(data)
        client.topics, client.regex = self.subscription(data)
        client.says_all = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def member_rejoins(self, data: st.DataObject) -> None:
        client = self.pick(data)
        client.reading, client.told, client.epoch = set(), NOTHING, 0
        self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), heard=st.booleans())
    def member_leaves(self, data: st.DataObject, heard: bool) -> None:
        client = self.pick(data)
        self.clients.remove(client)
        if heard:
            self.ask(ConsumerBeat("g", client.id, -1, instance=client.instance))

    @precondition(lambda self: any(client.instance for client in self.clients))
    @rule(data=st.data())
    def static_member_is_away_for_now(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([one for one in self.clients if one.instance]))
        self.clients.remove(client)
        self.ask(ConsumerBeat("g", client.id, -2, instance=client.instance))

    # ---- the rest of the world

    @rule(ms=st.sampled_from([1, BEAT_MS, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, ms: int) -> None:
        self.elapse(ms)

    @rule()
    def broker_restarts(self) -> None:
        self.driver.restart()

    @rule()
    def group_is_deleted(self) -> None:
        refused = self.ask(DeleteGroup("g"))
        if self.group is not None:
            assert refused.why is Why.NON_EMPTY_GROUP
        else:
            self.epochs = (0, 0)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def member_commits_what_it_reads(self, data: st.DataObject) -> None:
        client, group = self.pick(data), self.group
        names = {view.id: name for name, view in self.driver.topics.items()}
        offsets = tuple(
            Offset(names[one.topic_id], one.partition, 1, -1, "", one.topic_id)
            for one in client.reading
            if one.topic_id in names
        )
        if group is None or not self.is_known(client) or not offsets:
            return
        answer = self.ask(Commit("g", client.id, None, client.epoch, offsets))
        assert answer == [None] * len(offsets)

    @rule()
    def all_comes_to_rest(self) -> None:
        for _ in range(CALM_BEATS):
            for client in list(self.clients):
                self.beat(client)
                client.work()
            self.elapse(BEAT_MS)
        group = self.group
        if not self.clients:
            assert group is None or group.state is ConsumerState.EMPTY
            return
        assert group is not None
        assert group.state is ConsumerState.STABLE
        assert group.members.keys() == {client.id for client in self.clients}
        given: dict[TopicPartition, MemberId] = {}
        for client in self.clients:
            assert client.epoch == group.epoch
            assert client.reading == client.told == group.target(client.id)
            assert group.holding(client.id) == group.target(client.id)
            given.update(dict.fromkeys(group.target(client.id), client.id))
        wanted = {client.id: self.wanted(client) for client in self.clients}
        everything = frozenset().union(*wanted.values())
        assert given.keys() == everything
        assert all(partition in wanted[member] for partition, member in given.items())

    # ---- what must always hold

    def wanted(self, client: Client) -> Partitions:
        return frozenset(
            TopicPartition(view.id, index)
            for name, view in self.driver.topics.items()
            if name in client.topics or (client.regex and re.fullmatch(client.regex, name))
            for index in range(view.partitions)
        )

    def is_known(self, client: Client) -> bool:
        """Whether the group has not removed it behind its back."""
        held = self.group.holdings.get(client.id) if self.group is not None else None
        return held is not None and client.epoch in (held.epoch, held.previous_epoch)

    @invariant()
    def a_partition_is_held_by_one(self) -> None:
        group = self.group
        if group is None:
            return
        assert group.holdings.keys() == group.members.keys()
        held = [one for member in group.members for one in group.holding(member)]
        assert len(held) == len(set(held))
        for member in group.members:
            assert all(group.holder(one) == member for one in group.holding(member))

    @invariant()
    def what_is_read_is_held(self) -> None:
        for client in self.clients:
            if self.group is not None and self.is_known(client) and client.epoch:
                assert client.reading <= self.group.holding(client.id)

    @invariant()
    def epochs_only_grow(self) -> None:
        if self.group is None:
            return
        assert self.group.target_epoch <= self.group.epoch
        assert all(one.epoch <= self.group.target_epoch for one in self.group.holdings.values())
        now = self.group.epoch, self.group.target_epoch
        assert now[0] >= self.epochs[0]
        assert now[1] >= self.epochs[1]
        self.epochs = now

    @invariant()
    def what_is_empty_is_known_to_be_so(self) -> None:
        if self.group is not None:
            assert self.group.is_empty == (self.group.empty_since > 0)
            assert self.group.regexes.keys() == {
                one.regex for one in self.group.members.values() if one.regex
            }
            if self.group.is_empty:
                assert self.group.timers == {}
                assert self.group.targets == {}

    @invariant()
    def journal_gives_the_live_state(self) -> None:
        journal = self.driver.journal
        self.replay(self.replica, journal[self.replayed :])
        self.replayed = len(journal)
        assert _durable(self.replica) == _durable(self.driver.shard)

    def teardown(self) -> None:
        newest = {entry.key: entry for entry in self.driver.journal}
        kept = [entry for entry in self.driver.journal if newest[entry.key] is entry]
        living = [entry for entry in kept if entry.value is not None]
        for compacted in (kept, living):
            rebuilt = self.replay(GroupShard(self.driver), compacted)
            assert _durable(rebuilt) == _durable(self.driver.shard)

    def replay(self, shard: GroupShard, entries: Iterable[Entry]) -> GroupShard:
        for key, value, _ in entries:
            for event in self.driver.codec.events(key, value):
                shard.apply(event)
        return shard


def _durable(shard: GroupShard) -> dict[str, Any]:
    """All that a shard knows of its groups but what dies with the process."""
    found = {name: dict(vars(group)) for name, group in shard.groups.items()}
    for group in found.values():
        for volatile in ("timers", "seen_version", "_subscribed", "_existing"):
            del group[volatile]
    return found


Consumers.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestConsumers = Consumers.TestCase

"""Groups of both kinds, in turns, under a compaction that removes values and then tombstones.

Whatever happened to two names, and however often their journal was compacted meanwhile, a restart
gives the groups and offsets that there were. A step is one batch of the journal, as it is on disk.
"""

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.group_shard import GroupShard
from headrace.core.group_words import DELETION_PORTION, Candidate, Leave, Leaver, Member
from headrace.core.machine import Entry
from headrace.core.types import MemberId

from .group_rig import ConsumerDriver

GROUPS, TOPICS, MEMBERS = ("g", "h"), ("t", "u"), ("a", "b", "c")
HOUR_MS = 3_600_000

groups, members, topics = map(st.sampled_from, (GROUPS, MEMBERS, TOPICS))


class Compacted(RuleBasedStateMachine):
    """Requests are sensible or not: what is refused changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerDriver()
        self.disk: list[list[Entry]] = []  # by batch
        self.written = 0

    def group(self, name: str) -> Any:
        return self.driver.shard.groups.get(name)

    # ---- members of the classic protocol

    @rule(
        group=groups,
        instance=st.sampled_from([None, None, "i"]),
        id_required=st.booleans(),
        offers=st.sampled_from([{"range": b""}, {"range": b"", "other": b""}, {"other": b""}]),
    )
    def classic_member_joins(
        self, group: str, instance: str | None, id_required: bool, offers: dict[str, bytes]
    ) -> None:
        self.driver.join(group=group, instance=instance, id_required=id_required, offers=offers)

    @rule(group=groups)
    def classic_members_rejoin_and_sync(self, group: str) -> None:
        for asks in (self._rejoin, self._sync):
            known = self.group(group)
            for member in list(known.members.values()) if isinstance(known, ClassicGroup) else ():
                asks(member, group)

    def _rejoin(self, member: Member, group: str) -> None:
        offers = {one.name: one.metadata for one in member.candidates}
        self.driver.join(member.id, instance=member.instance, group=group, offers=offers)

    def _sync(self, member: Member, group: str) -> None:
        known = self.group(group)
        if isinstance(known, ClassicGroup):
            given = {str(one): one.encode() for one in known.members}
            self.driver.sync(member.id, known.generation, given, member.instance, group)

    @rule(group=groups, everybody=st.booleans())
    def members_are_removed(self, group: str, everybody: bool) -> None:
        known = self.group(group)
        names = list(known.members) if known is not None else []
        gone = names if everybody else names[:1]
        instances = {name: known.members[name].instance for name in gone}
        self.driver.do(Leave(group, tuple(Leaver(name, instances[name]) for name in gone)))

    # ---- members of the new protocol

    @rule(
        group=groups,
        member=members,
        wanted=topics,
        regex=st.sampled_from(["", "", "t.*", ".*"]),
        instance=st.sampled_from([None, None, "i"]),
    )
    def consumer_joins(
        self, group: str, member: str, wanted: str, regex: str, instance: str | None
    ) -> None:
        self.driver.enter(member, wanted, regex=regex, group=group, instance=instance)

    @rule(group=groups, member=members, lets_go=st.booleans())
    def consumer_beats(self, group: str, member: str, lets_go: bool) -> None:
        known, id_ = self.group(group), MemberId(member)
        if not isinstance(known, ConsumerGroup) or id_ not in known.members:
            return
        held = known.holdings[id_]
        owned = self.driver.text(held.assigned if lets_go else known.holding(id_))
        if held.epoch >= 0 and "?" not in owned:  # of a topic that was deleted
            self.driver.heartbeat(member, held.epoch, owned, group=group)

    @rule(group=groups, member=members, epoch=st.sampled_from([-1, -2]))
    def consumer_leaves(self, group: str, member: str, epoch: int) -> None:
        known = self.group(group)
        static = known.members.get(member) if known is not None else None
        instance = static.instance if static is not None else None
        self.driver.heartbeat(member, epoch, group=group, instance=instance)

    # ---- offsets, and the rest of the world

    @rule(group=groups, topic=topics)
    def commit_from_outside(self, group: str, topic: str) -> None:
        self.driver.commit(group, 7, topic=topic)

    @rule()
    def offsets_expire(self) -> None:
        self.driver.expire()

    @rule(group=groups, offsets_max=st.sampled_from([1, DELETION_PORTION]))
    def group_is_deleted(self, group: str, offsets_max: int) -> None:
        self.driver.delete(group, offsets_max)

    @rule(topic=topics, partitions=st.integers(1, 3))
    def topic_is_made_or_grows(self, topic: str, partitions: int) -> None:
        self.driver.make_topic(topic, partitions)

    @rule(ms=st.sampled_from([1, 5_000, 60_000, HOUR_MS]))
    def time_passes(self, ms: int) -> None:
        self.driver.elapse(ms)

    @rule()
    def broker_restarts(self) -> None:
        self.store()
        self.driver.journal = [entry for batch in self.disk for entry in batch]
        self.driver.restart()
        self.disk, self.written = [self.driver.journal[:]], len(self.driver.journal)

    @rule(data=st.data())
    def journal_is_compacted(self, data: st.DataObject) -> None:
        """Up to some batch; tombstones go up to some earlier one."""
        self.store()
        end = data.draw(st.integers(0, len(self.disk)))
        horizon = data.draw(st.integers(0, end))
        newest = {entry.key: place for place in range(end) for entry in self.disk[place]}
        for place in range(end):
            last = {entry.key: entry for entry in self.disk[place]}
            self.disk[place] = [
                entry
                for entry in self.disk[place]
                if newest[entry.key] == place
                and last[entry.key] is entry
                and not (entry.value is None and place < horizon)
            ]

    # ---- what must always hold

    @invariant()
    def the_disk_has_it_all(self) -> None:
        self.store()
        found = GroupShard(self.driver)
        for entry in (entry for batch in self.disk for entry in batch):
            for event in self.driver.codec.events(entry.key, entry.value):
                found.apply(event)
        assert _durable(found) == _durable(self.driver.shard)
        assert sorted(found.names.walk()) == sorted(found.groups)
        assert found.offset_count == sum(map(len, found.offsets.values()))

    @invariant()
    def no_partition_has_two_holders(self) -> None:
        for known in self.driver.shard.groups.values():
            if isinstance(known, ConsumerGroup):
                held = [one for member in known.members for one in known.holding(member)]
                assert len(held) == len(set(held))
                assert set(held) == set(known._holders)

    @invariant()
    def what_all_offer_is_known(self) -> None:
        for known in self.driver.shard.groups.values():
            if isinstance(known, ClassicGroup) and known.members:
                names = [{one.name for one in each.candidates} for each in known.members.values()]
                assert known._common() == set.intersection(*names)

    def store(self) -> None:
        fresh = self.driver.journal[self.written :]
        self.written = len(self.driver.journal)
        if fresh:
            self.disk.append(fresh)


def _durable(shard: GroupShard) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, group in shard.groups.items():
        offsets = sorted(shard.offsets.get(name, ()), key=lambda one: one[:2])
        if isinstance(group, ConsumerGroup):
            known = dict(vars(group))
            for volatile in ("timers", "seen_version", "_subscribed"):
                del known[volatile]
            found[name] = known, offsets
        elif group.stored is not None or offsets:
            found[name] = _stored(group), offsets
    return found


def _stored(group: ClassicGroup) -> Any:
    """Of what a member offers, the chosen protocol alone is stored."""
    stored = group.stored
    if stored is None:
        return None
    return replace(
        stored,
        members=tuple(
            replace(one, candidates=(Candidate(stored.protocol, one.metadata(stored.protocol)),))
            for one in stored.members
            if stored.protocol is not None
        ),
    )


Compacted.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestCompacted = Compacted.TestCase

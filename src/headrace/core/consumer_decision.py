"""What a consumer group of the new protocol decides: heartbeats, leaves, and what time does.

A heartbeat may set off a chain: a subscription changed, so the group has a new epoch, so there is a
new target, so the member has something to let go of. A decision therefore thinks ahead on a copy of
the group, as `rebalance.py` does for classic groups; most heartbeats change nothing and make none.
Other members learn of a new target with their own heartbeats. Unlike in Kafka, a first answer has
the whole assignment if nobody has to let go of any of it (docs/consumer-groups.md).
Source: KIP-848; Kafka 4.3, GroupMetadataManager; records are in its order.
"""

from collections.abc import Mapping
from dataclasses import replace

from headrace.core import consumer_checks as checks
from headrace.core.consumer_events import (
    CatalogueSeen,
    ConsumerEvent,
    ConsumerGroupStored,
    ConsumerMemberDropped,
    ConsumerMemberStored,
    ConsumerTimerCleared,
    ConsumerTimerSet,
    HoldingDropped,
    HoldingStored,
    RegexDropped,
    RegexResolved,
    TargetSet,
    TargetStored,
    TargetUnset,
)
from headrace.core.consumer_group import ConsumerGroup
from headrace.core.consumer_topics import assigned_by, has_whole_target, hash_of, topics_of
from headrace.core.consumer_words import (
    FIRST_EPOCH,
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    NOTHING,
    Beaten,
    ConsumerBeat,
    ConsumerMember,
    ConsumerOutside,
    Holding,
    Partitions,
    Progress,
    Resolved,
)
from headrace.core.errors import Refused
from headrace.core.group_words import TIME_UNKNOWN, Gone, Leave, Timer
from headrace.core.reconcile import Goal, reconcile
from headrace.core.types import MemberId, Now, after


class ConsumerDecision:
    """One decision about a group: `events` is what it comes to."""

    def __init__(self, group: ConsumerGroup, now: Now, outside: ConsumerOutside) -> None:
        self._group = group
        self._copied = False
        self._now = now
        self._outside = outside
        self.events: list[ConsumerEvent] = []

    # ---- what is asked

    def beat(self, beat: ConsumerBeat) -> Beaten | Refused:
        """The answer to a heartbeat that `check_beat` has let pass."""
        if beat.epoch < JOINING:
            return self._leave(beat)
        known = self._known(beat)
        if isinstance(known, Refused):
            return known
        member = _as_told(known, beat)
        topics = self._topics_of(member.regex)
        if isinstance(topics, Refused):
            return topics
        if member != known:
            self._store(known, member)
        if topics is not None:
            self._resolved(member.regex, topics)
        self._follow_catalogue()
        self._bump_if(known is None or _asks_otherwise(known, member))
        self._retarget()
        before = self._group.holdings[member.id]
        held = self._reconcile(member, before, beat.owned)
        pace = self._outside.pace(self._group.name)
        self._set_timer(Timer.SESSION, member.id, pace.session_ms)
        told = beat.epoch == JOINING or _is_complete(beat) or before.assigned != held.assigned
        return Beaten(member.id, held.epoch, pace.heartbeat_ms, held.assigned if told else None)

    def leave(self, command: Leave) -> list[Refused | None]:
        """The answers to a LeaveGroup, with which members are removed from outside."""
        asked = [checks.find_leaver(self._group, leaver) for leaver in command.leavers]
        self._remove({one: Gone.LEFT for one in asked if not isinstance(one, Refused)})
        return [one if isinstance(one, Refused) else None for one in asked]

    def restart(self) -> None:
        """The group was read from the journal: everybody has all its time anew.

        A repair of the journal may lose the record of a member and keep what the member holds. The
        client may still read that, and has a session to notice that it is no member any more.
        """
        session_ms = self._outside.pace(self._group.name).session_ms
        for id_, held in self._group.holdings.items():
            self._set_timer(Timer.SESSION, id_, session_ms)
            member = self._group.members.get(id_)
            if member is not None and held.progress is Progress.UNREVOKED:
                self._set_timer(Timer.REBALANCE, id_, member.rebalance_ms)

    def expire(self) -> None:
        """Remove who was silent, or did not let go, for too long."""
        self._remove(
            {
                member: Gone.SILENT if timer is Timer.SESSION else Gone.LATE
                for timer, member in self._group.due(self._now.mono)
            }
        )

    # ---- who asks

    def _known(self, beat: ConsumerBeat) -> ConsumerMember | Refused | None:
        """The member that the heartbeat is of; None when it is a new one."""
        group, id_ = self._group, beat.member or beat.new_id
        takes_over = _takes_over(group, beat)
        if beat.epoch == JOINING and not takes_over:
            refused = checks.check_room(group, id_, self._outside.consumer_limits.members_max)
            if refused is not None:
                return refused
        if beat.instance is not None:
            refused = checks.check_instance(group, beat)
            if refused is not None:
                return refused
            if takes_over:
                return self._replace(beat.instance, id_)
        known = group.members.get(id_)
        if beat.epoch == JOINING:
            return known
        if known is None:
            return group.unknown(id_)
        return checks.check_epoch(group.holdings[id_], beat) or known

    def _replace(self, instance: str, id_: MemberId) -> ConsumerMember:
        """A static member that was away for now is back under a new id, in its old place."""
        self._remove({id_: Gone.LEFT})  # in case the id was another member's place so far
        name, old = self._group.name, self._group.with_instance(instance)
        assert old is not None
        held, target = self._group.holdings[old.id], self._group.target(old.id)
        self._forget(old.id, Gone.LEFT)
        back = replace(old, id=id_)
        self._emit(ConsumerMemberStored(name, back))
        self._emit(TargetSet(name, id_, target))
        self._emit(HoldingStored(name, id_, replace(held, epoch=JOINING, previous_epoch=JOINING)))
        return back

    # ---- subscriptions

    def _topics_of(self, regex: str) -> frozenset[str] | Refused | None:
        """What a regular expression matches; None when there is none, or that is known."""
        if not regex or regex in self._group.regexes:
            return None
        return self._outside.matching(regex)

    def _resolved(self, regex: str, topics: frozenset[str]) -> None:
        resolved = Resolved(topics, self._outside.catalogue_version, self._now.wall)
        self._emit(RegexResolved(self._group.name, regex, resolved))

    def _store(self, known: ConsumerMember | None, member: ConsumerMember) -> None:
        self._emit(ConsumerMemberStored(self._group.name, member))
        if known is not None and known.regex != member.regex:
            self._drop_regexes()

    def _drop_regexes(self) -> None:
        """Forget the regular expressions that nobody asks with any more."""
        asked = {member.regex for member in self._group.members.values()}
        for regex in [one for one in self._group.regexes if one not in asked]:
            self._emit(RegexDropped(self._group.name, regex))

    def _follow_catalogue(self) -> None:
        """Look which topics the regular expressions match, if topics have come or gone."""
        group, version = self._group, self._outside.catalogue_version
        if group.seen_version == version:
            return
        for regex, known in list(group.regexes.items()):
            topics = self._outside.matching(regex)
            if not isinstance(topics, Refused) and topics != known.topics:
                self._resolved(regex, topics)

    def _bump_if(self, subscription_changed: bool) -> None:
        """Begin a new group epoch if somebody asks for other topics, or the topics are others."""
        group, version = self._group, self._outside.catalogue_version
        if group.seen_version == version and not subscription_changed:
            return
        topics = topics_of(group, self._outside)
        metadata_hash = hash_of(topics)
        is_new = subscription_changed or metadata_hash != group.metadata_hash
        # A journal that lost records may have a target that leaves partitions out.
        if is_new or (group.seen_version is None and not has_whole_target(group, topics)):
            self._bump(metadata_hash)
        if group.seen_version != version:
            self._emit(CatalogueSeen(group.name, version))

    def _bump(self, metadata_hash: int) -> None:
        group = self._group
        empty_since = TIME_UNKNOWN if group.members else self._now.wall
        began = self._now.wall if group.began == TIME_UNKNOWN else group.began
        # A journal that lost records may have later epochs than the group's; they are used up, too.
        held = (holding.epoch for holding in group.holdings.values())
        epoch = max(group.epoch, group.target_epoch, FIRST_EPOCH, *held) + 1
        self._emit(ConsumerGroupStored(group.name, epoch, metadata_hash, empty_since, began))

    # ---- who is to hold what, and how they come there

    def _retarget(self) -> None:
        """Assign anew if the group has a new epoch, and the last assignment is old enough."""
        group = self._group
        if group.epoch <= group.target_epoch:
            return
        age_ms = self._now.wall - group.target_at
        interval_ms = self._outside.pace(group.name).assignment_interval_ms
        if group.target_at != TIME_UNKNOWN and 0 <= age_ms < interval_ms:
            return
        for member, partitions in assigned_by(group, self._outside).items():
            if group.targets.get(member) != partitions:
                self._emit(TargetSet(group.name, member, partitions))
        self._emit(TargetStored(group.name, group.epoch, self._now.wall))

    def _reconcile(
        self, member: ConsumerMember, held: Holding, owned: Partitions | None
    ) -> Holding:
        group = self._group
        if group.is_settled(member.id) and not self.events:
            return held
        next_ = reconcile(held, self._goal(member), owned)
        if next_ == held:
            return held
        self._emit(HoldingStored(group.name, member.id, next_))
        if next_.progress is not Progress.UNREVOKED:
            self._tell(ConsumerTimerCleared(group.name, Timer.REBALANCE, member.id))
        else:
            self._set_timer(Timer.REBALANCE, member.id, member.rebalance_ms)
        return next_

    def _goal(self, member: ConsumerMember) -> Goal:
        """The target, without topics that the member has just stopped to ask for."""
        group = self._group
        partitions = group.target(member.id)
        if group.target_epoch != group.epoch:  # a new target is not due yet
            names = group.wanted(member)
            wanted = {view.id for name in names if (view := self._outside.topic(name))}
            partitions = frozenset(one for one in partitions if one.topic_id in wanted)
        return Goal(
            group.target_epoch,
            partitions,
            lambda partition: group.holder(partition) in (None, member.id),
        )

    # ---- leaving

    def _leave(self, beat: ConsumerBeat) -> Beaten | Refused:
        group = self._group
        if beat.instance is not None:
            refused = checks.check_instance(group, beat)
        else:
            refused = None if beat.member in group.members else group.unknown(beat.member)
        if refused is not None:
            return refused
        if beat.epoch == LEAVING:
            self._remove({beat.member: Gone.LEFT})
        else:
            self._step_out(beat.member)
        return Beaten(beat.member, beat.epoch, 0, None)

    def _step_out(self, member: MemberId) -> None:
        """A static member is away for now: it keeps what it has, until its session ends."""
        held = self._group.holdings[member]
        away = replace(
            held,
            epoch=LEAVING_FOR_NOW,
            progress=Progress.STABLE,
            revoking=NOTHING,
            epochs=dict.fromkeys(held.assigned, 0) or None,
        )
        self._emit(HoldingStored(self._group.name, member, away))
        self._tell(ConsumerTimerCleared(self._group.name, Timer.REBALANCE, member))

    def _remove(self, gone: Mapping[MemberId, Gone]) -> None:
        present = [member for member in gone if member in self._group.holdings]
        if not present:
            return
        for member in present:
            self._forget(member, gone[member])
        self._drop_regexes()
        self._bump(hash_of(topics_of(self._group, self._outside)))

    def _forget(self, member: MemberId, why: Gone) -> None:
        name = self._group.name
        self._emit(HoldingDropped(name, member))
        self._emit(TargetUnset(name, member))
        self._emit(ConsumerMemberDropped(name, member, why))
        for timer in (Timer.SESSION, Timer.REBALANCE):
            self._tell(ConsumerTimerCleared(name, timer, member))

    # ---- small things

    def _set_timer(self, timer: Timer, member: MemberId, duration_ms: int) -> None:
        deadline = after(self._now.mono, duration_ms)
        self._tell(ConsumerTimerSet(self._group.name, timer, member, deadline))

    def _tell(self, event: ConsumerEvent) -> None:
        """An event that nothing in this decision depends on."""
        self.events.append(event)

    def _emit(self, event: ConsumerEvent) -> None:
        if not self._copied:
            self._group, self._copied = self._group.thinking(), True
        self._group.apply(event)
        self.events.append(event)


def _takes_over(group: ConsumerGroup, beat: ConsumerBeat) -> bool:
    """Whether a member joins under the instance id of another that is away for now."""
    if beat.instance is None or beat.epoch != JOINING:
        return False
    static = group.with_instance(beat.instance)
    if static is None or static.id == (beat.member or beat.new_id):
        return False
    return group.holdings[static.id].epoch == LEAVING_FOR_NOW


def _as_told(known: ConsumerMember | None, beat: ConsumerBeat) -> ConsumerMember:
    """The member as it is with what the heartbeat says; what that leaves out is as it was."""
    if known is None:
        id_ = beat.member or beat.new_id
        known = ConsumerMember(id_, None, None, "", "", frozenset(), "", 0, None)
    return ConsumerMember(
        known.id,
        known.instance if beat.instance is None else beat.instance,
        known.rack if beat.rack is None else beat.rack,
        beat.client_id,
        beat.client_host,
        known.topics if beat.topics is None else beat.topics,
        known.regex if beat.regex is None else beat.regex,
        known.rebalance_ms if beat.rebalance_ms is None else beat.rebalance_ms,
        known.assignor if beat.assignor is None else beat.assignor,
    )


def _asks_otherwise(known: ConsumerMember, member: ConsumerMember) -> bool:
    return (known.topics, known.regex) != (member.topics, member.regex)


def _is_complete(beat: ConsumerBeat) -> bool:
    """Whether a member says all of itself, as it does after it lost an answer."""
    subscribes = beat.topics is not None or beat.regex is not None
    return beat.rebalance_ms is not None and subscribes and beat.owned is not None

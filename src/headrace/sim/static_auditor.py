"""Check static members (KIP-345); shares no code with the broker.

A static member that returns within its session gets its old place: no rebalance, and no other
member may use its instance id. From the moment at which the new member id is answered, requests
under the old one are fenced. The auditor excuses a new generation only by what may cause one: an
instance that is new, silent or leaving, a member that joins with its id, a generation that is not
settled yet, or a broker that may have lost its sessions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

_NEVER_US = -1


@dataclass(slots=True)
class _Instance:
    """A static member: its member id, and when its last answered request was sent."""

    member: str = ""
    asked_us: int = _NEVER_US


@dataclass(slots=True)
class _Group:
    """A group of static members: its generation, who is synced, and whose requests may end it.

    Joins in flight are `causes`; `leavers` sent a request to leave and have not joined since.
    """

    instances: dict[str, _Instance] = field(default_factory=dict)
    generation: int = -1
    synced: set[str] = field(default_factory=set)
    causes: set[str] = field(default_factory=set)
    leavers: set[str] = field(default_factory=set)

    def forget_sessions(self) -> None:
        """Keep only the names of the instances: each may be a silent member until it answers."""
        self.instances = {name: _Instance() for name in self.instances}
        self.generation = -1
        self.synced.clear()
        self.causes.clear()
        self.leavers.clear()


class StaticAuditor:
    """Promises about groups that consist of static members.

    Args:
        now_us: returns the time of the world, in microseconds.
        broken: called with each promise that the broker broke.
        losses: returns how often the broker may have forgotten its sessions.
        session_us: silence after which a member is removed.
        rebalance_us: time after which a member of the consumer protocol is removed that does not
            confirm that it gave partitions up.
    """

    def __init__(
        self,
        now_us: Callable[[], int],
        broken: Callable[[str], None],
        losses: Callable[[], int],
        session_us: int,
        rebalance_us: int,
    ) -> None:
        self._now_us = now_us
        self._broken = broken
        self._losses = losses
        self._session_us = session_us
        self._rebalance_us = rebalance_us
        self._groups: dict[str, _Group] = {}
        self._losses_seen = 0

    def _of(self, name: str) -> _Group:
        if self._losses_seen != self._losses():
            self._losses_seen = self._losses()
            for one in self._groups.values():
                one.forget_sessions()
        return self._groups.setdefault(name, _Group())

    def _is_alive(self, one: _Instance) -> bool:
        return one.asked_us != _NEVER_US and self._now_us() < one.asked_us + self._session_us

    def _is_settled(self, group: _Group) -> bool:
        """Whether every instance has its assignment, and none was silent since then."""
        return all(
            name in group.synced and self._is_alive(one) for name, one in group.instances.items()
        )

    def stalled(self, duration_us: int) -> None:
        """The broker is stopped for some time, by which it has to extend every session."""
        for group in self._groups.values():
            for one in group.instances.values():
                if self._is_alive(one):
                    one.asked_us += duration_us

    # ---- classic groups

    def joining(self, name: str, instance: str, member: str) -> None:
        """A request to join is sent, with a member id or without."""
        group = self._of(name)
        known = group.instances.get(instance)
        if member or known is None or not self._is_settled(group):
            group.causes.add(instance)

    def leaving(self, name: str, instance: str) -> None:
        """A request that ends the membership of an instance is sent."""
        self._of(name).leavers.add(instance)

    def refused(self, name: str, instance: str) -> None:
        """The refusal of a join leaves the broker. A request to leave may be carried out still."""
        self._of(name).causes.discard(instance)

    def joined(self, name: str, instance: str, member: str, generation: int) -> None:
        """The response to a join leaves the broker."""
        group = self._of(name)
        if generation > group.generation:
            is_excused = group.causes or group.leavers
            if group.instances and not is_excused and self._is_settled(group):
                self._broken(
                    f"group {name}: generation {generation} began because static member {instance}"
                    f" returned within its session; generation {group.generation} was stable"
                )
            group.generation = generation
            group.synced.clear()
        group.causes.discard(instance)
        group.leavers.discard(instance)
        self.answered(name, instance, member, self._now_us())

    def synced(self, name: str, instance: str, generation: int) -> None:
        """An assignment leaves the broker."""
        group = self._of(name)
        if generation == group.generation:
            group.synced.add(instance)

    # ---- both protocols

    def answered(self, name: str, instance: str, member: str, asked_us: int) -> None:
        """The response to a request that renews the session leaves the broker."""
        one = self._of(name).instances.setdefault(instance, _Instance())
        one.member, one.asked_us = member, max(one.asked_us, asked_us)

    def is_replaced(self, name: str, instance: str, member: str) -> bool:
        """Return whether another member id is known to have the place of `member`."""
        one = self._of(name).instances.get(instance)
        return one is not None and bool(one.member) and one.member != member

    def served_old(self, name: str, instance: str, member: str, what: str) -> None:
        """A request under a replaced member id was carried out."""
        self._broken(
            f"group {name}: {what} of {member} was carried out after instance {instance} had"
            " another member id"
        )

    def is_taken(self, name: str, instance: str, member: str) -> bool:
        """Return whether a live member with another id has the instance.

        The member may have died before it confirmed what it gave up.
        """
        one = self._of(name).instances.get(instance)
        if one is None or one.member in ("", member) or not self._is_alive(one):
            return False
        return self._now_us() < one.asked_us + self._rebalance_us

    def took_over(self, name: str, instance: str, member: str) -> None:
        """A member joined under an instance id that a live member has."""
        self._broken(f"group {name}: {member} joined as instance {instance}, which is in use")

    def away(self, name: str, instance: str) -> None:
        """An instance sends that it is away for now: another member id may take its place."""
        self._of(name).instances.pop(instance, None)

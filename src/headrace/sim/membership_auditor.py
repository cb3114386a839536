"""Check the membership of share groups: bounds, sessions that end, and assignments. KIP-932.

A member counts as present from the response to its heartbeat until the end of the shortest session
that the broker may have given it, so that each number of members is a lower bound. The auditor
shares no code with the broker.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from headrace.sim.facts import Place

_LATE_US = 2_000_000  # that the broker may remove a member later than its session ends
_UNCERTAIN_US = 1_000_000  # that the broker may take a stall for longer than it is: its last timer

_Key = tuple[str, str]  # group and member


@dataclass(slots=True)
class _Member:
    """What is known of one member.

    Attributes:
        present_until_us: the earliest end of the session.
        response_us: when the latest response to a heartbeat left; None while a heartbeat without
            a response may have extended the session.
        was_stalled: whether the broker was stalled since that response.
        has_session: whether a share session of the member is open.
    """

    present_until_us: int = 0
    response_us: int | None = None
    was_stalled: bool = False
    has_session: bool = False


class MembershipAuditor:
    """Promises of one broker about members of share groups.

    Args:
        now_us: returns the time of the world.
        broken: called with each promise that the broker broke.
        session_us: how long a member stays without a heartbeat.
        members_max: members that a group may have.
        sessions_max: share sessions that the broker may have open.
    """

    def __init__(
        self,
        now_us: Callable[[], int],
        broken: Callable[[str], None],
        *,
        session_us: int,
        members_max: int,
        sessions_max: int,
    ) -> None:
        self._now_us = now_us
        self._broken = broken
        self._session_us = session_us
        self._members_max = members_max
        self._sessions_max = sessions_max
        self._members: dict[_Key, _Member] = {}

    def lost(self) -> None:
        """Forget every member and session: the broker died, or rebuilt its state."""
        self._members.clear()

    def stalled(self, duration_us: int, *, extends: bool) -> None:
        """Extend every session by a time in which the broker does not run.

        Args:
            duration_us: how long the broker does not run.
            extends: whether the broker must extend sessions; it may also after a shorter stall.
        """
        for one in self._members.values():
            if extends:
                one.present_until_us += duration_us
            if one.response_us is not None:
                one.response_us += duration_us + (not one.was_stalled) * _UNCERTAIN_US
                one.was_stalled = True

    def sending(self, group: str, member: str) -> int | None:
        """Note that a heartbeat is sent.

        Returns:
            When the latest response before it left, None if that is not known.
        """
        known = self._members.get((group, member))
        if known is None:
            return None
        before, known.response_us = known.response_us, None
        return before

    def served(
        self, group: str, member: str, sent_us: int, *, epoch: int, before_us: int | None
    ) -> None:
        """Check a response without an error to a heartbeat that does not leave.

        Args:
            sent_us: when the heartbeat was sent.
            epoch: that the heartbeat contained.
            before_us: the result of `sending`.
        """
        if epoch and before_us is not None and sent_us - before_us > self._session_us + _LATE_US:
            self._broken(
                f"member {member} of {group} is served {(sent_us - before_us) / 1e6:.3f} s after"
                f" the response before, and its session lasts {self._session_us / 1e6:.3f} s"
            )
        known = self._members.setdefault((group, member), _Member())
        known.response_us, known.was_stalled = self._now_us(), False
        # The broker counts whole milliseconds.
        end_us = sent_us // 1000 * 1000 + self._session_us
        known.present_until_us = max(known.present_until_us, end_us)
        present = [key[1] for key in self._present() if key[0] == group]
        if len(present) > self._members_max:
            self._broken(
                f"group {group} may have {self._members_max} members, and has {sorted(present)}"
            )

    def leaving(self, group: str, member: str) -> None:
        """Forget a member when it sends a heartbeat that leaves the group."""
        self._members.pop((group, member), None)

    def opened(self, group: str, member: str) -> None:
        """Check the sessions after a response that opened one."""
        known = self._members.get((group, member))
        if known is None:
            return
        known.has_session = True
        # A session without a member may be closed for one of a member.
        count = sum(self._members[key].has_session for key in self._present())
        if count > self._sessions_max:
            self._broken(f"{self._sessions_max} share sessions may be open, and {count} are")

    def closed(self, group: str, member: str) -> None:
        """Note that a member closed its share session, or that its connection ended."""
        known = self._members.get((group, member))
        if known is not None:
            known.has_session = False

    def is_replaced(self, group: str, member: str) -> bool:
        """Return whether the open session of a member may have given way to another one.

        The session of a member that is present has not: it is closed once the member is refused.
        """
        known = self._members.get((group, member))
        return known is None or known.present_until_us <= self._now_us()

    def assigned(
        self, group: str, member: str, topics: Collection[str], places: Collection[Place]
    ) -> None:
        """Check that a member is assigned partitions of its own topics only."""
        for topic, index in places:
            if topic not in topics:
                self._broken(
                    f"member {member} of {group} is assigned {topic}-{index}, and subscribes to"
                    f" {sorted(topics)}"
                )

    def _present(self) -> list[_Key]:
        now_us = self._now_us()
        return [key for key, one in self._members.items() if one.present_until_us > now_us]


def imbalance(
    places: Collection[Place],
    topics: Mapping[str, Collection[str]],
    assigned: Mapping[str, Collection[Place]],
) -> str | None:
    """Return why the assignment of a group is not complete or not balanced; None if it is.

    Topics with the same subscribers are balanced together: a member has as many of their
    partitions as any other, or one more, and each partition has a member at least.

    Args:
        places: partitions that are to be assigned.
        topics: topics of each member.
        assigned: partitions of each member.
    """
    owners = Counter(place for some in assigned.values() for place in some)
    for topic, index in places:
        if not owners[topic, index] and any(topic in some for some in topics.values()):
            return f"{topic}-{index} is assigned to no member"
    subscribers = {
        topic: tuple(sorted(name for name, some in topics.items() if topic in some))
        for topic, _ in owners
    }
    for members in sorted(set(subscribers.values())):
        loads = {
            name: sum(subscribers[topic] == members for topic, _ in assigned[name])
            for name in members
        }
        if loads and max(loads.values()) - min(loads.values()) > 1:
            return f"members have {loads} partitions of the same topics"
    return None

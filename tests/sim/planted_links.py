"""Bugs that only faults of clients, links and the machine uncover, as somebody might write them.

`FAULTS` is to be read as in `planted_faults.py`.
"""

from typing import Any
from weakref import WeakKeyDictionary

import pytest

from headrace.broker.background import in_background
from headrace.broker.checked_clock import CheckedClock
from headrace.broker.handlers import consumer_group_heartbeat
from headrace.broker.services import Services
from headrace.core.group_words import Leave, Leaver
from headrace.wire.frames import Frames

from .planted import anybody_may_acknowledge
from .planted_faults import Fault
from .planted_records import duplicates_are_appended, retention_trusts_the_wall_clock
from .planted_requests import checksums_count_only_with_acks


def stalls_end_sessions(patch: pytest.MonkeyPatch) -> None:
    """Time in which the broker did not run counts for sessions and locks."""
    patch.setattr(CheckedClock, "_note_stall", CheckedClock.beat)


def members_leave_with_their_connection(patch: pytest.MonkeyPatch) -> None:
    """A member of the consumer protocol is removed when its connection ends."""
    command_of, disconnected = consumer_group_heartbeat._command, Services.disconnected
    members: WeakKeyDictionary[Services, dict[int, Any]] = WeakKeyDictionary()

    def noted(request: Any, services: Services) -> Any:
        command = command_of(request, services)
        members.setdefault(services, {})[request.connection_id] = command
        return command

    def gone(self: Services, connection_id: int) -> None:
        disconnected(self, connection_id)
        known = members.get(self, {}).pop(connection_id, None)
        if known is not None:
            in_background(self.groups.ask(known.group, Leave(known.group, (Leaver(known.member),))))

    patch.setattr(consumer_group_heartbeat, "_command", noted)
    patch.setattr(Services, "disconnected", gone)


def last_pieces_are_lost(patch: pytest.MonkeyPatch) -> None:
    """The last piece of a request that arrives in pieces is zeros."""
    sound = Frames.received

    def wrong(self: Frames, count: int) -> list[bytearray]:
        known = None if self._frame is None else self._filled
        found = sound(self, count)
        if known is not None:
            for one in found:
                one[known:] = bytes(len(one) - known)
        return found

    patch.setattr(Frames, "received", wrong)


_MEMBERS = {"members": 3, "seconds": 4, "static_members": False}
_QUEUE = {
    "queues": True, "records": False, "members": 3, "seconds": 4, "groups": 1, "leases": 0,
    "lock_ms": 1000, "limit": 3, "partitions": 1, "share_off": False,
}  # fmt: skip

FAULTS: dict[str, Fault] = {
    "a suspended machine, and members": Fault(
        "the machine is suspended",
        {"suspends": True},
        {stalls_end_sessions: 0},
        _MEMBERS | {"consumers": ("classic", "consumer")},
    ),
    "a broker that is held, and members": Fault(
        "the process of the broker is held",
        {"suspends": True},
        {stalls_end_sessions: 0},
        _MEMBERS | {"consumers": ("classic", "consumer")},
    ),
    "a suspended machine, and locks": Fault(
        "the machine is suspended",
        {"suspends": True},
        {stalls_end_sessions: 0},
        _QUEUE | {"members": 6, "limit": 8, "seconds": 8},
    ),
    "a wall clock that is set": Fault(
        "the wall clock is set by",
        {"clock_set": True},
        {retention_trusts_the_wall_clock: 0},
        {"consumers": ("classic", "consumer"), "members": 2},
    ),
    "lost responses": Fault(
        "a response is lost", {"lost_answers": True}, {duplicates_are_appended: 0}
    ),
    "members that vanish": Fault(
        " vanishes",
        {"vanishing": True},
        {members_leave_with_their_connection: 0},
        _MEMBERS | {"consumers": ("consumer",)},
    ),
    "hostile peers": Fault(
        "stranger sends",
        {"hostile": True},
        {checksums_count_only_with_acks: 0},
        {"seconds": 4, "lies": False},
    ),
    "rough links": Fault("a link is rough", {"rough_links": True}, {last_pieces_are_lost: 0}),
    "repeated acknowledgements": Fault(
        " repeats ",
        {"repeats": True},
        {anybody_may_acknowledge: 0},
        _QUEUE,
    ),
}

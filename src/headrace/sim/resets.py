"""An administrator who sets where groups begin, and deletes them, and looks what became of it.

What he was told holds, whatever crashes. Where an answer was lost the old state or the new one may
be there, until he sees which; from then on that one is. The group that he sets amid all faults has
no members. Groups with members are set back when all is quiet and finished, and finish once more.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from headrace.sim.actor import Actor
from headrace.sim.facts import Place
from headrace.sim.network import Connection, Lost

if TYPE_CHECKING:
    from headrace.sim.world import World

_DELETE_GROUPS, _DESCRIBE, _ALTER, _DELETE_OFFSETS = 42, 90, 91, 92
_NO_GROUP, _NOT_EMPTY, _STORAGE_ERROR = 69, 68, 56  # of Kafka's codes
_ASK_AGAIN = frozenset({14, 15, 16, _STORAGE_ERROR})  # codes after which nobody knows
_NOWHERE = -1  # how the start of a group that is not there is told
_PAUSE_SECONDS = 0.3
_GROUP = "red"
PLACE: Place = ("orders", 0)


class Resets(Actor):
    """Sets, deletes and looks at a group of its own; `set_back` is for the groups of others."""

    _pause = (0.0, _PAUSE_SECONDS)
    _lost_pause = (0.01, _PAUSE_SECONDS)

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self._states = [(0, frozenset({_NOWHERE}))]  # since when, and which starts are possible
        self._cuts = 0  # of the power
        world.auditor.sessions.append(self)

    @property
    def _possible(self) -> frozenset[int]:
        return self._states[-1][1]

    @_possible.setter
    def _possible(self, starts: Iterable[int]) -> None:
        self._states.append((self._world.loop.now_us, frozenset(starts)))

    def power_was_cut(self, since_us: int) -> None:
        """Take every state for possible that the group may have had since a time."""
        self._cuts += 1
        known = self._possible
        for at_us, starts in reversed(self._states):
            known |= starts
            if at_us < since_us:
                break
        self._possible = known

    def end_was_lost(self, place: Place, end: int) -> None:
        """A log ends there after a power cut: no group begins behind its end."""
        if place == PLACE:
            self._possible = frozenset(min(one, end) for one in self._possible)

    async def look(self) -> None:
        """See what is there, however often it takes."""
        while True:
            try:
                connection = Connection(self._world, self._rng)
                is_seen = await self._look(connection)
                connection.close()
                if is_seen:
                    return
            except Lost:
                pass
            await asyncio.sleep(_PAUSE_SECONDS)

    async def set_back(self, group: str) -> None:
        """Have a group, whose members leave off, begin anew in a place, however often it takes."""
        start = self._rng.randrange(self._world.auditor.known_end(PLACE) + 1)

        def is_set() -> None:
            self._world.auditor.reset((group, PLACE), start)

        while True:
            try:
                connection = Connection(self._world, self._rng)
                code = await self._alter(connection, group, start, is_set)
                connection.close()
                if code == 0:
                    return
            except Lost:
                pass
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _turn(self, connection: Connection) -> None:
        drawn = self._rng.random()
        if drawn < 0.4:
            await self._look(connection)
        elif drawn < 0.8:
            start = self._rng.randrange(self._world.auditor.known_end(PLACE) + 1)
            before = self._doubting(start)
            code = await self._alter(connection, _GROUP, start, lambda: self._is_known(start))
            self._answered(code, before)
        else:
            before = self._doubting(_NOWHERE)
            delete = self._delete if drawn < 0.9 else self._delete_offsets
            code = await delete(connection)
            self._answered(code, before)
            if code == _NO_GROUP:
                self._seen(_NOWHERE)

    # ---- what may be there

    def _doubting(self, start: int) -> tuple[int, frozenset[int]]:
        """A change is sent; what was possible before, and how often the power was cut by then."""
        before = self._possible
        self._possible = before | {start}
        return self._cuts, before

    def _is_known(self, start: int) -> None:
        self._possible = frozenset({start})

    def _answered(self, code: int, before: tuple[int, frozenset[int]]) -> None:
        """The code of a change arrived: what was refused is not there."""
        cuts, possible = before
        if code == _NOT_EMPTY:
            self._world.auditor.broken(f"group {_GROUP} is not empty, and has no members")
        if code not in _ASK_AGAIN and code != 0 and cuts == self._cuts:
            self._possible = possible

    def _seen(self, start: int) -> None:
        """The answer to a look left the broker."""
        cut = self._world.auditor.cut(PLACE)
        if self._world.auditor.may_be_shorter(PLACE):
            return  # and the group may begin where it will end, once it is opened
        found = {
            one
            for one in self._possible
            if start == one or (one != _NOWHERE and one <= start <= max(one, cut))
        }
        if not found:
            told = f"group {_GROUP} begins at {start}, and was set to {sorted(self._possible)}"
            self._world.auditor.broken(told)
        else:
            self._possible = frozenset(found)

    # ---- requests

    async def _look(self, connection: Connection) -> bool:
        def code_of(answer: Any) -> int:
            """Also where the log cannot be opened: then no start is told."""
            (group,) = answer.groups
            return int(group.error_code or group.topics[0].partitions[0].error_code)

        def let_out(answer: Any) -> None:
            if code_of(answer) == 0:
                self._seen(answer.groups[0].topics[0].partitions[0].start_offset)

        topic, index = PLACE
        asked = {"group_id": _GROUP, "topics": ({"topic_name": topic, "partitions": (index,)},)}
        answer = await connection.call(_DESCRIBE, 1, let_out, groups=(asked,))
        code = code_of(answer)
        self._step(f"sees {_GROUP}: {code}, possible {sorted(self._possible)}")
        return code == 0

    async def _alter(
        self, connection: Connection, group: str, start: int, is_set: Callable[[], None]
    ) -> int:
        def let_out(answer: Any) -> None:
            if _altered(answer) == 0:
                is_set()

        topic, index = PLACE
        one = {"partition_index": index, "start_offset": start}
        answer = await connection.call(
            _ALTER, 0, let_out,
            group_id=group, topics=({"topic_name": topic, "partitions": (one,)},),
        )  # fmt: skip
        code = _altered(answer)
        self._step(f"sets {group} to {start}: {code}")
        return code

    async def _delete(self, connection: Connection) -> int:
        def let_out(answer: Any) -> None:
            if answer.results[0].error_code == 0:
                self._is_known(_NOWHERE)

        answer = await connection.call(_DELETE_GROUPS, 2, let_out, groups_names=(_GROUP,))
        code = int(answer.results[0].error_code)
        self._step(f"deletes {_GROUP}: {code}")
        return code

    async def _delete_offsets(self, connection: Connection) -> int:
        def code_of(answer: Any) -> int:
            return int(answer.error_code or answer.responses[0].error_code)

        def let_out(answer: Any) -> None:
            if code_of(answer) == 0:
                self._is_known(_NOWHERE)

        answer = await connection.call(
            _DELETE_OFFSETS, 0, let_out, group_id=_GROUP, topics=({"topic_name": PLACE[0]},)
        )
        code = code_of(answer)
        self._step(f"deletes the offsets of {_GROUP}: {code}")
        return code

    def _step(self, what: str) -> None:
        self._world.history.step(self.name, what)


def _altered(answer: Any) -> int:
    return int(answer.error_code or answer.responses[0].partitions[0].error_code)

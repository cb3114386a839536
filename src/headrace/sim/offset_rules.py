"""Rules of committed offsets that need quiet: standalone consumers, deletions, other types.

While honest members keep their groups active, offsets are committed outside of any group, deleted,
and kept by a group whose protocol type the coordinator cannot read. Sources: KIP-211, KIP-496.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.sim.consumers import (
    REBALANCE_MS,
    SESSION_MS,
    ClassicReader,
    commit_offset,
    fetch_offsets,
)
from headrace.sim.facts import Place
from headrace.sim.loop import OUTSIDE
from headrace.sim.network import Connection, Lost
from headrace.sim.offset_auditor import ABSENT
from headrace.sim.process import Process

if TYPE_CHECKING:
    from headrace.sim.world import World

SIMPLE, CONNECT, NOBODY = "simple-group", "connect-group", "nobody-group"
CUSTOM_MS = 15_000  # the retention of one offset, as clients before Kafka 2.1 set it
_COMMIT, _JOIN, _LIST, _DELETE = 8, 11, 16, 47
_GROUP_UNKNOWN, _NON_EMPTY, _SUBSCRIBED, _INCONSISTENT = 69, 68, 86, 23
_RETRIED = frozenset({14, 15, 16})  # codes of a coordinator that is not there yet
_RETRY_SECONDS = 0.5
_DELETES = 0.6  # of the offsets that no member uses
_VISIT_SECONDS = 1.5
_REBALANCE_SECONDS = 4.0  # by then the members that stay have rejoined
_OLD, _NEW, _CUSTOM = ("ledger", 0), ("ledger", 1), ("table", 0)


class OffsetMeters(NamedTuple):
    """What the broker counted since it started, and the committed offsets that it has now."""

    commits: int
    deletions: int
    expirations: int
    offsets: int

    def miscount(
        self, before: "OffsetMeters", deletions: range, commits: range = range(1, 2)
    ) -> str | None:
        """Compare the meters with one commit over an older one, and with deletions since.

        An OffsetDelete is answered alike whether the offset was there or had just expired, so that
        the responses give bounds of the deletions at times. The number of offsets that are gone is
        exact: each was deleted or has expired. Commits of other members may add offsets.

        Args:
            before: the meters before the commit.
            deletions: how many offsets may have been deleted.
            commits: how many commits the broker may have carried out, the first among them.

        Returns:
            A description of what was not counted; None if the meters are right.
        """
        counted, deleted, expired, _ = (new - old for new, old in zip(self, before, strict=True))
        gone = before.offsets - self.offsets
        added = deleted + expired - gone
        if counted in commits and deleted in deletions and 0 <= added < commits.stop - 1:
            return None
        bounds = [
            " to ".join(str(bound) for bound in sorted({counts[0], counts[-1]}))
            for counts in (commits, deletions)
        ]
        return (
            f"the meters counted {[counted, deleted]} commits and deletions, and there were"
            f" {bounds[0]} and {bounds[1]}; they counted {expired} expirations, and {gone} offsets"
            " are gone"
        )


class ConnectWorker(ClassicReader):
    """A member of a group of another protocol type, whose subscription the broker cannot read."""

    _protocol_type = "connect"

    def __init__(self, world: "World") -> None:
        super().__init__(world, "worker", CONNECT, ["ledger"])
        self.is_honest = True
        self.has_committed = False

    def _metadata(self) -> bytes:
        return b"\x00\x00\x00\x00\x00\x00"  # as a subscription, it would name no topic

    async def _begin_at(self, connection: Connection, places: Any) -> None:
        await super()._begin_at(connection, places)
        self.has_committed = not await self._commit_one(
            connection, _OLD, 5, self._member, self._generation
        )


class OffsetRules:
    """Steps of the quiet days of a history, in their order."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/offset-rules")
        self.worker = ConnectWorker(world)
        self._expirations = 0  # that the meter counted, midway
        self._expiring: set[Place] = set()  # offsets of SIMPLE that were committed then
        self._began: tuple[Process | None, int] = (None, 0)

    async def begin(self) -> None:
        """Commit outside of any group, one offset with a retention of its own."""
        self._world.offsets.completed.clear()  # groups that expired begin at generation 1 again
        self._began = self._world.process, self._rebalances()[0]
        await self._calmly(lambda link: self._commit(link, _OLD, 1))
        await self._calmly(lambda link: self._commit(link, _NEW, 2))
        await self._calmly(self._commit_with_retention)

    async def midway(self) -> None:
        """Check the short retention, commit again, and delete offsets of active groups."""
        found = await self.look(SIMPLE)
        self._world.offsets.has_expired(SIMPLE, _CUSTOM, found[_CUSTOM])
        before, least, most = self._meters(), 0, 0
        began_us = self._world.loop.now_us
        await self._calmly(lambda link: self._commit(link, _NEW, 3))
        for protocol in self._world.options.consumers:
            group = f"{protocol}-group"
            await self._deletes(group, _OLD, _SUBSCRIBED)
            deletions = await self._deletes_unused(group)
            least += deletions[0]
            most += deletions[-1]
        meters = self._meters()
        self._expirations = meters.expirations
        self._expiring = {place for place, offset in found.items() if offset != ABSENT}
        commits = self._world.offsets.commits_since(began_us)
        miscount = meters.miscount(before, range(least, most + 1), commits)
        if miscount is not None:
            self._world.records_broken(miscount)
        await self._deletes(NOBODY, _OLD, _GROUP_UNKNOWN)
        if self.worker.has_committed:
            await self._deletes(CONNECT, _OLD, _NON_EMPTY)
            await self._joins_as(CONNECT, "consumer")
        if "classic" in self._world.options.consumers:
            await self._joins_as("classic-group", "connect")

    async def end(self) -> None:
        """Check what a retention has passed for, and what is still in use."""
        found = await self.look(SIMPLE)
        self._world.offsets.has_expired(SIMPLE, _OLD, found[_OLD])
        self._is_kept(SIMPLE, _NEW, found[_NEW])
        expired = sum(found[place] == ABSENT for place in self._expiring)
        counted = self._meters().expirations - self._expirations
        if counted < expired:
            self._world.records_broken(
                f"the meter counted {counted} expirations, and there were {expired} at least"
            )
        if self.worker.has_committed:
            self._is_kept(CONNECT, _OLD, (await self.look(CONNECT))[_OLD])
        await asyncio.sleep(_REBALANCE_SECONDS)
        process, before = self._began
        counted, completed = self._rebalances()
        if process is self._world.process and counted - before != completed:
            self._world.records_broken(
                f"the meter counted {counted - before} completed rebalances, and there were"
                f" {completed}"
            )

    async def visit(self, number: int) -> None:
        """Join each classic group, and leave it again: its members have to rejoin twice."""
        if "classic" not in self._world.options.consumers:
            return
        visitor = ClassicReader(self._world, f"visitor-{number}", "classic-group", ["ledger"])
        visitor.is_honest = True
        staying = self._world.loop.spawn(OUTSIDE, visitor.run())
        await asyncio.sleep(_VISIT_SECONDS)
        visitor.is_honest = False
        await staying

    async def listed(self) -> set[str]:
        """Return the groups that ListGroups names."""
        found: set[str] = set()

        async def ask(link: Connection) -> bool:
            answer = await link.call(_LIST, 4, lambda _: None, states_filter=())
            found.update(one.group_id for one in answer.groups)
            return not answer.error_code

        await self._calmly(ask)
        return found

    def _meters(self) -> OffsetMeters:
        process = self._world.process
        assert process is not None, "the broker answered a moment ago"
        groups = process.services.groups
        meters = groups.meters
        return OffsetMeters(
            meters.offset_commits, meters.offset_deletions, meters.offset_expirations,
            sum(groups.machine_of(shard).offset_count for shard in groups.shards),
        )  # fmt: skip

    def _rebalances(self) -> tuple[int, int]:
        """Return how many rebalances the meter counted, and how many members learned of."""
        process = self._world.process
        assert process is not None, "the broker answered a moment ago"
        completed = len(self._world.offsets.completed)
        return process.services.groups.meters.completed_rebalances, completed

    async def look(self, group: str) -> dict[Place, int]:
        """Return the committed offsets of a group."""
        places = self._world.record_places()
        found: dict[Place, int] = {}

        async def ask(link: Connection) -> bool:
            found.update(await fetch_offsets(self._world, link, group, places))
            return len(found) == len(places)

        await self._calmly(ask)
        return found

    def _is_kept(self, group: str, place: Place, offset: int) -> None:
        if offset == ABSENT and self._world.offsets.has_all_commits:
            self._world.records_broken(
                f"group {group}: the offset of {place[0]}-{place[1]} expired before its time"
            )

    # ---- requests

    async def _calmly(self, work: Callable[[Connection], Awaitable[bool]]) -> None:
        """Do something, however often it takes."""
        while True:
            try:
                connection = Connection(self._world, self._rng)
                try:
                    if await work(connection):
                        return
                finally:
                    connection.close()
            except Lost:
                pass
            await asyncio.sleep(_RETRY_SECONDS)

    async def _commit(self, link: Connection, place: Place, offset: int) -> bool:
        return not await commit_offset(self._world, link, SIMPLE, ("", -1), place, offset)

    async def _commit_with_retention(self, link: Connection) -> bool:
        topic, index = _CUSTOM
        part = {"partition_index": index, "committed_offset": 4, "committed_metadata": ""}
        write = self._world.offsets.committing(SIMPLE, _CUSTOM, 4)
        answer = await link.call(
            _COMMIT, 4, lambda _: None, group_id=SIMPLE, generation_id_or_member_epoch=-1,
            member_id="", retention_time=CUSTOM_MS,
            topics=[{"name": topic, "partitions": [part]}],
        )  # fmt: skip
        # The auditor knows one retention only: this offset may be absent at any time.
        self._world.offsets.committed(write)
        self._world.offsets.committing(SIMPLE, _CUSTOM, ABSENT)
        return not answer.topics[0].partitions[0].error_code

    async def _joins_as(self, group: str, protocol_type: str) -> None:
        """Join a group whose members have another protocol type, which has to be refused."""

        async def ask(link: Connection) -> bool:
            answer = await link.call(
                _JOIN, 6, lambda _: None, group_id=group, session_timeout=SESSION_MS,
                rebalance_timeout=REBALANCE_MS, member_id="", group_instance_id=None,
                protocol_type=protocol_type, protocols=[{"name": "range", "metadata": b""}],
            )  # fmt: skip
            code = answer.error_code
            self._world.history.step("witness", f"joins {group} as {protocol_type}: {code}")
            if code not in (_INCONSISTENT, *_RETRIED):
                self._world.records_broken(
                    f"JoinGroup of type {protocol_type} in {group} is answered with {code}, and not"
                    f" with {_INCONSISTENT}"
                )
            return code not in _RETRIED

        await self._calmly(ask)

    async def _deletes_unused(self, group: str) -> range:
        """Delete the offset that no member uses, or leave it to expire.

        Returns:
            How many offsets may have been deleted.
        """
        before = self._meters().expirations
        known = (await self.look(group))[_CUSTOM]
        if self._rng.random() >= _DELETES:  # the others have to expire
            return range(1)
        was_due = await self._deletes(group, _CUSTOM, 0)
        if known == ABSENT:
            return range(1)
        # An offset that expired since the look could not be deleted any more.
        may_have_expired = was_due and self._meters().expirations > before
        return range(0 if may_have_expired else 1, 2)

    async def _deletes(self, group: str, place: Place, expected: int) -> bool:
        """Delete an offset; the code has to be the one of the proposal.

        Returns:
            Whether the offset was old enough to expire when the response left the broker.
        """
        topic, index = place
        fields = {"name": topic, "partitions": [{"partition_index": index}]}
        write = self._world.offsets.committing(group, place, ABSENT)
        was_due = False

        def let_out(answer: Any) -> None:
            nonlocal was_due
            was_due = self._world.offsets.may_have_expired(group, place)
            code = answer.error_code or answer.topics[0].partitions[0].error_code
            if code == 0:
                self._world.offsets.committed(write)
            if code != expected:
                self._world.records_broken(
                    f"OffsetDelete of {topic} in {group} is answered with {code}, and not with"
                    f" {expected}"
                )

        async def ask(link: Connection) -> bool:
            answer = await link.call(_DELETE, 0, let_out, group_id=group, topics=[fields])
            code = answer.error_code or answer.topics[0].partitions[0].error_code
            self._world.history.step("witness", f"deletes {topic}-{index} of {group}: {code}")
            return True

        await self._calmly(ask)
        if expected:
            self._world.offsets.refused(group, place, write)
        return was_due

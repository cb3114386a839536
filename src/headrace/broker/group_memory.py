"""The memory that groups take together: members, commits, share groups; and how many there are.

Clients make groups by naming them, and give members and commits as much metadata as fits into a
request. So each request that may add state is admitted first, by its size. What replaces older
state is counted as if it were new, and a background task measures all state again, in portions,
whenever enough was added since the last time.

Above `headrace.groups.max.bytes` only small additions are accepted, up to half as much again: a
client that fills the memory with large members or commits does not shut out ordinary ones.
"""

import asyncio
from collections.abc import Collection, Iterator, Sequence

from headrace.broker.background import in_background
from headrace.broker.config import Config
from headrace.broker.groups import Groups
from headrace.broker.shares import Shares
from headrace.core.classic_group import ClassicGroup
from headrace.core.consumer_group import ConsumerGroup, Group
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Offset
from headrace.core.offsets import Offsets
from headrace.core.types import MemberId

SMALL_BYTES = 2048  # of a request
ENTRY_BYTES = 1000  # of a group or a member without its names and metadata
OFFSET_BYTES = 300
_SHARE_PARTITION_BYTES = 1000
_MEASURES = 16  # until as much was added as is allowed
_PORTION = 500
_BYTES_PER_STEP = 5_000  # of one member: its names are counted one by one
_REPLACED_MAX = 16  # offsets of a commit that are looked up, to accept it when memory is used up


class GroupMemory:
    """Admits what groups may add; `bytes` and `groups` are estimates."""

    def __init__(self, config: Config, groups: Groups, shares: Shares) -> None:
        self._bytes_max = config.groups_bytes_max
        self._groups_max = config.groups_max
        self._groups, self._shares = groups, shares
        self._measured_bytes = self._measured_groups = 0
        self._added_bytes = self._added_groups = 0
        self._is_measuring = False
        self.refused = 0  # requests

    @property
    def bytes(self) -> int:
        """Memory of all groups, in bytes."""
        return self._measured_bytes + self._added_bytes

    @property
    def groups(self) -> int:
        """Groups of all kinds."""
        return self._measured_groups + self._added_groups

    async def start(self) -> None:
        """Measure what was recovered."""
        await self._measure()

    def admit_member(self, group: str, member: MemberId, size: int) -> Refused | None:
        """Admit a request of `size` bytes of a member of a consumer group, or of a new one."""
        found = self._groups.find(group)
        is_known = found is not None and member in found.members
        return self._admit(size, Why.GROUP_FULL, is_new=found is None, replaces=is_known)

    def admit_commit(
        self, group: str, size: int, offsets: Sequence[Offset], *, by_member: bool
    ) -> Refused | None:
        """Admit a request of `size` bytes that commits `offsets`; `by_member`: not a simple one."""
        is_new = not by_member and self._groups.find(group) is None
        replaces = False
        if self.bytes + size > self._bytes_max:
            known = self._groups.offsets(group)
            few = offsets[: _REPLACED_MAX + 1]
            are_known = (known.get(one.topic, one.partition) for one in few)
            replaces = 0 < len(few) <= _REPLACED_MAX and all(are_known)
        return self._admit(size, Why.METADATA_TOO_LARGE, is_new=is_new, replaces=replaces)

    def admit_share(self, group: str, size: int) -> Refused | None:
        """Admit a request of `size` bytes that adds to a share group."""
        # Its topics become strings, which take more than their bytes.
        return self._admit(
            size if size <= SMALL_BYTES else 2 * size,
            Why.GROUP_FULL,
            is_new=not self._shares.exists(group),
        )

    def admit_share_partitions(self, count: int) -> Refused | None:
        """Admit `count` new share-partitions of a group."""
        return self._admit(count * _SHARE_PARTITION_BYTES, Why.GROUP_FULL)

    def _admit(
        self, size: int, why: Why, *, is_new: bool = False, replaces: bool = False
    ) -> Refused | None:
        if is_new and self.groups >= self._groups_max:
            self.refused += 1
            self._measure_soon()
            return Refused(
                Why.GROUP_FULL,
                f"There are {self.groups} groups (headrace.max.groups); delete some, or wait until"
                " offsets expire.",
            )
        is_small = size <= SMALL_BYTES
        limit = self._bytes_max * 3 // 2 if is_small else self._bytes_max
        if self.bytes + size > limit and not (is_small and replaces):
            self.refused += 1
            self._measure_soon()
            return Refused(
                why,
                f"Groups take {self.bytes} bytes (headrace.groups.max.bytes); remove members or"
                " groups, or give them less metadata.",
            )
        self._added_groups += is_new
        self._added_bytes += size + (ENTRY_BYTES if is_new or why is Why.GROUP_FULL else 0)
        if self._added_bytes > self._bytes_max // _MEASURES:
            self._measure_soon()
        return None

    def _measure_soon(self) -> None:
        is_worth_it = self._added_bytes > self._bytes_max // _MEASURES or self._added_groups
        if not self._is_measuring and is_worth_it:
            self._is_measuring = True
            in_background(self._measure())

    async def _measure(self) -> None:
        self._is_measuring = True
        try:
            before_bytes, before_groups = self._added_bytes, self._added_groups
            found = groups = 0
            work = 0
            for size, count in self._sizes():
                found += size
                groups += count
                work += 1 + size // _BYTES_PER_STEP
                if work >= _PORTION:
                    work = 0
                    await asyncio.sleep(0)
            self._measured_bytes, self._measured_groups = found, groups
            self._added_bytes -= before_bytes
            self._added_groups -= before_groups
        finally:
            self._is_measuring = False

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Bytes and groups, a small part of the state at a time."""
        for group, offsets in self._groups.walk():
            yield ENTRY_BYTES + len(group.name), 1
            yield from ((size, 0) for size in _member_sizes(group))
            yield from ((size, 0) for size in _offset_sizes(offsets))
        names: set[str] = set()
        for shard in self._shares.shards:
            machine = self._shares.machine_of(shard)
            for key in list(machine.partitions):
                names.add(key.group)
                yield _SHARE_PARTITION_BYTES, 0
            for name, group_found in list(machine.groups.items()):
                names.add(name)
                yield ENTRY_BYTES + len(name), 0
                for member in list(group_found.members.values()):
                    yield ENTRY_BYTES + _names_bytes(member.topics) + 100 * len(member.told), 0
            for name in list(machine.retained):
                names.add(name)
                yield ENTRY_BYTES + len(name), 0
            for key_, lease in list(machine.leases.items()):
                yield ENTRY_BYTES + sum(map(len, (*key_, *lease.topics))), 0
        yield 0, len(names)


def _member_sizes(group: Group) -> Iterator[int]:
    if isinstance(group, ClassicGroup):
        for member in list(group.members.values()):
            metadata = sum(len(one.name) + len(one.metadata) for one in member.candidates)
            yield ENTRY_BYTES + metadata + len(member.assignment) + len(member.client_id)
        return
    assert isinstance(group, ConsumerGroup)
    for one in list(group.members.values()):
        partitions = len(group.holding(one.id)) + len(group.target(one.id))
        names = _names_bytes(one.topics) + len(one.regex) + len(one.client_id)
        yield ENTRY_BYTES + names + 100 * partitions


def _names_bytes(names: Collection[str]) -> int:
    """Memory of a set of names: each is an object and has its place in the set."""
    return sum(map(len, names)) + 120 * len(names)


def _offset_sizes(offsets: Offsets) -> Iterator[int]:
    for topic in list(offsets.by_topic):
        for committed in list(offsets.by_topic.get(topic, {}).values()):
            yield OFFSET_BYTES + len(committed.metadata)

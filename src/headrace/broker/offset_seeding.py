"""When the coordinator commits offsets by a group's reset policy (`core/seeding.py`).

When partitions were added, before anybody can produce to them, so that whatever the policy says is
their offset 0; when a member asks for its offsets; and at the start, for partitions that the
process died over. The logs are looked at before the command, so that decisions wait for no disk.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from headrace.broker.decoding_threads import DecodingThreads
from headrace.broker.groups import Groups
from headrace.broker.topics import Topics
from headrace.core.catalog import Resource, Topic
from headrace.core.errors import Refused, Why
from headrace.core.group_words import Extent, ResetPolicy, Seed
from headrace.core.reset import Strategy
from headrace.core.types import WallMs
from headrace.wire.batches import CorruptBatch

log = logging.getLogger("headrace.broker")

_BATCH_BYTES_MAX = 4 * 1024 * 1024  # about as much is written at once
_RECORD_BYTES = 350  # at most of a seed, without the group's name
_EMPTY = 0  # where a log without records begins and ends

_Firsts = dict[tuple[UUID, int], WallMs | None]
PlaceT = TypeVar("PlaceT")


class OffsetSeeding:
    """Runs from `start` on, on the event loop; made by `Services`."""

    def __init__(self, groups: Groups, topics: Topics, threads: DecodingThreads) -> None:
        self._groups = groups
        self._topics = topics
        self._threads = threads

    async def start(self) -> None:
        """Begin to watch topics; the groups are open, and no client is served yet."""
        self._topics.on_grown.append(self._grown)
        groups = self._with_policy()
        for topic in list(self._topics.catalog.topics.values()) if groups else ():
            await self._seed_added(topic, self._never_written(topic), groups)

    # ---- partitions that were added

    async def _grown(self, topic: Topic, first: int) -> None:
        groups = self._with_policy()
        if groups:
            await self._seed_added(topic, range(first, topic.partitions), groups)

    def _never_written(self, topic: Topic) -> Iterator[int]:
        """The partitions that were added a moment before the process died, perhaps.

        After an orderly stop no log is open yet, and there are none.
        """
        for index in range(topic.partitions):
            partition = self._topics.partitions.get(topic.id, index)
            if partition is not None and partition.is_open and not partition.log.end_offset:
                yield index

    async def _seed_added(
        self, topic: Topic, indexes: Iterable[int], groups: Sequence[str]
    ) -> None:
        if topic.internal:
            return
        extents = [Extent(topic.name, topic.id, index, _EMPTY, _EMPTY) for index in indexes]
        for some in _portions(groups, len(extents)):
            # Decided in one turn, they share one write and one sync.
            answers = await asyncio.gather(*(self._seed(one, extents) for one in some))
            for group, refused in zip(some, answers, strict=True):
                if refused is not None:
                    log.error(
                        "group %s has no offsets for new partitions of %s yet: %s; they are"
                        " seeded, at 0, as soon as the journal can be written",
                        group,
                        topic.name,
                        refused.message,
                    )

    async def _seed(self, group: str, added: Sequence[Extent]) -> Refused | None:
        """All in one batch of the journal, unless there are very many."""
        seeds = [Seed(group, tuple(some), added=True) for some in _parts(group, added)]
        for at, one in enumerate(seeds):
            answer = await self._groups.ask(group, one)
            if isinstance(answer, Refused):
                for later in seeds[at:]:
                    self._groups.tell(group, later)
                return answer
        return None

    def _with_policy(self) -> list[str]:
        """The groups that there are and that have one."""
        named = (name for kind, name in self._topics.catalog.configs if kind is Resource.GROUP)
        there = (name for name in named if self._groups.find(name) is not None)
        return [name for name in there if self._groups.reset_policy(name) is not None]

    # ---- what a member asks for

    async def asked(
        self, group: str, wanted: Sequence[tuple[Topic, int]], by: str
    ) -> Refused | None:
        """Commit what the group's policy says of partitions, which exist, that a member asks for.

        Refused where a disk fails: told that nothing is committed, the member would go by a rule of
        its own. The answer has to wait for `Groups.durable` all the same.
        """
        policy = self._groups.reset_policy(group)
        if policy is None:
            return None
        try:
            for topic, index in wanted:
                await self._topics.partitions.opened(topic.id, index)
            firsts: _Firsts = {}
            if policy.strategy is Strategy.SAFE_LATEST:
                firsts = await self._firsts(group, wanted)
            for some in _parts(group, wanted):  # a log's ends are of the turn that decides
                extents = tuple(self._extents(group, policy, some, firsts))
                answer = await self._groups.ask(group, Seed(group, extents, by=by))
                if isinstance(answer, Refused):
                    return answer
        except OSError as error:
            log.error("group %s has no offsets by its reset policy yet: %s", group, error)
            return Refused(Why.COORDINATOR_GONE, str(error))
        return None

    async def _firsts(self, group: str, wanted: Iterable[tuple[Topic, int]]) -> _Firsts:
        """When the partitions began for which nothing is committed. Raises: OSError."""
        found: _Firsts = {}
        for topic, index in wanted:
            if self._is_missing(group, topic, index):
                await asyncio.sleep(0)  # as in ListOffsets: others have their turn
                found[topic.id, index] = await self._first(topic, index)
        return found

    def _is_missing(self, group: str, topic: Topic, index: int) -> bool:
        known = self._groups.offsets(group).find(topic.name, index, topic.id)
        return known is None or known.offset < 0

    async def _first(self, topic: Topic, index: int) -> WallMs | None:
        """The timestamp of the first record that readers may see. Raises: OSError."""
        partition = self._topics.partitions.get(topic.id, index)
        if partition is None:
            return None
        begin = partial(partition.log.search_time, WallMs(0))
        try:
            found = await self._threads.search(partition, begin)
        except CorruptBatch:
            log.warning(
                "%s: a batch that a producer damaged hides when the partition began; groups that"
                " have no offset there begin at its start",
                partition.name,
            )
            return None
        return found[1] if found is not None else None

    def _extents(
        self,
        group: str,
        policy: ResetPolicy,
        places: Iterable[tuple[Topic, int]],
        firsts: _Firsts,
    ) -> Iterator[Extent]:
        """Raises: OSError where a log cannot be opened and the policy has to say where to begin."""
        for topic, index in places:
            partition = self._topics.partitions.get(topic.id, index)
            start = end = _EMPTY  # where it was added just now, and is not open yet
            try:
                if partition is not None:
                    start, end = partition.start_offset, partition.high_watermark
            except OSError:
                if policy.strategy is not Strategy.NONE and self._is_missing(group, topic, index):
                    raise
                continue  # the offset stays as it is
            yield Extent(topic.name, topic.id, index, start, end, firsts.get((topic.id, index)))


def _parts(group: str, places: Sequence[PlaceT]) -> Iterator[Sequence[PlaceT]]:
    """As many at a time as one batch of the journal may hold: nearly always all."""
    size = max(1, _BATCH_BYTES_MAX // _record_bytes(group))
    return (places[at : at + size] for at in range(0, len(places), size))


def _portions(groups: Sequence[str], extents: int) -> Iterator[list[str]]:
    """Groups that write about as much as one batch may hold, or one group that writes more."""
    some, weight = list[str](), 0
    for group in groups if extents else ():
        size = _record_bytes(group) * extents
        if some and weight + size > _BATCH_BYTES_MAX:
            yield some
            some, weight = [], 0
        some.append(group)
        weight += size
    if some:
        yield some


def _record_bytes(group: str) -> int:
    return len(group.encode()) + _RECORD_BYTES

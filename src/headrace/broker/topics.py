"""The topics of a broker: the catalogue, its journal, and the partitions that follow from it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.dynamic_config import effective, ignored
from headrace.broker.partitions import Partition, Partitions
from headrace.broker.runtime import ShardRuntime, StorageFault
from headrace.broker.storage_faults import is_full
from headrace.broker.waits import Waits
from headrace.core.catalog import (
    AddPartitions,
    AllocateProducerIds,
    Catalog,
    CreateTopic,
    DeleteTopic,
    Resource,
    SetConfigs,
    Topic,
)
from headrace.core.catalog import Command as CatalogCommand
from headrace.core.catalog import Event as CatalogEvent
from headrace.core.errors import Refused
from headrace.log.api import Clock, Disk
from headrace.log.buggify import buggify
from headrace.log.checkpointed_log import CheckpointedLog
from headrace.log.checkpoints import Extent
from headrace.log.manifest import CATALOGUE, require_journal
from headrace.log.metadata_records import MetadataRecords

_PRODUCER_IDS_PER_BLOCK = 1000
_PRODUCER_IDS_LOST_MAX = 1_000_000
# A checkpoint is due when the journal has so many records beside those that still say something.
_DEAD_RECORDS_MIN = 1000
_OPEN_AGAIN_SECONDS = 1.0

log = logging.getLogger("headrace.broker")
AnswerT = TypeVar("AnswerT")


class Topics:
    """Topics, their settings and those of groups and this broker; `new_id` makes the ids of topics.

    `listeners` are called with the events of every change, `on_deleted` with a topic whose
    deletion is durable, and with who asked for it; then those of `on_forgotten` are waited for,
    before a topic can have the name again. `on_grown` is called with a topic and its first new
    partition, and waited for, when these are durable and nobody can produce to them yet.
    `config` has the settings as they count now, `started_with` those without what was changed
    since. Raises: StorageFault from every change.
    """

    def __init__(
        self, config: Config, disk: Disk, clock: Clock, waits: Waits, new_id: Callable[[], UUID]
    ) -> None:
        self.started_with = self.config = config
        self.new_id = new_id
        self.partitions = Partitions(disk, config, clock, waits)
        require_journal(disk, self.partitions.manifest, CATALOGUE)
        self._journal = CheckpointedLog(
            disk,
            CATALOGUE,
            clean=self.partitions.was_closed(CATALOGUE),
            end_offset=self.partitions.closed_end(CATALOGUE),
            has_point=CATALOGUE in self.partitions.manifest.journals_with_points,
        )
        self._clock = clock
        self._records = MetadataRecords(config.node_id)
        self._catalog: ShardRuntime[CatalogCommand, CatalogEvent] = ShardRuntime(
            CATALOGUE,
            lambda: (Catalog(), self._records),
            self._journal,
            clock,
            roll=self._roll,
            fsync=config.durability == "fsync",
        )
        self._producer_ids = iter(range(0))
        self._first_producer_id = 0
        self.on_deleted: list[Callable[[Topic, str], None]] = []
        self.on_forgotten: list[Callable[[], Awaitable[None]]] = []
        self.on_grown: list[Callable[[Topic, int], Awaitable[None]]] = []
        self._changes: set[asyncio.Task[Any]] = set()
        self._openings: dict[UUID, asyncio.TimerHandle] = {}
        self._one_at_a_time = asyncio.Lock()
        self.listeners = self._catalog.listeners

    @property
    def catalog(self) -> Catalog:
        """The catalogue as it is now; changed through the methods below alone."""
        return self._catalog.machine  # type: ignore[return-value]  # a check costs a call

    @property
    def journal(self) -> ShardRuntime[CatalogCommand, CatalogEvent]:
        """The runtime of the catalogue, for who tells how it fares."""
        return self._catalog

    @property
    def journal_log(self) -> CheckpointedLog:
        """The log of the catalogue, for a cut of the data folder."""
        return self._journal

    @contextlib.asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """Let no topic be created, changed or deleted inside a `async with`."""
        async with self._one_at_a_time:
            yield

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition by the name of its topic."""
        found = self.catalog.topics.get(topic)
        return None if found is None else self.partitions.get(found.id, index)

    async def create(self, command: CreateTopic) -> Topic | Refused:
        """Create a topic and open its logs."""
        return await self._whole(self._create(command))

    async def _create(self, command: CreateTopic) -> Topic | Refused:
        crowded = self.partitions.no_room_for(command.partitions)
        if crowded is not None:
            return crowded
        reply = await self._catalog.ask(command)
        topic = self.catalog.topics_by_id.get(command.topic_id)
        if topic is not None:
            await self._grown(topic, 0)
            try:
                await self._keep_listed()
                await self.partitions.open_topic(topic, self.catalog)
            except OSError:
                # Half a topic could not be used, and not be created again, until the next start.
                with contextlib.suppress(OSError, StorageFault):
                    await self._delete(DeleteTopic(topic.id))
                raise
        assert isinstance(reply, Topic | Refused)
        return reply

    async def delete(self, command: DeleteTopic) -> Topic | Refused:
        """Delete a topic and its records."""
        return await self._whole(self._delete(command))

    async def _delete(self, command: DeleteTopic) -> Topic | Refused:
        topic = self.catalog.topics_by_id.get(command.topic_id)
        try:
            if topic is not None:
                await self.partitions.begin_deletion(topic)
            reply = await self._catalog.ask(command)
            if topic is not None and not isinstance(reply, Topic):
                await self.partitions.cancel_deletion(topic)
        except (OSError, StorageFault):
            if topic is not None:
                self._open_later(topic.id)
            raise
        assert isinstance(reply, Topic | Refused)
        if isinstance(reply, Topic):
            by = command.by or "the broker"
            log.info("topic %s was deleted by %s", reply.name, by, extra={"always": True})
            # The removal of the folders survives a power cut. If the sync fails, the deletion goes
            # on: the catalogue of the running broker is without the topic already.
            with contextlib.suppress(OSError):
                await self._keep_listed()
            for forget in self.on_deleted:  # not before the catalogue's journal has it
                forget(reply, command.by)
            for keep in self.on_forgotten:
                await keep()
            await self.partitions.delete_topic(reply)
        return reply

    async def add_partitions(self, command: AddPartitions) -> Topic | Refused:
        """Add partitions to a topic and open their logs."""
        return await self._whole(self._add_partitions(command))

    async def _add_partitions(self, command: AddPartitions) -> Topic | Refused:
        topic = self.catalog.topics.get(command.name)
        before = topic.partitions if topic else 0
        crowded = self.partitions.no_room_for(command.total - before) if topic else None
        if crowded is not None:
            return crowded
        reply = await self._catalog.ask(command)
        assert isinstance(reply, Topic | Refused)
        if isinstance(reply, Topic):
            await self._grown(reply, before)
            try:
                await self._keep_listed()
                await self.partitions.open_topic(reply, self.catalog)
            except OSError as error:
                log.error(
                    "new partitions of %s cannot be opened: %s; it is tried again each second",
                    reply.name,
                    error,
                )
                self._open_later(reply.id)
                raise
        return reply

    async def _grown(self, topic: Topic, first: int) -> None:
        if topic.partitions > first:
            for tell in self.on_grown:
                await tell(topic, first)

    def _open_later(self, topic_id: UUID) -> None:
        """Open and list the partitions of a topic later: its name cannot be created again."""

        def begin() -> None:
            del self._openings[topic_id]
            self._begin(self._open_missing(topic_id))

        if topic_id not in self._openings:
            loop = asyncio.get_running_loop()
            self._openings[topic_id] = loop.call_later(_OPEN_AGAIN_SECONDS, begin)

    async def _open_missing(self, topic_id: UUID) -> None:
        """Open the closed partitions of a topic, and undo a deletion that the journal lacks."""
        if self._catalog.fault is not None:  # the catalogue may have the topic back, or lose it
            self._open_later(topic_id)
            return
        topic = self.catalog.topics_by_id.get(topic_id)
        if topic is None:
            return
        is_open = all(self.partitions.get(topic_id, n) for n in range(topic.partitions))
        try:
            await self.partitions.cancel_deletion(topic)
            await self.partitions.open_topic(topic, self.catalog)
        except OSError:
            self._open_later(topic_id)
        else:
            if not is_open:
                log.warning("the new partitions of %s are open", topic.name)

    async def set_configs(self, command: SetConfigs) -> Refused | None:
        """Set configuration values that were found to make sense."""
        return await self._whole(self._set_configs(command))

    async def _set_configs(self, command: SetConfigs) -> Refused | None:
        reply = await self._catalog.ask(command)
        assert reply is None or isinstance(reply, Refused)
        topic = self.catalog.topics.get(command.name)
        if command.resource is Resource.TOPIC and topic is not None:
            self.partitions.configure(topic, self.catalog)
        elif command.resource is Resource.BROKER:
            self._take_over()
        return reply

    def _take_over(self) -> None:
        """Let the settings of brokers count that the catalogue has. Raises: ConfigError."""
        self.config = self.partitions.config = effective(self.started_with, self.catalog)
        for topic in self.catalog.topics.values():
            self.partitions.configure(topic, self.catalog)

    async def next_producer_id(self) -> int:
        """A producer id that was never given out, also not before a restart or a power cut.

        The catalogue is synced before an id of a further block is used, whatever is configured.
        """
        while (producer_id := next(self._producer_ids, None)) is None:
            skipped = max(self._first_producer_id - self.catalog.next_producer_id, 0)
            block = await self._catalog.ask(AllocateProducerIds(skipped + _PRODUCER_IDS_PER_BLOCK))
            try:
                await self._keep_listed()
            except OSError as error:
                raise StorageFault(f"{self._catalog.name}: {error}") from error
            self._producer_ids = iter(block[skipped:])
        return producer_id

    def _find_first_producer_id(self) -> int:
        """The first id that may be given out after a start.

        After a stop that was not in order the catalogue may have lost a block that a release before
        this one did not sync: a block is skipped, and all ids in the logs. An id far beyond what
        can have been lost was chosen by a client, and counts for nothing.
        """
        following = self.catalog.next_producer_id
        if self.partitions.was_closed(CATALOGUE) or not self._journal.end_offset:
            return following
        limit = following + _PRODUCER_IDS_LOST_MAX
        opened = [one.log for one in self.partitions if one.is_open]
        seen = [one.producers.highest_id(limit) + 1 for one in opened]
        return max([following + _PRODUCER_IDS_PER_BLOCK, *seen])

    async def _keep_listed(self) -> None:
        """Sync the catalogue, and list its journal among what must exist.

        Topics are listed afterwards, so the manifest never has one that a power cut may take out of
        the catalogue. Raises: OSError.
        """
        await asyncio.get_running_loop().run_in_executor(None, self._list_journal)

    def _list_journal(self) -> None:
        """Sync and list the journal; for a thread. Raises: OSError."""
        self._journal.sync()
        manifest = self.partitions.manifest
        if CATALOGUE in manifest.journals_with_points:
            return
        try:
            self._journal.log.secure_point()
            manifest.add_journal(CATALOGUE)
        except OSError as error:
            if CATALOGUE not in manifest.journals or not is_full(error):
                raise
            # An earlier release listed it. The mark waits, as topics can be deleted for space.
            log.warning("%s: cannot be marked now: %s", CATALOGUE, error.strerror or error)

    async def _whole(self, change: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """Carry a change out to its end, also when its caller goes away amid it.

        Half of one would leave a topic without logs, or another's logs under its name. A change
        waits for the one before it, since opening and removing files is not done at once.
        """
        task = self._begin(change)
        try:
            await asyncio.wait([task])  # which goes on where its caller goes away
        except asyncio.CancelledError:
            task.add_done_callback(_tell_failure)
            raise
        return task.result()

    def _begin(self, change: Coroutine[Any, Any, AnswerT]) -> "asyncio.Task[AnswerT]":
        task = asyncio.ensure_future(self._in_turn(change))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return task

    async def _in_turn(self, change: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        try:
            async with self._one_at_a_time:
                answer = await change
                dead_max = 0 if buggify("catalogue.checkpoint") else _DEAD_RECORDS_MIN
                # After a fault the state may have changes that the journal lacks.
                is_due = self._journal.records_since > 2 * self.catalog.size + dead_max
                if is_due and self._catalog.fault is None:
                    await self._checkpoint()
                return answer
        finally:
            change.close()  # it never began if this was cancelled before its turn

    async def _roll(self) -> None:
        """Prepare the next segment of the journal, in a thread. Raises: OSError."""
        self._journal.begin_seal()
        await asyncio.get_running_loop().run_in_executor(None, self._journal.prepare_next)

    async def _checkpoint(self) -> None:
        """Put the state in place of the journal, which by now is mostly what is no longer so.

        Meanwhile, or not written yet, only producer ids can have been given out; to read that once
        more after the checkpoint makes no difference.
        """
        end, now, events = self._journal.end_offset, self._clock.wall(), self.catalog.events()

        def write() -> None:
            self._journal.write_checkpoint(end, self._records.records(events, now), now)

        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, write)
            self._journal.use_checkpoint(end)
            await loop.run_in_executor(None, self._journal.remove_replaced)
        except OSError as error:
            log.warning("the catalogue's journal could not be shortened: %s; it goes on", error)

    def load(self) -> None:
        """Replay the catalogue and open all partitions.

        Raises: OSError; JournalDamaged; CorruptLog; ConfigError.
        """
        self._catalog.load()
        for one in ignored(self.started_with, self.catalog):
            log.warning(
                "broker: ignoring the dynamic setting %s, it is below its minimum; remove it with"
                " kafka-configs --alter --delete-config", one,
            )  # fmt: skip
        self._take_over()
        self.partitions.open_all(self.catalog)
        if self._journal.end_offset:
            self._list_journal()
        self.partitions.manifest.upgraded()
        self._first_producer_id = self._find_first_producer_id()

    def start(self) -> None:
        """Begin to keep time, on the running event loop."""
        self._catalog.start()

    async def close(self) -> None:
        """Write, sync and close everything. Raises: OSError."""
        while self._changes:
            await asyncio.wait(self._changes)
        for timer in self._openings.values():
            timer.cancel()
        await self._catalog.close()
        closed, fault = {CATALOGUE: Extent(0, self._journal.end_offset)}, None
        try:
            self._journal.settle()
        except OSError as error:
            fault = error
        await self.partitions.close(closed, fault)
        self._journal.close()


def _tell_failure(change: asyncio.Task[Any]) -> None:
    """Nobody else hears of it: its caller went away."""
    error = None if change.cancelled() else change.exception()
    if error is not None:
        log.error("a change of topics failed, and its client does not wait any more: %s", error)

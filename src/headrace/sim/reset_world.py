"""Where the shipped `headrace.Consumer` begins to read: one row of KIP-842's tables in a world.

A partition has records from `LOG_START` to `LOG_END`, and its group a committed offset or none. The
consumer runs in virtual time over a simulated librdkafka, and some of its lookups are refused.
"""

import asyncio
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.core.catalog import CreateTopic
from headrace.sim import growth_requests as requests
from headrace.sim.growth import Decider, GrowthWorld
from headrace.sim.growth_actors import GROUP
from headrace.sim.growth_client import Client
from headrace.sim.growth_consumer import CLIENT, Gone, Simulated
from headrace.sim.loop import OUTSIDE, Halted
from headrace.sim.network import Connection
from headrace.sim.process import Process
from headrace.wire import batches

LOG_START, LOG_END = 4, 10
_PLACE = ("meters-0", 0)
_PRODUCE, _DELETE_RECORDS = 0, 21
_SECOND_US = 1_000_000
_POLL_SECONDS = 0.25
_SECONDS_MAX = 40


class ResetWorld(GrowthWorld):
    """One consumer of one partition.

    Args:
        settings: those of the consumer that say where it begins.
        committed: the committed offset of the group; None for none.

    `begun` is the first offset that the consumer returned; `is_refused`, whether it returned an
    error instead; `is_invalid`, whether the settings were refused.
    """

    def __init__(self, seed: int, settings: dict[str, str], committed: int | None) -> None:
        super().__init__(seed, Decider.SAFE_LATEST)
        self.begun: int | None = None
        self.is_refused = False
        self.is_invalid = False
        self._settings = settings
        self._committed_offset = committed

    def _live(self) -> None:
        self._start()
        self._run_until(self.loop.now_us + _SECOND_US)
        assert self.process is not None, "a disk without faults lets it start"
        self.loop.spawn(self.process.life, self._create(self.process))
        self._run_until(self.loop.now_us + _SECOND_US)
        self.loop.spawn(OUTSIDE, self._prepare())
        self._run_until(self.loop.now_us + _SECOND_US)
        client = Client(self, "reader", GROUP, reset="error", refresh_s=1.0)
        try:
            self._consumer = Simulated({"group.id": GROUP, CLIENT: client, **self._settings})
        except ValueError as error:
            self.is_invalid = True
            self.history.step("reader", f"cannot begin: {error}")
            return
        self._consumer.subscribe([_PLACE[0]])
        self.loop.as_life(OUTSIDE, self._poll_later)
        until_us = self.loop.now_us + _SECONDS_MAX * _SECOND_US
        self.loop.spawn(OUTSIDE, self._append_later())
        while self.begun is None and not self.is_refused and not self.loop.halted:
            if self.loop.now_us >= until_us:
                self.bug("the consumer returns neither a record nor an error")
            self._run_until(self.loop.now_us + _SECOND_US)
        self._consumer.kill()

    async def _create(self, process: Process) -> None:
        self.auditor.created(*_PLACE, 1, self.loop.now_us)
        await process.services.topics.create(CreateTopic(_PLACE[0], self._new_id(), 1, {}))

    async def _prepare(self) -> None:
        """Write the log, delete its beginning, and commit."""
        link = Connection(self, self._rng)
        await self._produce(link, LOG_END)
        part = {"partition_index": _PLACE[1], "offset": LOG_START}
        await link.call(
            _DELETE_RECORDS, 2, _nothing, timeout=1000,
            topics=({"name": _PLACE[0], "partitions": (part,)},),
        )  # fmt: skip
        if self._committed_offset is not None:
            offsets = {_PLACE: (self._committed_offset, "")}
            await requests.commit_offsets(link, GROUP, ("", -1), offsets, lambda _: None)
        link.close()

    async def _append_later(self) -> None:
        """Write one more record, which a consumer at the end of the log reads."""
        await asyncio.sleep(_SECONDS_MAX / 2)
        link = Connection(self, self._rng)
        await self._produce(link, 1)
        link.close()

    async def _produce(self, link: Connection, count: int) -> None:
        now = self.clock.wall()
        data = batches.build(batches.Record(0, now, None, b"v") for _ in range(count))
        topic = {"name": _PLACE[0], "partition_data": ({"index": _PLACE[1], "records": data},)}
        await link.call(
            _PRODUCE, 9, _nothing, transactional_id=None, acks=-1, timeout=1000,
            topic_data=(topic,),
        )  # fmt: skip

    def _poll_later(self) -> None:
        self.loop.call_later(_POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        """Poll as an application does."""
        try:
            message: Any = self._consumer.poll(0)
        except (Gone, Halted):
            return
        except KafkaException as error:
            self.bug(f"poll raises {error.args[0].code()}")
            return
        if message is None:
            self._poll_later()
        elif message.error() is None:
            self.begun = message.offset()
        elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
            self.is_refused = True
        else:
            self.bug(f"poll returns {message.error()}")


def _nothing(_: Any) -> None:
    """Ignore a response on its way."""

"""`headrace.Broker` with a clock that moves on demand, faults to order, and topics at once."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from headrace.broker.config import Config
from headrace.broker.embedded import Broker
from headrace.broker.node import Node, start_node
from headrace.broker.services import Services
from headrace.testing.clock import BrokerClock
from headrace.testing.faults import Faults
from headrace.testing.faulty_dispatch import FaultyDispatcher
from headrace.testing.loop import SkippingLoop
from headrace.testing.topics import CreatesTopics


class BrokerUnderTest(Broker, CreatesTopics):
    """A broker on a thread of its own, for tests.

    Args:
        settings: broker settings by Kafka's names.
        seed: decides which requests a fault with a probability hits.
        data_dir: folder for the records; a temporary one, removed at the end, when not given.

    `clock` moves its time, `faults` makes its answers fail. Raises: as `headrace.Broker`.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        seed: int = 0,
        data_dir: str | Path | None = None,
    ) -> None:
        super().__init__(data_dir, settings=settings)
        self.clock = BrokerClock()
        self.faults = Faults(seed)
        self._dispatcher: FaultyDispatcher | None = None

    def stop(self) -> None:
        if self._loop is not None and self._dispatcher is not None:
            self._loop.call_soon_threadsafe(self._dispatcher.end_delays)
        super().stop()
        self.clock.ended()

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return self.clock.loop()

    async def _start_node(self, config: Config, host: str, port: int) -> Node:
        loop = cast(SkippingLoop, asyncio.get_running_loop())
        node = await start_node(
            config, self.data_dir, host, port, clock=self.clock.clock(loop),
            new_dispatcher=self._new_dispatcher,
        )  # fmt: skip
        self.clock.started(node)
        return node

    def _new_dispatcher(self, services: Services) -> FaultyDispatcher:
        self._dispatcher = FaultyDispatcher(services, self.faults)
        return self._dispatcher

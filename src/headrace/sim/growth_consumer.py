"""`confluent_kafka.Consumer` over a simulated network, and `headrace.Consumer` on top of it.

`Stock` has the methods of librdkafka's consumer that `headrace.Consumer` builds upon, with
`growth_client.py` behind them instead of threads. `Simulated` is the shipped `headrace.Consumer`:
Python asks `Stock` wherever that asks its base class, and every decision is its own.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Consumer as StockConsumer

from headrace.client.consumer import Consumer
from headrace.core.types import WallMs
from headrace.sim import growth_requests as requests
from headrace.sim.growth_auditor import Place
from headrace.sim.growth_client import Arrived, Assigned, Client, Refused, Revoked
from headrace.sim.loop import OUTSIDE
from headrace.sim.network import Connection, Lost

T = TypeVar("T")
CLIENT = "sim.client"  # the setting that has the Client
_AGAIN_S = 0.3
_GIVES_UP_S = 30.0
_LATEST = -1
_REFUSED_CHANCE = 0.15  # of one lookup

Ask = Callable[[Connection], Coroutine[Any, Any, T]]


class Gone(Exception):
    """The process of a consumer died in the middle of what it did."""


@dataclass(frozen=True, slots=True)
class _Topic:
    partitions: Mapping[int, None]


@dataclass(frozen=True, slots=True)
class _Topics:
    topics: Mapping[str, _Topic]


class Asking:
    """Questions to the broker for which the application waits. Raises: KafkaException; Gone.

    As librdkafka, it keeps the metadata of a topic, and does not know partitions that were added
    since; and it does not repeat every lookup that a broker refuses.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.is_gone = False
        self._counts: dict[str, int] = {}  # partitions of each topic, as last listed
        self._rng = Random(f"{client.world.seed}/{client.name}/lookups")

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        timeout: float = -1,  # noqa: ARG002  # all waits end alike here
    ) -> list[TopicPartition]:
        """As confluent-kafka's."""
        asked = list(partitions)
        self._may_be_refused(KafkaError.NOT_COORDINATOR)
        places = [(one.topic, one.partition) for one in asked]
        group, told = self.client.group, self.client.world.found
        found = self.wait(lambda link: requests.fetch_offsets(link, group, places, told))
        return [
            TopicPartition(*place, offset if offset >= 0 else OFFSET_INVALID, metadata)
            for place, (offset, metadata) in ((place, found[place]) for place in places)
        ]

    def offsets_for_times(
        self,
        partitions: Sequence[TopicPartition],
        timeout: float = -1,  # noqa: ARG002  # all waits end alike here
    ) -> list[TopicPartition]:
        """As confluent-kafka's; the offsets of `partitions` are timestamps."""
        stamps = {(one.topic, one.partition): one.offset for one in partitions}
        self._require_known(stamps)
        self._may_be_refused(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION)
        looked = self.client.world.auditor.looked

        def told(place: Place, offset: int) -> None:
            if stamps[place] == _LATEST:
                looked(place, offset)

        found = self.wait(lambda link: requests.list_offsets(link, stamps, told))
        return [TopicPartition(*place, found[place]) for place in stamps]

    def list_topics(
        self,
        topic: str | None = None,
        timeout: float = -1,  # noqa: ARG002  # all waits end alike here
    ) -> _Topics:
        """As confluent-kafka's, of what is asked here."""
        counts = self.wait(requests.partition_counts)
        if topic is not None:
            counts = {topic: counts[topic]} if topic in counts else {}
        self._counts |= counts
        return _Topics({name: _Topic(dict.fromkeys(range(n))) for name, n in counts.items()})

    def _require_known(self, places: Iterable[Place]) -> None:
        """Raises: KafkaException for a partition that the last metadata of its topic lacks."""
        for topic, partition in places:
            if topic not in self._counts:
                self.list_topics(topic)
            if partition >= self._counts.get(topic, 0):
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    def _may_be_refused(self, *codes: int) -> None:
        if self._rng.random() < _REFUSED_CHANCE:
            code = self._rng.choice(codes)
            world = self.client.world
            world.history.step(self.client.name, f"a lookup is refused: {code}")
            raise KafkaException(KafkaError(code))

    def wait(self, ask: "Ask[T]") -> T:
        """The answer to one question, asked again while the broker is away."""
        loop = self.client.world.loop
        task = loop.spawn(OUTSIDE, self._asked(ask))
        found = loop.wait(task)
        if self.is_gone:
            raise Gone
        return found

    async def _asked(self, ask: "Ask[T]") -> T:
        client = self.client
        until_us = client.world.loop.now_us + round(_GIVES_UP_S * 1e6)
        while True:
            connection = None
            try:
                connection = Connection(client.world, client.rng)
                return await ask(connection)
            except Lost:
                if client.world.loop.now_us > until_us:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
                await asyncio.sleep(_AGAIN_S)
            finally:
                if connection is not None:
                    connection.close()


class Stock(StockConsumer):
    """A consumer as confluent-kafka has it, as far as a growing topic needs it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._client: Client = config[CLIENT]
        reading = self._client.reading
        reading.reset = config.get("auto.offset.reset", reading.reset)
        self._simulated = Asking(self._client)
        self._on_commit: Callable[..., object] = config.get("on_commit") or (lambda *_: None)
        self._on_assign: Callable[..., object] | None = None
        self._stores_itself = config.get("enable.auto.offset.store", True)
        self._stored: dict[Place, tuple[int, str]] = {}
        self._positions: dict[Place, int] = {}  # after what the application was given
        self._outcomes: list[tuple[KafkaError | None, list[TopicPartition]]] = []

    # ---- what headrace.Consumer calls

    def subscribe(  # type: ignore[override]  # no other callbacks
        self, topics: list[str], on_assign: Callable[..., object] | None = None
    ) -> None:
        self._on_assign = on_assign
        self._client.subscribe(topics)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._positions.clear()
        self._client.reading.assign(
            {
                (one.topic, one.partition): one.offset if one.offset >= 0 else None
                for one in partitions
            }
        )

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._client.reading.pause((one.topic, one.partition) for one in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._client.reading.resume((one.topic, one.partition) for one in partitions)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        found = self._positions
        return [
            TopicPartition(
                one.topic, one.partition, found.get((one.topic, one.partition), OFFSET_INVALID)
            )
            for one in partitions
        ]

    def offsets_for_times(
        self,
        partitions: list[TopicPartition],
        timeout: float = -1,  # noqa: ARG002  # all waits end alike here
    ) -> list[TopicPartition]:
        stamps = {(one.topic, one.partition): one.offset for one in partitions}
        found = self._simulated.wait(lambda link: requests.list_offsets(link, stamps, _not_told))
        return [TopicPartition(*place, found[place]) for place in stamps]

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*place) for place in self._client.reading.positions]

    def poll(self, timeout: float = -1) -> Message | None:  # noqa: ARG002  # polls here never wait
        client = self._client
        client.polled_us = client.world.loop.now_us
        self._tell_outcomes()
        while client.told:
            match client.told.popleft():
                case Assigned(places):
                    self._assigned([TopicPartition(*place) for place in places])
                case Revoked(is_lost):
                    self._revoked(is_lost=is_lost)
                case Arrived(number, place, offset, value):
                    if number == client.reading.number:
                        self._positions[place] = offset + 1
                        if self._stores_itself:
                            self._stored[place] = offset + 1, ""
                        return Message(
                            topic=place[0], partition=place[1], offset=offset, value=value
                        )
                case Refused(place, offset):
                    error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
                    known: dict[str, Any] = {} if offset is None else {"offset": offset}
                    return Message(topic=place[0], partition=place[1], error=error, **known)
        return None

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        assert message is None, "headrace.Consumer stores offsets, for their metadata"
        for one in offsets or []:
            if (one.topic, one.partition) not in self._client.reading.positions:
                raise KafkaException(KafkaError(KafkaError._STATE))
            self._stored[one.topic, one.partition] = one.offset, one.metadata or ""

    def commit(  # type: ignore[override]  # of all its forms two are used
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,  # as confluent-kafka's
    ) -> list[TopicPartition] | None:
        assert message is None, "nobody commits by message here"
        wanted = self._stored
        if offsets is not None:
            wanted = {
                (one.topic, one.partition): (one.offset, one.metadata or "") for one in offsets
            }
        if not wanted:
            return None
        if asynchronous:
            self._commit_later(dict(wanted))
            return None
        code = self._simulated.wait(self._committing(dict(wanted)))
        if code:
            raise KafkaException(KafkaError(code))
        return [TopicPartition(*place, *one) for place, one in wanted.items()]

    def close(self) -> None:
        try:
            self.commit(asynchronous=False)
            self._simulated.wait(self._client.leave)
        except KafkaException as error:
            self._client.world.history.step(self._client.name, f"closes: {error.args[0].code()}")
        self._client.end()

    # ---- what befalls it

    def kill(self) -> None:
        """End as a process does that dies; what it was waiting for raises Gone."""
        self._simulated.is_gone = True
        self._client.end()

    # ---- callbacks

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        if self._on_assign is not None:
            self._on_assign(self, partitions)
        else:
            self.assign(partitions)

    def _revoked(self, *, is_lost: bool) -> None:
        if not is_lost and self._stored:
            self._commit_later(dict(self._stored))
        self._stored.clear()
        self._client.reading.assign({})
        self._client.is_settled.set()

    def _commit_later(self, offsets: dict[Place, tuple[int, str]]) -> None:
        client = self._client
        task = client.world.loop.spawn(OUTSIDE, self._simulated._asked(self._committing(offsets)))
        client.commits.add(task)
        places = [TopicPartition(*place, *one) for place, one in offsets.items()]
        task.add_done_callback(partial(self._committed, places))

    def _committed(self, places: list[TopicPartition], task: "asyncio.Task[int]") -> None:
        self._client.commits.discard(task)
        if not task.cancelled():
            code = task.result()
            self._outcomes.append((KafkaError(code) if code else None, places))

    def _tell_outcomes(self) -> None:
        told, self._outcomes = self._outcomes, []
        for error, partitions in told:
            self._on_commit(error, partitions)

    def _committing(self, offsets: dict[Place, tuple[int, str]]) -> "Ask[int]":
        client = self._client
        me = client.member, client.generation
        return lambda link: requests.commit_offsets(
            link, client.group, me, offsets, client.world.committed
        )


class Simulated(Consumer, Stock):
    """The shipped `headrace.Consumer` over `Stock`, with the world's clock."""

    def _asking(self) -> Any:
        return self._simulated

    def _in_thread(self, work: Callable[[], T]) -> "Future[T]":
        """Return the result of a lookup for which the loop waits: there are no threads."""
        result: Future[T] = Future()
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)
        return result

    def _now(self) -> WallMs:
        return self._client.world.clock.wall()

    def _monotonic(self) -> float:
        return self._client.world.loop.now_us / 1e6


def _not_told(_: Place, __: int) -> None:
    """Ignore a response on its way."""

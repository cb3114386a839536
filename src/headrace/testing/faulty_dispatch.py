"""The broker's dispatcher with faults in front of it; without any it is the broker's own."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from headrace.broker.apis import Api
from headrace.broker.dispatch import Buffers, Dispatcher, Peer, Pending
from headrace.broker.request import HangUp
from headrace.broker.services import Services
from headrace.core.types import MemberId
from headrace.testing.faults import Effect, Fault, Faults
from headrace.testing.topics import CLIENT_ID as FIXTURES
from headrace.wire import codec, frames
from headrace.wire.frames import RequestHead
from headrace.wire.message_items import Item, Kind, Named, items_of, without
from headrace.wire.primitives import Malformed
from headrace.wire.refusals import Place, Whole, merged, of_kind, refusal

_TEXT = "ordered by a fault of the test"
# Its request moves the share session on, even when nothing is left in it.
_ALWAYS_SERVED = "ShareAcknowledge"
# Requests that name no topic and mean all of them.
_ALL = frozenset({"MetadataRequest", "DescribeTopicPartitionsRequest"})
_FETCH = "Fetch"  # requests of a session do not say what they ask for


@dataclass(slots=True)
class _Call:
    """One request, as far as faults look at it; `message` is None where the codec knows none."""

    frame: bytearray
    peer: Peer
    head: RequestHead
    api: Api
    body_bytes: int
    message: Any = None

    def changed(self, values: Mapping[str, Any]) -> bytearray:
        """Its frame with another body."""
        head = self.frame[: len(self.frame) - self.body_bytes]
        return head + codec.encode_request(self.head.api_key, self.head.version, values)


class FaultyDispatcher(Dispatcher):
    """Answers as `Dispatcher`, but for the requests that a fault hits."""

    def __init__(self, services: Services, faults: Faults) -> None:
        super().__init__(services)
        self._faults = faults
        self._delayed: set[asyncio.Future[None]] = set()
        self._is_stopping = False

    def end_delays(self) -> None:
        """Delay nothing any more: the broker stops, and waits for the requests under way."""
        self._is_stopping = True
        for over in self._delayed:
            _set(over)

    def take(self, queue: deque[bytearray]) -> list[bytearray]:
        return [queue.popleft()] if self._faults else super().take(queue)

    def answers_later(self, frame: bytearray) -> bool:
        return not self._faults and super().answers_later(frame)

    def respond(
        self, frame: bytearray, peer: Peer, before: Sequence[bytearray] = ()
    ) -> Buffers | Pending | Coroutine[Any, Any, Buffers]:
        if self._faults and not before:
            call = self._call(frame, peer)
            if call is not None and (struck := self._struck(call)):
                return self._faulty(call, struck)
        return super().respond(frame, peer, before)

    def _call(self, frame: bytearray, peer: Peer) -> _Call | None:
        """None for what the broker refuses anyway, and for the fixtures' own requests."""
        try:
            head = frames.request_head(frame)
            if head.client_id == FIXTURES:
                return None
            route = self._routes.get((head.api_key, head.version)) or self._route(head)
            if route is None:
                return None
            body = frames.body_of(frame, head, flexible=route.flexible)
            call = _Call(frame, peer, head, route.api, len(body))
            if codec.knows(head.api_key, head.version):
                call.message = codec.decode_request(head.api_key, head.version, body)
        except Malformed:
            return None
        return call

    def _struck(self, call: _Call) -> list[Fault]:
        """The faults that hit: all delays, and the first of the others."""
        named = self._named(call.message)
        found: list[Fault] = []
        for fault in self._faults:
            is_delay = fault.effect is Effect.DELAY
            if not is_delay and any(one.effect is not Effect.DELAY for one in found):
                continue
            if fault.effect is Effect.ERROR and (
                call.message is None or fault.place(call.api, call.head.version) is None
            ):
                continue
            if fault.strikes(call.api, named, call.head.client_id):
                found.append(fault)
        return found

    def _named(self, message: Any) -> Named:
        named = Named()
        if message is None:
            return named
        named.add(message, self._topic_names())
        for item in self._session(getattr(message, "session_id", 0)):
            named.topics.add(item.names["name"])
        if hasattr(message, "share_session_epoch"):
            who = message.group_id or "", MemberId(message.member_id or "")
            session = self._services.shares.sessions.sessions.get(who)
            ids = {one.topic_id for one in session.partitions} if session is not None else set()
            named.topics.update(self._topic_names().get(one, "") for one in ids)
        if not named.topics:
            named.topics.update(self._all_topics(type(message).__name__, named.groups))
        return named

    def _all_topics(self, request: str, groups: Collection[str]) -> Iterable[str]:
        """What a request means that names no topic."""
        if request == "OffsetFetchRequest":
            return {
                topic for one in groups for topic in self._services.groups.offsets(one).by_topic
            }
        return self._services.catalog.topics if request in _ALL else ()

    async def _faulty(self, call: _Call, struck: Sequence[Fault]) -> Buffers:
        """Raises: as `respond`."""
        end = next((one for one in struck if one.effect is not Effect.DELAY), None)
        await self._wait(call, _delay(struck, after=False))
        if end is not None and end.effect is Effect.ERROR:
            answer = await self._refused(call, end)
        elif end is None or end.aim.after:
            answer = await self._served(call.frame, call.peer)
        else:
            answer = []
        await self._wait(call, _delay(struck, after=True))
        if end is not None and end.effect is Effect.DROP:
            raise HangUp(f"{call.api.name}: dropped by a fault of the test", blame="fault")
        return answer

    async def _wait(self, call: _Call, seconds: float) -> None:
        """Raises: HangUp, when the broker stops first."""
        if seconds == 0:
            return
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(0 if self._is_stopping else seconds, _set, over)
        self._delayed.add(over)
        try:
            await over
        finally:
            self._delayed.discard(over)
            timer.cancel()
        if self._is_stopping:
            raise HangUp(f"{call.api.name}: the broker stops, a fault delayed it", blame="fault")

    async def _served(self, frame: bytearray, peer: Peer) -> Buffers:
        answer = super().respond(frame, peer)
        if isinstance(answer, Pending):
            ready = asyncio.get_running_loop().create_future()
            answer.later.when_ready(partial(_set, ready))
            await ready
            return self.finish(answer)
        return answer if isinstance(answer, list) else await answer

    async def _refused(self, call: _Call, fault: Fault) -> Buffers:
        key, version = call.head.api_key, call.head.version
        place = fault.place(call.api, version)
        assert place is not None, "a fault without a place does not strike"
        if getattr(call.message, "acks", 1) == 0:
            if fault.aim.after:
                return await self._served(call.frame, call.peer)
            raise HangUp(f"{call.api.name}: {fault.error}, and acks=0", blame="fault")
        response = codec.schemas(key, version)[1]
        if place is Whole.WHOLE:
            if fault.aim.after:
                await self._served(call.frame, call.peer)
            return self._answered(call, refusal(response, [], place, fault.code, _TEXT))
        meant = partial(_is_meant, fault, place, self._topic_names())
        items = of_kind(items_of(call.message), place, meant)
        frame = self._rest(call, fault, place, meant)
        if frame is None:
            return self._answered(call, refusal(response, items, place, fault.code, _TEXT))
        served = await self._served(frame, call.peer)
        decoded = self._decoded(call, served)
        if getattr(decoded, "error_code", 0):
            return served
        session = self._session(getattr(decoded, "session_id", 0))
        all_said = (session, items_of(call.message), items_of(decoded))
        said = next((one for one in all_said if of_kind(one, place, _anything)), [])
        refused = refusal(response, of_kind(said, place, meant), place, fault.code, _TEXT)
        return self._answered(call, merged(without(decoded, meant), refused))

    def _rest(
        self, call: _Call, fault: Fault, place: Place, meant: Callable[[Item], bool]
    ) -> bytearray | None:
        """The frame of what is to be served all the same; None when that is nothing."""
        if fault.aim.after:
            return call.frame
        if call.api.name == _FETCH:  # reading changes nothing, and must not wait for records
            return call.changed(without(call.message, _nothing) | {"max_wait": 0})
        items = items_of(call.message)
        if not of_kind(items, place, _anything):
            return call.frame  # it asks for all there are
        others = of_kind(items, place, lambda item: item.kind is place and not meant(item))
        if others or call.api.name == _ALWAYS_SERVED:
            return call.changed(without(call.message, meant))
        return None

    def _answered(self, call: _Call, values: Mapping[str, Any]) -> Buffers:
        route = self._routes[call.head.api_key, call.head.version]
        return self._encoded(route, call.head, values, perf_counter(), len(call.frame))

    def _decoded(self, call: _Call, response: Buffers) -> Any:
        route = self._routes[call.head.api_key, call.head.version]
        head = frames.response_head(0, 0, flexible=route.answers_flexible)
        whole = b"".join(response)
        return codec.decode_response(call.head.api_key, call.head.version, whole[len(head) :])

    def _session(self, session_id: int) -> list[Item]:
        """What is fetched in a fetch session."""
        session = self._services.fetch_sessions.get(session_id)
        if session is None:
            return []
        names = self._topic_names()
        topics: dict[UUID | str, Item] = {}
        for topic, partition in session.partitions:
            topic_id = topic if isinstance(topic, UUID) else None
            name = names.get(topic) if isinstance(topic, UUID) else topic
            item = Item(Kind.TOPIC, {"name": name, "topic_id": topic_id})
            topics.setdefault(topic, item).items.append(
                Item(Kind.PARTITION, {"partition": partition})
            )
        return list(topics.values())

    def _topic_names(self) -> dict[UUID, str]:
        by_id = self._services.catalog.topics_by_id
        return {topic_id: topic.name for topic_id, topic in by_id.items()}


def _delay(struck: Sequence[Fault], *, after: bool) -> float:
    return sum(one.seconds for one in struck if one.aim.after == after)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _is_meant(fault: Fault, place: Place, names: Mapping[UUID, str], item: Item) -> bool:
    """Whether a fault means this thing, of those that a request or an answer names."""
    if item.kind is not place:
        return False
    aim, said = fault.aim, item.names
    match item.kind:
        case Kind.TOPIC:
            return aim.topic in (None, said["name"] or names.get(said["topic_id"]))
        case Kind.RESOURCE:
            wanted = {aim.topic, aim.group} - {None}
            return not wanted or said["resource_name"] in wanted
        case Kind.MEMBER:
            return aim.member is None or aim.member in said.values()
        case Kind.GROUP:
            return aim.group in (None, said["group_id"])
        case Kind.COORDINATOR:
            return aim.group in (None, said["key"])
        case Kind.PARTITION:
            return True


def _nothing(item: Item) -> bool:  # noqa: ARG001  # as all that are asked of a thing
    return False


def _anything(item: Item) -> bool:  # noqa: ARG001  # as all that are asked of a thing
    return True

"""Membership of a share group: heartbeats to the coordinator, and the partitions it assigns.

Locks protect records, not membership, so a member that the coordinator has forgotten joins again
under its id and goes on with what it holds. Source: KIP-932; Kafka's ShareHeartbeatRequestManager.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from headrace.client.connection import Address
from headrace.client.errors import BrokerError, ClientError, check, unreachable
from headrace.client.share_consumer.stream import Stream
from headrace.client.share_consumer.wire import (
    CONFIGS_VERSION,
    COORDINATOR_VERSION,
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    GROUP_RESOURCE,
    HEARTBEAT,
    METADATA,
    METADATA_VERSION,
)
from headrace.client.share_consumer.words import Place, Settings
from headrace.wire.primitives import Malformed

LOG = logging.getLogger(__name__)

_JOIN, _LEAVE = 0, -1
_AGAIN = frozenset({14, 15, 16})  # the coordinator loads, is away, is another
_FORGOTTEN = frozenset({25, 69, 110})  # unknown member, unknown group, fenced epoch
_NO_MEMBER = "the coordinator does not take this member in; give it another member_id, or none"
_REMEDIES = {
    25: _NO_MEMBER,
    110: _NO_MEMBER,
    69: "a group of another type has this name: read it with a consumer, or take another name",
}
_GROUP = 0
_RENEWAL = "share.renew.acknowledge.enable"
_NO_TOPIC = frozenset({3, 17})  # unknown, or such that none can have it
_FIRST_PAUSE_S, _PAUSE_S_MAX = 0.05, 1.0
_LEAVE_S_MAX = 1.0
_UNASSIGNED_S = 0.5  # between heartbeats without partitions: Kafka assigns with a later one
_UNASSIGNED_FOR_S = 10.0
_WARN_EVERY_S = 5.0


class Control:
    """The connection to a broker that answers for the cluster, and to the group's coordinator."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opening = asyncio.Lock()
        self._any: Stream | None = None
        self._coordinator: Stream | None = None
        self._missing: set[str] = set()

    async def ask(self, key: int, version: int, values: dict[str, Any]) -> Any:
        """Ask any broker. Raises: OSError; Malformed; `ClientError`."""
        stream = await self.any()
        stream.newest(key, range(version, version + 1))
        return await stream.ask(key, version, values)

    async def any(self) -> Stream:
        """A connection to one of the brokers that were named, the first that answers."""
        async with self._opening:  # else two tasks open one each, and one is left open
            if self._any is None or self._any.is_closed:
                self._any = await self._first()
            return self._any

    async def _first(self) -> Stream:
        *others, last = self._settings.bootstrap
        for address in others:
            try:
                return await self.open(address)
            except (OSError, Malformed) as error:
                LOG.debug("%s: %s; trying the next bootstrap server", address, error)
        return await self.open(last)

    async def open(self, address: Address) -> Stream:
        """A connection of its own to one broker."""
        settings = self._settings
        return await Stream.open(
            address, client_id=settings.client_id, timeout_s=settings.timeout_s
        )

    async def coordinator(self) -> Stream:
        """The connection to the group's coordinator."""
        if self._coordinator is None or self._coordinator.is_closed:
            asked = {"key_type": _GROUP, "coordinator_keys": [self._settings.group]}
            answer = await self.ask(FIND_COORDINATOR, COORDINATOR_VERSION, asked)
            (found,) = answer.coordinators
            what = f"finding the coordinator of group {self._settings.group!r}"
            check(found.error_code, what, found.error_message)
            self._coordinator = await self.open(Address(found.host, int(found.port)))
        return self._coordinator

    async def metadata(self) -> Any:
        """Ids, partitions and leaders of the group's topics. Raises: as `ask`."""
        settings = self._settings
        topics = [{"topic_id": None, "name": name} for name in settings.topics]
        asked = {
            "topics": topics,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        answer = await self.ask(METADATA, METADATA_VERSION, asked)
        missing = {topic.name for topic in answer.topics if topic.error_code in _NO_TOPIC}
        for name in sorted(missing - self._missing):
            LOG.warning(
                "share group %s: there is no topic %s; waiting for one", settings.group, name
            )
        self._missing = missing
        return answer

    async def renewal_is_off(self) -> bool:
        """Whether the group has no renewal of locks, as far as a broker tells."""
        resource = {
            "resource_type": GROUP_RESOURCE,
            "resource_name": self._settings.group,
            "configuration_keys": [_RENEWAL],
        }
        try:
            answer = await self.ask(DESCRIBE_CONFIGS, CONFIGS_VERSION, {"resources": [resource]})
        except (OSError, Malformed, ClientError):
            return False  # then each renewal is tried, and refused
        return any(
            config.name == _RENEWAL and config.value == "false"
            for result in answer.results
            for config in result.configs
        )

    def forget_coordinator(self) -> None:
        """It is to be looked for again."""
        if self._coordinator is not None:
            self._coordinator.close()

    async def close(self) -> None:
        """Hang up."""
        for stream in (self._any, self._coordinator):
            if stream is not None:
                await stream.closed()


class Member:
    """One member. `on_assigned` is called with its partitions whenever the coordinator names them.

    Raises from `join` and `stay`: `ClientError` for a refusal that asking again does not change.
    """

    def __init__(
        self,
        settings: Settings,
        control: Control,
        *,
        on_assigned: Callable[[frozenset[Place]], None],
    ) -> None:
        self.id = settings.member_id or str(uuid4())
        self.is_heard = True  # the coordinator answered the last heartbeat
        self._settings = settings
        self._control = control
        self._on_assigned = on_assigned
        self._epoch = _JOIN
        self._interval_s = _UNASSIGNED_S
        self._has_partitions = False
        self._joined_at = 0.0

    async def join(self) -> None:
        """Become a member. Raises: `Unreachable` when no broker answers in time."""
        patience = self._settings.timeout_s
        until = time.monotonic() + patience
        pause = _FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    return await self._beat()
            except (OSError, Malformed, BrokerError) as error:
                if isinstance(error, BrokerError) and error.code not in _AGAIN:
                    raise
                if time.monotonic() + pause >= until:
                    servers = ",".join(map(str, self._settings.bootstrap))
                    what = f"joining share group {self._settings.group!r}"
                    raise unreachable(what, patience, servers, error) from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    async def stay(self) -> None:
        """Beat until cancelled, through restarts of the coordinator."""
        pause, since, warn_at = _FIRST_PAUSE_S, 0.0, 0.0
        while True:
            await asyncio.sleep(self._pause_s() if not since else pause)
            try:
                await self._beat()
                self.is_heard = True
                pause, since = _FIRST_PAUSE_S, 0.0
            except (OSError, Malformed, BrokerError) as error:
                self.is_heard = False
                if isinstance(error, BrokerError) and error.code not in _AGAIN:
                    raise
                now = time.monotonic()
                if not since:
                    since, warn_at = now, now + 1.0
                elif now >= warn_at:
                    warn_at = now + _WARN_EVERY_S
                    LOG.warning(
                        "share group %s: no coordinator answers since %.0f s (%s); trying on",
                        self._settings.group, now - since, error,
                    )  # fmt: skip
                pause = min(2 * pause, _PAUSE_S_MAX)

    async def leave(self) -> None:
        """Leave the group; retry for a second while the coordinator is away.

        Raises: OSError; Malformed; `ClientError` when the coordinator refuses.
        """
        pause, until = _FIRST_PAUSE_S, time.monotonic() + _LEAVE_S_MAX
        while self._epoch != _JOIN:
            try:
                stream = await self._control.coordinator()
                answer = await stream.ask(HEARTBEAT, 1, self._heartbeat(_LEAVE))
                if answer.error_code not in _FORGOTTEN:
                    what = f"leaving share group {self._settings.group!r}"
                    check(answer.error_code, what, answer.error_message)
            except (OSError, Malformed, BrokerError) as error:
                self._control.forget_coordinator()
                is_final = isinstance(error, BrokerError) and error.code not in _AGAIN
                if is_final or time.monotonic() + pause >= until:
                    raise
            else:
                self._epoch = _JOIN
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    async def _beat(self) -> None:
        try:
            stream = await self._control.coordinator()
            version = stream.newest(HEARTBEAT, range(1, 2))
            answer = await stream.ask(HEARTBEAT, version, self._heartbeat(self._epoch))
        except (OSError, Malformed):
            self._control.forget_coordinator()
            raise
        code = int(answer.error_code)
        if code in _FORGOTTEN and self._epoch != _JOIN:
            self._epoch = _JOIN
            LOG.info("share group %s: joining again (code %d)", self._settings.group, code)
            await self._beat()
            return
        if code in _AGAIN:
            self._control.forget_coordinator()
        if code:
            what = f"joining share group {self._settings.group!r}"
            raise BrokerError(code, what, answer.error_message, remedy=_REMEDIES.get(code))
        if self._epoch == _JOIN:
            self._joined_at = time.monotonic()
        self._epoch = int(answer.member_epoch)
        self._interval_s = answer.heartbeat_interval / 1000
        if answer.assignment is not None:
            found = frozenset(
                (topic.topic_id, int(partition))
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            )
            self._has_partitions = bool(found)
            self._on_assigned(found)

    def _heartbeat(self, epoch: int) -> dict[str, Any]:
        settings = self._settings
        return {
            "group_id": settings.group,
            "member_id": self.id,
            "member_epoch": epoch,
            "rack_id": settings.client_rack if epoch == _JOIN else None,
            "subscribed_topic_names": list(settings.topics) if epoch == _JOIN else None,
        }

    def _pause_s(self) -> float:
        if self._has_partitions or time.monotonic() - self._joined_at > _UNASSIGNED_FOR_S:
            return self._interval_s
        return min(self._interval_s, _UNASSIGNED_S)

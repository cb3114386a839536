"""`headrace.Admin` and `headrace.SyncAdmin`: one client to administer a cluster, in two faces.

Each operation is a function of this package over a blocking `Cluster`; a face binds it to itself,
the one to be awaited and the other to be called. So there is one implementation, and both faces
have its signature and its text.
"""

import asyncio
import inspect
import math
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from headrace.client import (
    configs,
    group_offsets,
    groups,
    nodes,
    offsets,
    share_archived,
    share_browse,
    share_groups,
    share_records,
    topics,
)
from headrace.client.connection import Cluster, Patience
from headrace.client.errors import ClientError, Closed
from headrace.client.share_browse import Walk

P = ParamSpec("P")
R = TypeVar("R")

_CLIENT_ID = "headrace-admin"
_TIMEOUT_S = 30.0
_CALLS_MAX = 4
_IDLE_MAX = 4


class _Clusters:
    """A cluster for each call that runs, as a cluster serves one thread; kept for later ones."""

    def __init__(self, bootstrap_servers: str, *, client_id: str, timeout_s: float) -> None:
        if not 0 < timeout_s < math.inf:
            raise ValueError(f"timeout_s is {timeout_s:g}; give a number of seconds above 0")
        self.bootstrap_servers = bootstrap_servers
        self.timeout_s = timeout_s
        self.closed = False
        self._client_id = client_id
        self._lock = threading.Lock()
        self._busy: set[Cluster] = set()
        self._idle = [self._new()]  # made now, so that an address that is none is told now

    def take(self) -> Cluster:
        """A cluster for one call. Raises: `Closed`."""
        with self._lock:
            if self.closed:
                raise Closed("the admin client is closed; make a new one")
            cluster = self._idle.pop() if self._idle else self._new()
            self._busy.add(cluster)
        return cluster

    def give_back(self, cluster: Cluster) -> None:
        with self._lock:
            self._busy.discard(cluster)
            keep = not (self.closed or cluster.aborted or len(self._idle) >= _IDLE_MAX)
            if keep:
                self._idle.append(cluster)
        if not keep:
            cluster.close()

    def abort(self, cluster: Cluster, call: Future[R]) -> None:
        """Let `call`, for which `cluster` was taken, fail with `Closed` unless it has ended."""
        with self._lock:  # so that it is not given to another call in between
            if not call.done():
                cluster.abort()

    def close(self) -> None:
        """Let the calls that run fail with `Closed`."""
        with self._lock:
            self.closed = True
            busy, idle = tuple(self._busy), tuple(self._idle)
            self._idle.clear()
        for cluster in busy:
            cluster.abort()
        for cluster in idle:
            cluster.close()

    def _new(self) -> Cluster:
        return Cluster(
            self.bootstrap_servers,
            client_id=self._client_id,
            patience=Patience(total_s=self.timeout_s),
            request_timeout_s=self.timeout_s,
        )


class _Face:
    """What both faces have in common."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = _CLIENT_ID,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """Connect with the first call.

        Args: `bootstrap_servers` is host:port, several with commas; `timeout_s` is the time that
        each call may take, with all that is asked again in it. Raises: `ValueError`.
        """
        self._clusters = _Clusters(bootstrap_servers, client_id=client_id, timeout_s=timeout_s)

    def __repr__(self) -> str:
        closed = ", closed" if self._clusters.closed else ""
        name, at = type(self).__name__, self._clusters
        return f"<headrace.{name} of {at.bootstrap_servers}, timeout {at.timeout_s:g} s{closed}>"


def _called(
    operation: Callable[Concatenate[Cluster, P], R],
) -> Callable[Concatenate["SyncAdmin", P], R]:
    @wraps(operation)
    def method(self: "SyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._cluster() as cluster:
            return operation(cluster, *args, **kwargs)

    return _as_method(method, operation)


def _awaited(
    operation: Callable[Concatenate[Cluster, P], R],
) -> Callable[Concatenate["Admin", P], Coroutine[Any, Any, R]]:
    @wraps(operation)
    async def method(self: "Admin", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(lambda cluster: operation(cluster, *args, **kwargs))

    return _as_method(method, operation)


def _iterated(
    walking: Callable[P, Walk[R]],
) -> Callable[Concatenate["SyncAdmin", P], Iterator[R]]:
    @wraps(walking)
    def method(self: "SyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return self._steps(walking(*args, **kwargs))

    return _as_method(method, walking, takes_cluster=False)


def _iterated_async(
    walking: Callable[P, Walk[R]],
) -> Callable[Concatenate["Admin", P], AsyncIterator[R]]:
    @wraps(walking)
    def method(self: "Admin", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        return self._steps(walking(*args, **kwargs))

    return _as_method(method, walking, takes_cluster=False)


def _as_method(
    method: Callable[P, R], operation: Callable[..., Any], *, takes_cluster: bool = True
) -> Callable[P, R]:
    """The signature that `help` shows: `self` where the operation has its cluster, or first.

    What iterates does so over the rows of the walk that the operation returns.
    """
    signature = inspect.signature(operation)
    others = [*signature.parameters.values()][takes_cluster:]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = signature.replace(parameters=[itself, *others])
    if not takes_cluster:
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    method.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return method


class SyncAdmin(_Face):
    """Administers topics, settings, records and groups of Headrace or Apache Kafka.

    May be used from any thread, from several at once, and where an event loop runs (in a
    notebook); `Admin` is the same to be awaited.

    Raises, from every method: `Unreachable` when no broker answers in time, `BrokerError` for a
    refusal, `Unsupported` when the broker is too old for what is asked, `Closed` after `close`.
    That is what "as `Cluster`" means in their texts.

        with headrace.SyncAdmin("localhost:9092") as admin:
            admin.create_topic("orders", 3, configs={"retention.ms": "86400000"})
            print(admin.list_consumer_groups())
    """

    create_topic = _called(topics.create_topic)
    delete_topic = _called(topics.delete_topic)
    list_topics = _called(topics.list_topics)
    describe_topics = _called(topics.describe_topics)
    create_partitions = _called(topics.add_partitions)
    describe_cluster = _called(nodes.describe_cluster)
    describe_configs = _called(configs.describe_configs)
    incremental_alter_configs = _called(configs.alter_configs)
    list_offsets = _called(offsets.list_offsets)
    delete_records = _called(topics.delete_records)
    list_groups = _called(groups.list_groups)
    list_consumer_groups = _called(groups.list_consumer_groups)
    describe_consumer_groups = _called(groups.describe_groups)
    delete_consumer_groups = _called(groups.delete_consumer_groups)
    remove_members_from_consumer_group = _called(groups.remove_members)
    list_consumer_group_offsets = _called(group_offsets.list_group_offsets)
    alter_consumer_group_offsets = _called(group_offsets.alter_group_offsets)
    reset_consumer_group_offsets = _called(group_offsets.reset_group_offsets)
    delete_consumer_group_offsets = _called(group_offsets.delete_group_offsets)
    list_share_groups = _called(share_groups.list_share_groups)
    describe_share_groups = _called(share_groups.describe_share_groups)
    list_share_group_offsets = _called(share_groups.list_share_group_offsets)
    alter_share_group_offsets = _called(share_groups.alter_share_group_offsets)
    reset_share_group_offsets = _called(share_groups.reset_share_group_offsets)
    delete_share_group_offsets = _called(share_groups.delete_share_group_offsets)
    delete_share_groups = _called(share_groups.delete_share_groups)
    describe_share_partitions = _called(share_records.describe_share_partitions)
    list_archived_share_records = _called(share_archived.list_archived_share_records)
    clear_archived_share_records = _called(share_archived.clear_archived_share_records)
    browse_share_group = _iterated(share_browse.browse_share_group)
    browse_share_group_runs = _iterated(share_browse.browse_share_group_runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls that run on other threads raise `Closed`."""
        self._clusters.close()

    def _steps(self, walk: Walk[R]) -> Iterator[R]:
        """The rows of a walk; each step is a call of its own, with its own time."""
        while True:
            with self._cluster() as cluster:
                rows = walk.step(cluster)
            if rows is None:
                return
            yield from rows

    @contextmanager
    def _cluster(self) -> Iterator[Cluster]:
        cluster = self._clusters.take()
        try:
            with cluster.within(self._clusters.timeout_s):
                yield cluster
        except ClientError:
            raise
        except BaseException:
            cluster.close()  # a KeyboardInterrupt may have come in the middle of an answer
            raise
        finally:
            self._clusters.give_back(cluster)


class Admin(_Face):
    """Administers topics, settings, records and groups of Headrace or Apache Kafka.

    To be awaited; `SyncAdmin` is the same to be called. Up to four calls run at the same time, on
    threads of their own; `timeout_s` counts from where a call begins to run. One that is
    cancelled (`asyncio.timeout` does so) ends at once; a request that was sent may have its effect.

    Raises, from every method: `Unreachable` when no broker answers in time, `BrokerError` for a
    refusal, `Unsupported` when the broker is too old for what is asked, `Closed` after `close`.
    That is what "as `Cluster`" means in their texts.

        async with headrace.Admin("localhost:9092") as admin:
            await admin.create_topic("orders", 3, configs={"retention.ms": "86400000"})
            print(await admin.list_consumer_groups())
    """

    create_topic = _awaited(topics.create_topic)
    delete_topic = _awaited(topics.delete_topic)
    list_topics = _awaited(topics.list_topics)
    describe_topics = _awaited(topics.describe_topics)
    create_partitions = _awaited(topics.add_partitions)
    describe_cluster = _awaited(nodes.describe_cluster)
    describe_configs = _awaited(configs.describe_configs)
    incremental_alter_configs = _awaited(configs.alter_configs)
    list_offsets = _awaited(offsets.list_offsets)
    delete_records = _awaited(topics.delete_records)
    list_groups = _awaited(groups.list_groups)
    list_consumer_groups = _awaited(groups.list_consumer_groups)
    describe_consumer_groups = _awaited(groups.describe_groups)
    delete_consumer_groups = _awaited(groups.delete_consumer_groups)
    remove_members_from_consumer_group = _awaited(groups.remove_members)
    list_consumer_group_offsets = _awaited(group_offsets.list_group_offsets)
    alter_consumer_group_offsets = _awaited(group_offsets.alter_group_offsets)
    reset_consumer_group_offsets = _awaited(group_offsets.reset_group_offsets)
    delete_consumer_group_offsets = _awaited(group_offsets.delete_group_offsets)
    list_share_groups = _awaited(share_groups.list_share_groups)
    describe_share_groups = _awaited(share_groups.describe_share_groups)
    list_share_group_offsets = _awaited(share_groups.list_share_group_offsets)
    alter_share_group_offsets = _awaited(share_groups.alter_share_group_offsets)
    reset_share_group_offsets = _awaited(share_groups.reset_share_group_offsets)
    delete_share_group_offsets = _awaited(share_groups.delete_share_group_offsets)
    delete_share_groups = _awaited(share_groups.delete_share_groups)
    describe_share_partitions = _awaited(share_records.describe_share_partitions)
    list_archived_share_records = _awaited(share_archived.list_archived_share_records)
    clear_archived_share_records = _awaited(share_archived.clear_archived_share_records)
    browse_share_group = _iterated_async(share_browse.browse_share_group)
    browse_share_group_runs = _iterated_async(share_browse.browse_share_group_runs)

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = _CLIENT_ID,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """As `SyncAdmin`. Raises: `ValueError`."""
        super().__init__(bootstrap_servers, client_id=client_id, timeout_s=timeout_s)
        self._threads = ThreadPoolExecutor(_CALLS_MAX, thread_name_prefix="headrace-admin")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls of other tasks raise `Closed`."""
        self._clusters.close()
        # Not waited for: a thread that is connecting to a host that is silent has its timeout.
        self._threads.shutdown(wait=False)

    async def _steps(self, walk: Walk[R]) -> AsyncIterator[R]:
        """As `SyncAdmin`'s."""
        while (rows := await self._run(walk.step)) is not None:
            for row in rows:
                yield row

    async def _run(self, operation: Callable[[Cluster], R]) -> R:
        cluster = self._clusters.take()

        def call() -> R:
            with cluster.within(self._clusters.timeout_s):
                return operation(cluster)

        future = self._threads.submit(call)
        future.add_done_callback(lambda _: self._clusters.give_back(cluster))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._clusters.abort(cluster, future)
            raise

"""Whom to ask: every broker of a cluster, or the coordinator of a group.

Source: Metadata; FindCoordinator with several keys (KIP-699, Kafka 3.0).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headrace.client.connection import Address, Cluster
from headrace.client.errors import BrokerError, Unreachable
from headrace.wire.error_codes import ErrorCode
from headrace.wire.primitives import Malformed

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Asking = Callable[["Node", list[str]], dict[str, T | BrokerError]]

_METADATA, _METADATA_VERSION = 3, 9
_FIND_COORDINATOR, _FIND_COORDINATOR_VERSION = 10, 4
_GROUP = 0
_UNKNOWN_SERVER_ERROR = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as its cluster names it."""

    id: int
    host: str
    port: int

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster: its id (None on a broker that has none), its controller's id, its brokers."""

    id: str | None
    controller: int | None
    brokers: tuple[Node, ...]


def describe_cluster(cluster: Cluster) -> ClusterDescription:
    """The brokers of the cluster by id, and which leads them. Raises: as `Cluster`."""
    return cluster.retrying("describing the cluster", lambda: _described(cluster))


def brokers(cluster: Cluster) -> tuple[Node, ...]:
    """The brokers of the cluster by id; not repeated. Raises: as `Cluster`."""
    return _described(cluster).brokers


def _described(cluster: Cluster) -> ClusterDescription:
    request = {
        "topics": [],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    answer = cluster.ask(_METADATA, _METADATA_VERSION, request)
    controller = int(answer.controller_id)
    found = (Node(int(one.node_id), one.host, int(one.port)) for one in answer.brokers)
    return ClusterDescription(
        answer.cluster_id,
        None if controller < 0 else controller,
        tuple(sorted(found, key=lambda node: node.id)),
    )


def coordinators(cluster: Cluster, groups: Iterable[str]) -> dict[str, Node | BrokerError]:
    """The coordinator of each group, or why there is none; not repeated. Raises: as `Cluster`."""
    request = {"key_type": _GROUP, "coordinator_keys": list(groups)}
    answer = cluster.ask(_FIND_COORDINATOR, _FIND_COORDINATOR_VERSION, request)
    return {
        one.key: BrokerError(one.error_code, _looking_up(one.key), one.error_message)
        if one.error_code
        else Node(int(one.node_id), one.host, int(one.port))
        for one in answer.coordinators
    }


def at_coordinators(
    cluster: Cluster, groups: Iterable[str], what: str, asking: Asking[T]
) -> dict[str, T | BrokerError]:
    """What `asking` a coordinator says of each group, in the order of `groups`.

    A group whose coordinator is away, loads or has moved is looked up and asked again; the others
    are not. Raises: as `results_of`.
    """
    return results_of(cluster, groups, what, lambda missing: _answers(cluster, missing, asking))


def results_of(
    cluster: Cluster,
    items: Iterable[K],
    what: str,
    attempt: Callable[[list[K]], Iterable[tuple[K, T | BrokerError]]],
    *,
    final: Collection[int] = (),
) -> dict[K, T | BrokerError]:
    """Return the result of each item, in the order of `items`; an error stands for an item.

    `attempt` is called with the items that have no result yet, again while the error of one is
    retriable, or a broker is away. When patience ends and other items have results, the last error
    stands for each that has none, 7 where no broker responded.

    Args:
        final: retriable error codes that are results all the same.

    Raises: `Unreachable` when patience ends before any item has a result; otherwise as `Cluster`.
    """
    requested = list(dict.fromkeys(items))
    results: dict[K, T | BrokerError] = {}
    postponed: dict[K, BrokerError] = {}

    def once() -> None:
        last: BrokerError | None = None
        for item, result in attempt([one for one in requested if one not in results]):
            if isinstance(result, BrokerError) and result.retriable and result.code not in final:
                postponed[item] = last = result
            else:
                results[item] = result
        if last is not None:
            raise last

    try:
        if requested:
            cluster.retrying(what, once)
    except Unreachable as error:
        if not results:
            raise
        for item in requested:
            if item not in results:
                timed_out = BrokerError(ErrorCode.request_timed_out, what, str(error))
                results[item] = postponed.get(item, timed_out)
    return {item: results[item] for item in requested}


def at_coordinator(cluster: Cluster, group: str, what: str, asking: Callable[[Node], T]) -> T:
    """What `asking` the coordinator of one group returns; repeated as in `at_coordinators`.

    Raises: `BrokerError` for a refusal; otherwise as `Cluster`.
    """

    def attempt() -> T:
        node = coordinators(cluster, [group]).get(group)
        if isinstance(node, BrokerError):
            raise node
        if node is None:
            raise _no_answer(group)
        return asking(node)

    return cluster.retrying(what, attempt)


def _answers(
    cluster: Cluster, groups: list[str], asking: Asking[T]
) -> Iterator[tuple[str, T | BrokerError]]:
    """One round: the answers for each group. A coordinator that is away does not stop the others.

    A group that an answer leaves out is refused by that.
    """
    of_node: dict[Node, list[str]] = defaultdict(list)
    nodes = coordinators(cluster, groups)
    for group in groups:
        node = nodes.get(group, _no_answer(group))
        if isinstance(node, BrokerError):
            yield group, node
        else:
            of_node[node].append(group)
    away: OSError | Malformed | None = None
    for node, its_groups in of_node.items():
        answers: dict[str, T | BrokerError] = {}
        try:
            answers |= asking(node, its_groups)
        except BrokerError as error:
            answers |= dict.fromkeys(its_groups, error)
        except (OSError, Malformed) as error:
            away = error
            continue
        for group in its_groups:
            yield group, answers.get(group, _no_answer(group))
    if away is not None:
        raise away


def _no_answer(group: str) -> BrokerError:
    return BrokerError(_UNKNOWN_SERVER_ERROR, _looking_up(group), "no answer for it")


def _looking_up(group: str) -> str:
    return f"finding the coordinator of group {group!r}"

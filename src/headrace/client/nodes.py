"""Whom to ask: every broker of a cluster, or the coordinator of a group.

Source: Metadata; FindCoordinator with several keys (KIP-699, Kafka 3.0).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from headrace.client.connection import Address, Cluster
from headrace.client.errors import BrokerError

T = TypeVar("T")
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
    are not. Raises: `Unreachable` when patience ends; otherwise as `Cluster`.
    """
    wanted = list(dict.fromkeys(groups))
    found: dict[str, T | BrokerError] = {}

    def attempt() -> None:
        missing = [group for group in wanted if group not in found]
        postponed: BrokerError | None = None
        for group, answer in _asked(cluster, missing, asking).items():
            if isinstance(answer, BrokerError) and answer.retriable:
                postponed = answer
            else:
                found[group] = answer
        if postponed is not None:
            raise postponed

    if wanted:
        cluster.retrying(what, attempt)
    return {group: found[group] for group in wanted}


def at_coordinator(cluster: Cluster, group: str, what: str, asking: Callable[[Node], T]) -> T:
    """What `asking` the coordinator of one group returns; repeated as in `at_coordinators`.

    Raises: `BrokerError` for a refusal; otherwise as `Cluster`.
    """

    def attempt() -> T:
        node = coordinators(cluster, [group]).get(group)
        if isinstance(node, BrokerError):
            raise node
        if node is None:
            raise BrokerError(_UNKNOWN_SERVER_ERROR, _looking_up(group), "no answer for it")
        return asking(node)

    return cluster.retrying(what, attempt)


def _asked(cluster: Cluster, groups: list[str], asking: Asking[T]) -> dict[str, T | BrokerError]:
    """One round: every group's answer. A group that an answer leaves out is refused by that."""
    answers: dict[str, T | BrokerError] = {
        group: BrokerError(_UNKNOWN_SERVER_ERROR, _looking_up(group), "no answer for it")
        for group in groups
    }
    of_node: dict[Node, list[str]] = defaultdict(list)
    for group, node in coordinators(cluster, groups).items():
        if isinstance(node, BrokerError):
            answers[group] = node
        else:
            of_node[node].append(group)
    for node, its_groups in of_node.items():
        answers |= asking(node, its_groups)
    return answers


def _looking_up(group: str) -> str:
    return f"finding the coordinator of group {group!r}"

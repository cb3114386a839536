"""Groups that a command does not serve, because they are of another kind than its own."""

from collections.abc import Collection

from headrace.client.connection import Cluster
from headrace.client.groups import list_groups

_CONSUMER = "consumer"  # also what was only ever committed to, which has no protocol type
_SERVED_BY = {_CONSUMER: "consumer-groups", "share": "share-groups"}


def of_other_kinds(cluster: Cluster, groups: Collection[str], command: str) -> dict[str, str]:
    """What is told of those of the groups that `command` does not serve; nothing of absent ones.

    Raises: as `Cluster`.
    """
    found = {}
    for one in list_groups(cluster):
        kind = one.protocol_type or _CONSUMER
        serves = _SERVED_BY.get(kind)
        if one.group in groups and serves != command:
            told = f"Group '{one.group}' is a {kind} group"
            found[one.group] = told if serves is None else f"{told}; headrace {serves} serves it"
    return found

"""The tables `groups` and `members`."""

from collections.abc import Iterator, Sequence

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.groups import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    describe_groups,
)
from headrace.client.share_groups import (
    ShareGroupDescription,
    ShareMember,
    describe_share_groups,
)
from headrace.spark.tables.names import (
    SHARE,
    Row,
    is_absent,
    is_share,
    listed,
    parts,
    sorted_places,
)
from headrace.spark.tables.wanted import Wanted

Description = GroupDescription | ShareGroupDescription

GROUPS = (
    "group string, type string, state string, protocol_type string, protocol string, "
    "coordinator string, coordinator_id int, epoch int, members int"
)
MEMBERS = (
    "group string, type string, member_id string, instance_id string, client_id string, "
    "host string, rack string, epoch int, topics array<string>, "
    "assignment array<struct<topic: string, partition: int>>"
)


def groups(cluster: Cluster, wanted: Wanted) -> Iterator[list[Row]]:
    """A row a group; of a kind that cannot be described, what the list of groups tells."""
    for names, known in _portions(cluster, wanted):
        found = _described(cluster, names, known)
        if missing := {name for name in names if name not in found}:
            known |= {} if known else {one.group: one for one in listed(cluster, wanted)}
            missing &= known.keys()
        rows = [_group(one) for one in found.values()]
        yield rows + [_listed(known[name]) for name in sorted(missing)]


def members(cluster: Cluster, wanted: Wanted) -> Iterator[list[Row]]:
    """A row a member."""
    for names, known in _portions(cluster, wanted):
        found = _described(cluster, names, known)
        yield [_member(group, one) for group in found.values() for one in group.members]


def _portions(
    cluster: Cluster, wanted: Wanted
) -> Iterator[tuple[Sequence[str], dict[str, GroupListing]]]:
    """Names, with what the list of groups has of them; nothing when it was not asked."""
    if wanted.group is not None:
        for names in parts(wanted.names(sorted(wanted.group))):
            yield names, {}
        return
    known = {one.group: one for one in listed(cluster, wanted, with_state=True)}
    for names in parts(list(known)):
        yield names, {name: known[name] for name in names}


def _described(
    cluster: Cluster, names: Sequence[str], known: dict[str, GroupListing]
) -> dict[str, Description]:
    """Those of the groups that can be described. Raises: `BrokerError`; as `Cluster`."""
    shared = [name for name in names if name in known and is_share(known[name])]
    others = [name for name in names if name not in known or not is_share(known[name])]
    found: dict[str, Description] = {}
    for name, one in describe_groups(cluster, others).items():
        if not isinstance(one, BrokerError):
            found[name] = one
        elif not is_absent(one):
            raise one
    asked = shared if known else [name for name in names if name not in found]
    for name, share in _share_groups(cluster, asked).items():
        if not isinstance(share, BrokerError):
            found[name] = share
        elif not is_absent(share):
            raise share
    return dict(sorted(found.items()))


def _share_groups(
    cluster: Cluster, names: Sequence[str]
) -> dict[str, ShareGroupDescription | BrokerError]:
    try:
        return describe_share_groups(cluster, names)
    except Unsupported:
        return {}  # where there are no share groups, none of the names is one


def _group(one: Description) -> Row:
    return {
        "group": one.group,
        "type": _type(one),
        "state": one.state,
        "protocol_type": SHARE if isinstance(one, ShareGroupDescription) else one.protocol_type,
        "protocol": one.assignor,
        "coordinator": str(one.coordinator.address),
        "coordinator_id": one.coordinator.id,
        "epoch": one.epoch,
        "members": len(one.members),
    }


def _listed(one: GroupListing) -> Row:
    kind = None if one.type is None else one.type.lower()
    row = {"group": one.group, "type": kind, "state": one.state}
    return row | {"protocol_type": one.protocol_type}


def _type(one: Description) -> str:
    return SHARE if isinstance(one, ShareGroupDescription) else one.type


def _member(group: Description, one: MemberDescription | ShareMember) -> Row:
    row: Row = {
        "group": group.group,
        "type": _type(group),
        "member_id": one.member,
        "client_id": one.client_id,
        "host": one.host,
        "epoch": one.epoch,
        "assignment": sorted_places(one.assignment),
    }
    if isinstance(one, ShareMember):
        return row | {"rack": one.rack, "topics": sorted(one.topics)}
    return row | {"instance_id": one.instance}

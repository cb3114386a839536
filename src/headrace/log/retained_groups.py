"""Records of `__share_group_state` that keep a share group known: type 20910.

Kafka keeps a share group in `__consumer_offsets`. Here a group is known by its share-partitions;
one that lost the last of them has such a record until it is deleted. Kafka's tools pass over it.
The key is type and group, the value a version.
"""

from headrace.core.machine import Entry
from headrace.core.share_group import GroupRetained
from headrace.wire.primitives import Malformed, Reader, Writer

RETAINED = 20910
_VALUE_VERSION = 0


def retained_record(event: GroupRetained) -> Entry:
    """The record of such an event; a tombstone if the group was deleted."""
    key = Writer()
    key.int16(RETAINED)
    key.nullable_string(event.group)
    if not event.is_retained:
        return Entry(bytes(key.data), None)
    value = Writer()
    value.int16(_VALUE_VERSION)
    return Entry(bytes(key.data), bytes(value.data))


def group_of(source: Reader) -> str:
    """The group of a key, behind its type. Raises: Malformed."""
    group = source.nullable_string()
    if group is None:
        raise Malformed("null where a group must stand")
    return group


def retained_restored(source: Reader, value: bytes | None) -> GroupRetained:
    """The event of such a record; `source` is its key behind the type. Raises: Malformed."""
    group = group_of(source)
    if value is not None:
        version = Reader(value).int16()
        if version != _VALUE_VERSION:
            raise Malformed(f"version {version} of a retained share group is from the future")
    return GroupRetained(group, is_retained=value is not None)

"""Restoring topics that damage took out of the catalogue.

A start renames the partition folders of topics that the catalogue does not have. The manifest lists
each topic with its id and the number of its partitions, from the time its folders exist until its
deletion begins, so a listed topic that the catalogue lacks was lost from it, and is restored from
the manifest. Its settings are in the catalogue alone: records of a restored topic are kept without
a limit until its settings are set again.
"""

import base64
import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from headrace.broker.groups import OFFSETS_TOPIC
from headrace.core.catalog import (
    Catalog,
    ConfigSet,
    PartitionsAdded,
    Resource,
    TopicCreated,
    TopicDeleted,
)
from headrace.core.types import WallMs
from headrace.folder.bridge import bridge
from headrace.log import checkpointed_log, damage
from headrace.log.api import CorruptFileError, Disk
from headrace.log.index import remove_index
from headrace.log.manifest import CATALOGUE, NAME, ListedTopic, Manifest, require_unsealed
from headrace.log.metadata_records import MetadataRecords, node_of
from headrace.log.recovery_point import Claim, RecoveryPoint
from headrace.log.repair import segment_bases
from headrace.log.verify import verify_batches
from headrace.wire import batches
from headrace.wire.primitives import Malformed, NewerVersionError

_KEEP_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_COMPACT = {"cleanup.policy": "compact"}


class LostTopic(NamedTuple):
    """A topic of the manifest of which the catalogue lacks the partitions from `first` on."""

    topic_id: UUID
    listed: ListedTopic
    first: int

    def __str__(self) -> str:
        name, last = self.listed.name, self.listed.partitions - 1
        return f"{name}-{self.first}" if self.first == last else f"{name}-{self.first} to {last}"


def listed_topics(disk: Disk) -> Mapping[str, ListedTopic]:
    """Return the topics of the manifest; nothing is written. Raises: CorruptLog; OSError."""
    if disk.exists(NAME):
        return Manifest(disk).topics
    require_unsealed(disk)
    return {}


def lost_topics(catalog: Catalog, listed_topics: Mapping[str, ListedTopic]) -> list[LostTopic]:
    """Return the partitions that the manifest lists and the catalogue lacks, by topic."""
    lost = []
    for text, listed in listed_topics.items():
        topic_id = UUID(bytes=base64.urlsafe_b64decode(f"{text}=="))
        topic = catalog.topics.get(listed.name)
        known = topic.partitions if topic is not None and topic.id == topic_id else 0
        if known < listed.partitions and not listed.is_deleting:
            lost.append(LostTopic(topic_id, listed, known))
    return lost


def read_catalogue(disk: Disk, node_id: int) -> Catalog:
    """Return the catalogue as far as its records are intact.

    A record that needs a lost one, such as a partition of an unknown topic, is passed over.

    Raises: NewerVersionError; OSError.
    """
    catalog, records = Catalog(), MetadataRecords(node_id)
    for key, value in _entries(disk):
        try:
            events = records.events(key, value)
        except NewerVersionError:
            raise
        except Malformed:
            continue
        for event in events:
            if isinstance(event, PartitionsAdded | TopicDeleted) and (
                event.topic_id not in catalog.topics_by_id
            ):
                continue
            catalog.apply(event)
    return catalog


def named_node(disk: Disk) -> int | None:
    """Return the broker that the intact records of the catalogue name. Raises: OSError."""
    for _, value in _entries(disk):
        with contextlib.suppress(Malformed):
            if value is not None and (node_id := node_of(value)) is not None:
                return node_id
    return None


def restore_topics(disk: Disk, node_id: int, now: WallMs) -> tuple[list[LostTopic], list[str]]:
    """Add what the catalogue lacks; write all of it as a checkpoint at the end of its log.

    Returns: what was added, and the path of a copy of the checkpoint that had the same name.

    Raises: CorruptFileError where the manifest is damaged; NewerVersionError; OSError.
    """
    catalog = read_catalogue(disk, node_id)
    lost = lost_topics(catalog, listed_topics(disk))
    for topic_id, listed, first in lost:
        if not first:
            _create(catalog, topic_id, listed.name)
        catalog.apply(PartitionsAdded(topic_id, first, listed.partitions - 1))
    for resource, name in list(catalog.configs):
        if resource is Resource.TOPIC and name not in catalog.topics:
            for key in list(catalog.configs_of(resource, name)):
                catalog.apply(ConfigSet(resource, name, key, None))
    end = _end_offset(disk) or _begun_log(disk)
    records = MetadataRecords(node_id).records(catalog.events(), now)
    path = f"{CATALOGUE}/{checkpointed_log.checkpoint_name(end)}"
    copies = [damage.keep_copy(disk, path, 0, disk.size(path))] if disk.exists(path) else []
    disk.write(path, checkpointed_log.encoded(records, now))
    return lost, copies


def _create(catalog: Catalog, topic_id: UUID, name: str) -> None:
    """Create a topic whose settings are lost, so that a start removes no record of it."""
    former = catalog.topics.get(name)
    if former is not None:  # its deletion was lost, too
        catalog.apply(TopicDeleted(former.id))
    catalog.apply(TopicCreated(name, topic_id))
    settings = _COMPACT if name == OFFSETS_TOPIC else _KEEP_ALL
    known = catalog.configs_of(Resource.TOPIC, name)
    for key, value in settings.items():
        if key not in known:
            catalog.apply(ConfigSet(Resource.TOPIC, name, key, value))


def _entries(disk: Disk) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values of the intact records of the last checkpoint and the log behind it.

    Of a damaged checkpoint the log may have the records that it replaced: those that are still
    there follow it. To apply a record again changes nothing when all later ones are applied, too.
    """
    end, name = checkpointed_log.last_checkpoint(disk.list(CATALOGUE))
    bases = segment_bases(disk, CATALOGUE)
    if name:
        path = f"{CATALOGUE}/{name}"
        data = disk.read(path)
        try:
            verify_batches(path, data)
        except CorruptFileError:
            end = 0
        if end or bases[:1] != [0]:
            for batch in _intact(data, 0):
                yield from _decoded(batch)
    for base in bases:
        for batch in _intact(disk.read(f"{CATALOGUE}/{base:020d}.log"), base):
            if batches.read_header(batch).last_offset >= end:
                yield from _decoded(batch)


def _decoded(data: bytes) -> Iterator[tuple[bytes | None, bytes | None]]:
    for _, key, value in batches.entries(data):
        yield key, value


def _intact(data: bytes, expected: int) -> Iterator[bytes]:
    """Yield the batches whose checksums are right."""

    def pread(count: int, position: int) -> bytes:
        return data[position : position + count]

    position = damage.next_batch(pread, 0, len(data), expected)
    while position is not None:
        header = batches.read_header(data, position)
        yield data[position : position + header.size]
        following = position + header.size
        position = damage.next_batch(pread, following, len(data), header.last_offset + 1)


def _end_offset(disk: Disk) -> int:
    """Return the end of the log, whose last segment is whole."""
    end = 0
    for base in segment_bases(disk, CATALOGUE)[-1:]:
        end = base
        for data in _intact(disk.read(f"{CATALOGUE}/{base:020d}.log"), base):
            end = batches.read_header(data).last_offset + 1
    return end


def _begun_log(disk: Disk) -> int:
    """Let the log have an offset, as a checkpoint stands for at least one; return its end."""
    RecoveryPoint(disk, CATALOGUE).emptied(0)
    done = bridge(disk, f"{CATALOGUE}/{0:020d}.log", 0, 1, is_last=True)
    RecoveryPoint(disk, CATALOGUE).replace(Claim(0, 0, done.size, done.end_offset))
    remove_index(disk, f"{CATALOGUE}/{0:020d}")
    return done.end_offset

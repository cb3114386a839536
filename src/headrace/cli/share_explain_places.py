"""Where a record is that is to be explained: its log, over the wire or in a broker's files."""

from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

from headrace.cli.ending import Trouble, tell
from headrace.cli.log_files import Batch, Damage, first_offset, segment
from headrace.cli.share_explain import COMMAND
from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError, Unsupported
from headrace.client.fetch import fetch
from headrace.client.share_records import BrowsedRun, RecordState, in_flight
from headrace.client.topics import describe_topics
from headrace.log import partition_metadata
from headrace.log.api import CorruptFileError
from headrace.log.manifest import METADATA
from headrace.log.os_disk import OsDisk
from headrace.wire import batches
from headrace.wire.batches import Record

_BYTES_MAX = 1 << 20
_SEGMENT_BYTES_MAX = 1 << 40

Place = tuple[str, int, int]  # topic, partition, offset


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a log begins, and ends: the offset after its last record."""

    start: int
    end: int


class Log(Protocol):
    """The log that a record is in, or was."""

    place: Place
    topic_id: UUID
    is_live: bool  # whether a broker tells who has the record now

    def ends(self) -> Ends: ...
    def record(self) -> Record | None:
        """The record itself; None when compaction or a transaction's end left none there.

        Raises: Malformed when its batch is damaged.
        """

    def held(self, group: str) -> BrowsedRun | None:
        """How a running broker has it, where it is acquired."""


class LogOnWire:
    """The log as a broker serves it."""

    is_live = True

    def __init__(self, cluster: Cluster, place: Place) -> None:
        """Raises: Trouble when there is no such partition; as `Cluster`."""
        topic, partition, _ = self.place = place
        self._cluster = cluster
        found = describe_topics(cluster, [topic]).get(topic)
        if found is None:
            raise Trouble(f"topic {topic} does not exist; headrace topics --list names those there")
        if partition not in {one.partition for one in found.partitions}:
            raise Trouble(f"topic {topic} has {len(found.partitions)} partitions, from 0 on")
        if found.id is None:
            raise Trouble(f"topic {topic} has no id; the cluster is too old to have share groups")
        self.topic_id = found.id

    def ends(self) -> Ends:
        topic, partition, _ = self.place
        start = log_end(self._cluster, topic, partition, LogEnd.EARLIEST)
        return Ends(start, log_end(self._cluster, topic, partition))

    def record(self) -> Record | None:
        topic, partition, offset = self.place
        try:
            found = fetch(self._cluster, topic, partition, offset, bytes_max=_BYTES_MAX)
        except BrokerError as error:
            if error.name != "OFFSET_OUT_OF_RANGE":  # retention removed it meanwhile
                raise
            return None
        return _in(found.records, offset)

    def held(self, group: str) -> BrowsedRun | None:
        topic, partition, offset = self.place
        try:
            told = in_flight(
                self._cluster,
                group,
                (topic, partition),
                offset,
                states=(RecordState.ACQUIRED,),
                runs_max=1,
            )
        except Unsupported:  # it is Apache Kafka, which tells nobody
            self.is_live = False
            return None
        except BrokerError as error:
            if error.name != "GROUP_ID_NOT_FOUND":
                raise
            return None
        return next((one for one in told.runs if one.first <= offset <= one.last), None)


class LogInFiles:
    """The log in the data folder of a broker, which need not run."""

    is_live = False

    def __init__(self, data_dir: Path, place: Place) -> None:
        """Raises: Trouble when there is no such folder; OSError."""
        topic, partition, _ = self.place = place
        folder = data_dir / f"{topic}-{partition}"
        self._segments = sorted(folder.glob("*.log"))
        if not self._segments:
            raise Trouble(f"{data_dir} has no log {folder.name}; check the name of the topic")
        try:
            found = partition_metadata.read(OsDisk(data_dir), folder.name, unsealed=True)
            self.topic_id = UUID(bytes=urlsafe_b64decode(f"{found.topic_id}=="))
        except CorruptFileError as error:
            raise Trouble(f"cannot read the topic id of {folder.name}: {error}") from None
        except ValueError:
            path = folder / METADATA
            raise Trouble(f"cannot read the topic id of {folder.name}: invalid in {path}") from None

    def ends(self) -> Ends:
        """What DeleteRecords removed counts as there, as long as its files are."""
        newest = self._segments[-1]
        start, end = first_offset(self._segments[0]) or 0, first_offset(newest) or 0
        for one in _batches(newest):
            end = one.header.last_offset + 1
        return Ends(start, end)

    def record(self) -> Record | None:
        offset = self.place[2]
        for path in reversed(self._segments):
            if (first_offset(path) or 0) <= offset:
                for one in _batches(path):
                    if one.header.base_offset <= offset <= one.header.last_offset:
                        return _in(memoryview(one.data), offset)
                return None
        return None

    def held(self, group: str) -> BrowsedRun | None:  # noqa: ARG002  # nobody tells it
        return None


def _batches(path: Path) -> Iterator[Batch]:
    """The batches of a segment; what is damaged is told and passed over."""
    for one in segment(path, _SEGMENT_BYTES_MAX):
        if isinstance(one, Damage):
            tell(COMMAND, f"{path}: {one.message}")
        elif one.damage is not None:
            tell(COMMAND, f"{path}: at byte {one.position}: {one.damage}; passed over")
        else:
            yield one


def _in(data: memoryview, offset: int) -> Record | None:
    """The record of an offset among whole batches; control records are none. Raises: Malformed."""
    at = 0
    for header in batches.headers(data):
        piece = data[at : at + header.size]
        at += header.size
        if header.base_offset <= offset <= header.last_offset and not header.is_control:
            return next((one for one in batches.records(piece) if one.offset == offset), None)
    return None

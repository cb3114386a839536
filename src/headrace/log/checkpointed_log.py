"""A journal whose beginning is a checkpoint: the state at one offset, in place of what led to it.

`<end offset>-<epoch>.checkpoint` beside the segments holds the records that make that state, in
Kafka's format of metadata snapshots: a control batch that says so, the records, and one that ends
it (`kafka-dump-log --cluster-metadata-decoder` reads it). What is read below its end offset is the
checkpoint; the log itself is kept from there on. A crash amid a change leaves the older checkpoint
with the log that follows it, or the newer one with more of the log than it needs.
Source: RecordsSnapshotWriter (4.3); SnapshotHeaderRecord and SnapshotFooterRecord.json.
"""

import errno
import re
import struct
from collections.abc import Iterator, Sequence

from headrace.core.machine import Entry
from headrace.core.types import WallMs
from headrace.log.api import CorruptFileError, Disk, Slice
from headrace.log.segments import SegmentedLog
from headrace.wire import batches
from headrace.wire.batches import CONTROL, BatchHeader, CorruptBatch

_SUFFIX = ".checkpoint"
_EPOCH = 0
_NAMED = re.compile(r"\d{20}-\d{10}\.checkpoint")
_SEGMENT_BYTES = 1 << 20  # a segment goes as a whole, and only when it is full
_RECORDS_PER_BATCH = 1000
_DROPPED_MAX = 50  # segments in a turn of the loop; the next checkpoint drops the rest
_CONTROL_KEY = struct.Struct(">hh")
_HEADER, _FOOTER = 3, 4
_HEADER_VALUE = struct.Struct(">hqB")
_FOOTER_VALUE = struct.Struct(">hB")

Records = Sequence[Entry]


class CheckpointedLog:
    """A `log.api.JournalLog` in `folder`.

    Args:
        clean: the journal was settled and closed, and nothing happened to it since.
        end_offset: where it ended then, if that is known.
        has_point: the log had a recovery point, whose name was synced.

    Raises: CorruptLog, OSError.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        clean: bool = False,
        end_offset: int | None = None,
        has_point: bool = False,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._replaced: list[str] = []  # files of dropped segments
        self._log = SegmentedLog(
            disk, folder, segment_bytes=_SEGMENT_BYTES, clean=clean, end_offset=end_offset,
            dropped=self._replaced.extend, has_point=has_point,
        )  # fmt: skip
        if not has_point and not self._log.end_offset:
            self._log.secure_point()  # with it the name of the first segment, if a kill came before
        self._end, self._name = last_checkpoint(disk.list(folder))
        if not self._log.start_offset <= self._end <= self._log.end_offset:
            raise CorruptFileError(
                f"{folder}/{self._name or '*' + _SUFFIX}",
                f"the log holds offsets {self._log.start_offset} to {self._log.end_offset}, and "
                f"the last checkpoint ends at {self._end}",
            )
        self._log.allow_drop(self._end)
        self.use_checkpoint(self._end)
        self.remove_replaced()

    @property
    def start_offset(self) -> int:
        return 0

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def records_since(self) -> int:
        """How many records follow the checkpoint."""
        return self._log.end_offset - self._end

    @property
    def folder(self) -> str:
        """The folder of the journal."""
        return self._folder

    @property
    def log(self) -> SegmentedLog:
        """The log that continues the checkpoint."""
        return self._log

    @property
    def checkpoint_path(self) -> str | None:
        """The file of the checkpoint; None without one."""
        return f"{self._folder}/{self._name}" if self._name else None

    def append(self, data: bytearray | memoryview, headers: Sequence[BatchHeader]) -> int:
        """As `JournalLog.append`."""
        return self._log.append(data, headers)

    def read(self, offset: int, max_bytes: int, *, end: int | None = None) -> Slice:
        """As `JournalLog.read`; the checkpoint, whole, stands for all that is below its end.

        Raises: CorruptLog when it is damaged.
        """
        if offset >= self._end:
            return self._log.read(offset, max_bytes, end=end)
        data = self._disk.read(f"{self._folder}/{self._name}")
        last = self._verified(data)._replace(base_offset=self._end - 1, last_offset_delta=0)
        return Slice(data, (last,))

    def must_roll(self, header: BatchHeader) -> bool:
        """As `JournalLog.must_roll`."""
        return self._log.must_roll(header)

    def begin_seal(self) -> None:
        """As `SegmentedLog.begin_seal`. Raises: OSError."""
        self._log.begin_seal()

    def prepare_next(self) -> None:
        """As `SegmentedLog.prepare_next`. Raises: OSError."""
        self._log.prepare_next()

    def sync(self) -> None:
        """As `JournalLog.sync`."""
        self._log.sync()

    @property
    def rewrites(self) -> int:
        """As `JournalLog.rewrites`; a checkpoint that is used drops what it replaces."""
        return self._log.rewrites

    def mend(self, *, keep: bool) -> None:
        """As `JournalLog.mend`."""
        self._log.mend(keep=keep)

    def resume(self) -> None:
        """As `JournalLog.resume`."""
        self._log.resume()

    def settle(self) -> None:
        """As `SegmentedLog.settle`. Raises: OSError."""
        self._log.settle()

    def close(self) -> None:
        """Close the files; nothing is synced."""
        self._log.close()

    def write_checkpoint(self, end: int, records: Records, now: WallMs) -> None:
        """Put `records` in place of everything below `end`, which the log has reached.

        May run in another thread than appends and reads; `use_checkpoint` then begins to use it.
        Raises: OSError, and the log goes on as it was.
        """
        self._log.sync()
        if self._log.end_offset < end:  # a failed sync may have cut what was seen before it
            raise OSError(errno.EIO, f"{self._folder} ends before {end}, its checkpoint")
        self._disk.write(f"{self._folder}/{checkpoint_name(end)}", encoded(records, now))
        # Not before: what it replaces is not looked for any more from now on.
        self._log.allow_drop(end)

    def use_checkpoint(self, end: int) -> None:
        """Read from the checkpoint that was written, and drop what it replaces; nothing is synced.

        `remove_replaced` removes the files. Raises: OSError.
        """
        if end:
            self._name, self._end = checkpoint_name(end), end
        self._log.advance_start(self._end)
        self._log.drop_segments(self._end, _DROPPED_MAX)

    def remove_replaced(self) -> None:
        """Remove the files of what a checkpoint replaced; for a thread. Raises: OSError."""
        replaced, self._replaced[:] = self._replaced[:], []
        for path in replaced:
            self._disk.remove(path)
        for name in self._disk.list(self._folder):
            # Older ones, and one that a crash cut off; copies that a repair keeps stay.
            if _NAMED.fullmatch(name.removesuffix(".new")) and name != self._name:
                self._disk.remove(f"{self._folder}/{name}")

    def _verified(self, data: bytes) -> BatchHeader:
        """The last header of a checkpoint whose checksums are right. Raises: CorruptLog."""
        position = 0
        try:
            for header in (found := batches.headers(data)):
                batches.verify(data, position, header)
                position += header.size
            if position == len(data) and found and found[-1].is_control and len(found) > 1:
                return found[-1]
            damage = "it has no end"
        except CorruptBatch as error:
            damage = str(error)
        raise CorruptFileError(f"{self._folder}/{self._name}", damage, position=position)


def encoded(records: Records, now: WallMs) -> bytes:
    """The bytes of a checkpoint."""
    return b"".join(_batches(records, now))


def _batches(records: Records, now: WallMs) -> Iterator[bytes]:
    yield _control(0, _HEADER, _HEADER_VALUE.pack(0, now, 0), now)
    for at in range(0, len(records), _RECORDS_PER_BATCH):
        some = records[at : at + _RECORDS_PER_BATCH]
        yield batches.build(
            (batches.Record(0, now, *entry) for entry in some),
            base_offset=at + 1,
            leader_epoch=_EPOCH,
        )
    yield _control(len(records) + 1, _FOOTER, _FOOTER_VALUE.pack(0, 0), now)


def _control(offset: int, kind: int, value: bytes, now: WallMs) -> bytes:
    record = batches.Record(offset, now, _CONTROL_KEY.pack(0, kind), value)
    return batches.build([record], base_offset=offset, leader_epoch=_EPOCH, attributes=CONTROL)


def last_checkpoint(names: Sequence[str]) -> tuple[int, str]:
    """Return the end offset and the name of the last checkpoint among sorted names, or 0 and ""."""
    checkpoints = [name for name in names if _NAMED.fullmatch(name)]
    return (int(checkpoints[-1].split("-")[0]), checkpoints[-1]) if checkpoints else (0, "")


def checkpoint_name(end: int) -> str:
    """Return the name of the checkpoint that ends at an offset."""
    return f"{end:020d}-{_EPOCH:010d}{_SUFFIX}"

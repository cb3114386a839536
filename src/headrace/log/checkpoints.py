"""Two small files in a data folder's root, as Kafka's: start offsets, and a mark left by a stop.

`log-start-offset-checkpoint` has a line for each partition that starts inside a segment; where a
log starts with its first segment, the segment's name says it. `.kafka_cleanshutdown` exists while
no broker runs and the last one stopped in order; it is removed when one starts.
Source: CheckpointFile, OffsetCheckpointFile, CleanShutdownFileHandler (4.3).
"""

from headrace.log.api import CorruptLog, Disk

_STARTS = "log-start-offset-checkpoint"
_CLEAN = ".kafka_cleanshutdown"
_VERSION = "0"


class StartOffsets:
    """The start offsets of partitions where records were deleted up to an offset.

    Args:
        durable: a change is on stable storage when it is made.

    Raises: CorruptLog when the file is damaged; OSError, from every method that changes something.
    """

    def __init__(self, disk: Disk, *, durable: bool) -> None:
        self._disk = disk
        self._durable = durable
        self._offsets = _parsed(disk.read(_STARTS)) if disk.exists(_STARTS) else {}

    def get(self, topic: str, partition: int) -> int:
        """The start offset, 0 where nothing was deleted."""
        return self._offsets.get((topic, partition), 0)

    def put(self, topic: str, partition: int, offset: int) -> None:
        """Keep a start offset; it is written when this returns."""
        self._write({**self._offsets, (topic, partition): offset})

    def forget(self, topic: str, partitions: range) -> None:
        """These partitions are no more, and others may come by their name."""
        gone = {(topic, index) for index in partitions}
        if not gone.isdisjoint(self._offsets):
            self._write({key: n for key, n in self._offsets.items() if key not in gone})

    def _write(self, offsets: dict[tuple[str, int], int]) -> None:
        lines = [f"{topic} {index} {offset}" for (topic, index), offset in offsets.items()]
        text = "\n".join([_VERSION, str(len(lines)), *lines, ""])
        self._disk.write(_STARTS, text.encode(), durable=self._durable)
        self._offsets = offsets


def take_clean_mark(disk: Disk) -> bool:
    """Whether the last broker stopped in order; from now on one runs. Raises: OSError."""
    if not disk.exists(_CLEAN):
        return False
    disk.remove(_CLEAN)
    return True


def leave_clean_mark(disk: Disk) -> None:
    """Everything is synced and closed. Raises: OSError."""
    disk.write(_CLEAN, b'{"version":0,"brokerEpoch":-1}')


def _parsed(data: bytes) -> dict[tuple[str, int], int]:
    version, _, rest = data.decode(errors="replace").partition("\n")
    count, *lines = rest.splitlines() or [""]
    try:
        rows = [line.split(" ") for line in lines]
        found = {(topic, int(index)): int(offset) for topic, index, offset in rows}
        intact = version == _VERSION and int(count) == len(found)
    except ValueError:
        intact = False
    if not intact:
        raise CorruptLog(
            f"{_STARTS} is damaged; restore it, or remove it to have deleted records of unfinished "
            "segments back"
        )
    return found

"""How much of a log exists and is on stable storage for sure, for the next opening.

`<folder>/recovery-point` has two slots, written in turn and in place, each with a checksum over its
bytes and the path of the file. The layout is in docs/data-folder.md. A slot is written after each
sync, before anybody is promised what was synced (5 us beside the milliseconds of the sync), and is
not synced itself: a power cut may lose it, and the older slot claims less. Disks write
the sector of a slot whole; where one does not, both slots can be lost, and nothing is claimed. A
claim is therefore always true:

- there are segments for every offset from `first_base` on; what is below was given up, and an
  opening removes segments that are still there,
- the segment `base_offset` exists, and its first `size` bytes, which end before `end_offset`, are
  on stable storage,
- the first batch of this segment, if there is one, has the checksum `first_crc`, which tells the
  segment from a whole one of another log under its name.

A log has the file from its begin. Its name is on stable storage before the manifest says that the
log must have it (`manifest.py`), so a missing file is damage and never what a power cut left.

Opening refuses a log that is less than its claim (`opening.py`). After a sync that failed a system
may call written what never reached the disk, so what is above the claim is written once more.

The file of a format 0 folder is one line, the base offset of a segment and its synced bytes.
"""

import contextlib
import errno
import logging
import re
import struct
import threading
from typing import NamedTuple

from headrace.log.api import Disk, NewerFormatError
from headrace.wire import batches
from headrace.wire.checksums import crc32c

log = logging.getLogger("headrace.log")

NAME = "recovery-point"
_MAGIC = b"HRRP"
_VERSION = 1
_SLOT = struct.Struct(">4shhqqqqqI8x")
_CRC = struct.Struct(">I")
_SLOT_BYTES = _SLOT.size + _CRC.size
_SLOT_DISTANCE = 512  # a disk writes a sector whole
_FORMAT_0 = re.compile(rb"(\d{1,19}) (\d{1,19})\n")
UNKNOWN = -1
EMPTYING = -2  # as the end of a log whose segments are being set aside, to begin with an empty one


class Claim(NamedTuple):
    """What a log has at least; a field is `UNKNOWN` where nothing is claimed."""

    first_base: int
    base_offset: int
    size: int
    end_offset: int
    first_crc: int = 0  # unknown; also what one checksum in four thousand million is


NO_CLAIM = Claim(UNKNOWN, UNKNOWN, 0, UNKNOWN)


def begin_point(disk: Disk, folder: str) -> None:
    """Write the point of a log that has none yet, with a claim to its last segment alone.

    Raises: OSError.
    """
    names = disk.list(folder)
    stems = [name.removesuffix(".log") for name in names if name.endswith(".log")]
    bases = [int(stem) for stem in stems if stem.isdecimal()]
    if bases and NAME not in names:
        RecoveryPoint(disk, folder).began(UNKNOWN, max(bases), 0)


class RecoveryPoint:
    """Keeps the claim of one log. Methods may be called from any thread.

    Args:
        folder: the folder of the log.

    Raises: from the constructor, OSError where the file cannot be read, and NewerFormatError.
    """

    __slots__ = (
        "_disk", "_is_closed", "_is_durable", "_lock", "_path", "_seed", "_sequence", "claim",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._path = f"{folder}/{NAME}"
        self._seed = crc32c(self._path.encode() + b"\n")
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_durable = False  # whether the claim is known to be on stable storage
        self._sequence, self.claim = read_claim(disk, folder)

    def began(
        self, first_base: int, base_offset: int, first_crc: int, *, wait: bool = False
    ) -> bool:
        """Record that a segment has its first batch and that nothing of it is synced yet.

        Args:
            first_crc: 0 where the batch was written before this start, and its claim was lost.
            wait: wait for a thread that waits for the disk.

        Returns:
            False, and nothing is recorded, while a thread waits for the disk; never with `wait`.
        """
        if not self._lock.acquire(blocking=wait):
            return False
        try:
            kept = self.claim
            first = max(first_base, kept.first_base)
            is_next = base_offset > kept.base_offset
            if is_next or (base_offset == kept.base_offset and not kept.size):
                claim = Claim(first, base_offset, 0, base_offset, first_crc)
                self._try_to_write(self._with_first_crc(claim))
        finally:
            self._lock.release()
        return True

    @property
    def is_missing(self) -> bool:
        """Whether the log has no such file."""
        return not self._sequence and not self._disk.exists(self._path)

    def begin(self) -> None:
        """Write the file of a new log, without a claim; nothing is synced. Raises: OSError."""
        with self._lock:
            if self.is_missing:
                self._write(self.claim, durable=False)

    def secure(self) -> None:
        """Sync the file and its name, with the present claim. Raises: OSError."""
        with self._lock:
            self._require_open()
            if not self._is_durable:
                self._write(self.claim, durable=True)

    def follow(self, first_base: int, base_offset: int) -> None:
        """Record durably that a later segment exists, of which nothing is synced.

        Raises: OSError.
        """
        with self._lock:
            self._require_open()
            kept = self.claim
            if base_offset > kept.base_offset:
                first = max(first_base, kept.first_base)
                self._write(Claim(first, base_offset, 0, base_offset), durable=True)
            elif not self._is_durable:
                self._write(kept, durable=True)

    def emptied(self, base_offset: int) -> None:
        """Forget the first batch of a segment that is emptied or rewritten, durably.

        The next first batch is another one, and a power cut may leave it beside the claim before.

        Raises: OSError.
        """
        with self._lock:
            is_known = self._is_durable and not self.claim.first_crc
            if base_offset == self.claim.base_offset and not is_known:
                self._write_both(self.claim._replace(first_crc=0))

    def synced(self, base_offset: int, size: int, end_offset: int) -> None:
        """Record that the first `size` bytes of the last segment are synced."""
        with self._lock:
            kept = self.claim
            if base_offset == kept.base_offset:
                self._try_to_write(kept._replace(size=size, end_offset=end_offset))

    def settled(self, claim: Claim) -> None:
        """Record all of a log that is synced, durably. Raises: OSError."""
        with self._lock:
            if claim.size:
                claim = self._with_first_crc(claim)
            if claim != self.claim or not self._is_durable:
                self._write(claim, durable=True)

    def dropping(self, first_base: int) -> None:
        """Allow the segments below `first_base` to go, durably. Raises: OSError."""
        with self._lock:
            self._require_open()
            kept = self.claim
            if kept.base_offset < first_base:  # the segment that is claimed is given up, too
                self._write_both(Claim(first_base, first_base, 0, first_base))
            elif first_base > kept.first_base:
                self._write_both(kept._replace(first_base=first_base))

    def replace(self, claim: Claim) -> None:
        """Give up the claim before, durably. Raises: OSError."""
        with self._lock:
            self._write_both(claim)

    def keep(self) -> None:
        """Put the claim on stable storage, as a refusal rests on it.

        Without it a power cut could take the claim back, and damage to synced records would then
        pass for a torn end. Where the disk fails, the claim stays as it is.
        """
        with self._lock, contextlib.suppress(OSError):
            if self.claim.size > 0 or self.claim.base_offset > self.claim.first_base:
                self._write_both(self.claim)

    def close(self) -> None:
        """Write no claim from now on: another log may get the folder."""
        self._is_closed = True

    def retire(self) -> None:
        """As `close`, and wait for a claim that another thread writes."""
        self.close()
        with self._lock:
            pass

    def _require_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, f"{self._path}: the log is closed")

    def _with_first_crc(self, claim: Claim) -> Claim:
        """Take the checksum of the first batch from the segment, where the claim has none.

        So only an exchange of the file between the loss of a claim and the next start is unnoticed.
        A batch that does not verify gives none: its checksum may be what is damaged.
        """
        if claim.first_crc:
            return claim
        path = f"{self._path.removesuffix(NAME)}{claim.base_offset:020d}.log"
        try:
            header = batches.read_header(self._disk.read(path, batches.HEADER_BYTES, 0))
            if header.size > self._disk.size(path):
                return claim
            batches.verify(self._disk.read(path, header.size, 0), 0, header)
        except (OSError, batches.CorruptBatch):
            return claim
        return claim._replace(first_crc=header.crc)

    def _try_to_write(self, claim: Claim) -> None:
        if self._is_closed:
            return
        try:
            # Not kept open: thousands of partitions would have as many files more.
            self._write(claim, durable=False)
        except OSError as error:  # the claim before is true, too
            log.debug("%s: not written: %s", self._path, error)

    def _write_both(self, claim: Claim) -> None:
        """Leave no slot that claims more than `claim`.

        After a failure the claim before counts, so that a further try writes both slots again.
        """
        before = self.claim
        try:
            self._write(claim, durable=False)
            self._write(claim, durable=True)
        except OSError:
            self.claim = before
            raise

    def _write(self, claim: Claim, *, durable: bool) -> None:
        sequence = self._sequence + 1
        data, position = self._slot(sequence, claim)
        self._disk.overwrite(self._path, data, position, durable=durable)
        self._sequence, self.claim, self._is_durable = sequence, claim, durable

    def _slot(self, sequence: int, claim: Claim) -> tuple[bytes, int]:
        """The bytes of a slot, and its position in the file."""
        data = _SLOT.pack(_MAGIC, _VERSION, 0, sequence, *claim)
        return data + _CRC.pack(crc32c(data, self._seed)), sequence % 2 * _SLOT_DISTANCE


def encoded(path: str, sequence: int, claim: Claim) -> bytes:
    """Return the bytes of a slot."""
    data = _SLOT.pack(_MAGIC, _VERSION, 0, sequence, *claim)
    return data + _CRC.pack(_checksum(path, data))


def read_claim(disk: Disk, folder: str) -> tuple[int, Claim]:
    """Read the sequence and the claim of the valid slot with the higher sequence.

    A slot that does not verify is ignored with a WARNING line.

    Raises:
        NewerFormatError: a slot verifies and has a newer version.
        OSError: the file exists and cannot be read.
    """
    path = f"{folder}/{NAME}"
    if not disk.exists(path):
        return 0, NO_CLAIM
    data = disk.read(path)
    best, damaged = (0, NO_CLAIM), 0
    for position in (0, _SLOT_DISTANCE):
        slot = data[position : position + _SLOT_BYTES]
        if not any(slot) or (found := _FORMAT_0.match(slot)):
            continue
        one = decoded(path, slot)
        if one is None:
            damaged += 1
        elif one[0] > best[0]:
            best = one
    found = _FORMAT_0.fullmatch(data)
    if found is not None:
        return 0, Claim(UNKNOWN, int(found[1]), int(found[2]), UNKNOWN)
    if damaged:
        used = "the other slot is used" if best[0] else "the log is opened without it"
        log.warning("%s: a slot does not verify; %s", path, used)
    return best


def is_sound(disk: Disk, folder: str) -> bool:
    """Return whether every slot that was written verifies. Raises: NewerFormatError; OSError."""
    path = f"{folder}/{NAME}"
    data = disk.read(path)
    if _FORMAT_0.fullmatch(data):
        return True
    slots = [data[at : at + _SLOT_BYTES] for at in (0, _SLOT_DISTANCE)]
    written = [one for one in slots if any(one) and not _FORMAT_0.match(one)]
    return bool(written) and all(decoded(path, one) is not None for one in written)


def decoded(path: str, slot: bytes) -> tuple[int, Claim] | None:
    """Return sequence and claim of a slot; None where it does not verify.

    Raises: NewerFormatError.
    """
    if len(slot) < _SLOT_BYTES:
        return None
    data = slot[: _SLOT.size]
    if _CRC.unpack_from(slot, _SLOT.size)[0] != _checksum(path, data):
        return None
    magic, version, _, sequence, *fields = _SLOT.unpack(data)
    if magic != _MAGIC:
        return None
    if version > _VERSION:
        raise NewerFormatError(path, version)
    return sequence, Claim(*fields)


def _checksum(path: str, data: bytes) -> int:
    return int(crc32c(data, crc32c(path.encode() + b"\n")))

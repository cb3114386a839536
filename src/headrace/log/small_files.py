"""Text files of the data folder with a checksum and a format version.

A sealed file ends with a line of its own:

    #headrace format=1 crc32c=0a1b2c3d

The checksum covers the path of the file, relative to the data folder, and every byte before the
eight digits, the format version included. A file copied to another name therefore does not verify,
and a damaged version digit is damage, not a newer version. The line has this form in every
release. Readers of Apache Kafka take it for a comment (`meta.properties`) or stop before it
(`partition.metadata`). Each file has a format version of its own.

Data folders of format 0, which have no manifest, have the same files without that line; `read_file`
accepts them only where the caller allows it, while a data folder is upgraded.
"""

import errno
import re
from typing import NamedTuple

from headrace.log.api import MISSING, CorruptFileError, Disk, NewerFormatError
from headrace.wire.checksums import crc32c

FORMAT = 1
_FORMATS = {"headrace.manifest": 2}  # of files whose format has changed
_SEAL = re.compile(rb"#headrace format=(\d{1,9}) crc32c=([0-9a-f]{8})\n\Z")
_PERMISSION = {errno.EACCES, errno.EPERM}
_LASTING = {*_PERMISSION, errno.EISDIR, errno.ENOTDIR, errno.ELOOP}
_DIGITS_BYTES = len("00000000\n")


class SmallFile(NamedTuple):
    """Contents of a small file; `is_sealed` is False for one of a format 0 data folder."""

    text: str
    is_sealed: bool


def sealed(path: str, text: str) -> bytes:
    """Return the bytes of a file: the text and its last line."""
    assert not text or text.endswith("\n"), "the last line is complete"
    data = f"{text}#headrace format={_newest(path)} crc32c=".encode()
    return data + f"{_checksum(path, data):08x}\n".encode()


def write_file(disk: Disk, path: str, text: str) -> None:
    """Replace a file durably. Raises: OSError."""
    disk.write(path, sealed(path, text))


def read_file(disk: Disk, path: str, *, unsealed: bool = False) -> SmallFile:
    """Read and verify a file.

    Args:
        unsealed: accept a file without the last line.

    Raises:
        CorruptFileError: the file is missing, is not a readable file, or does not verify.
        NewerFormatError: the file verifies and has a newer format version.
    """
    return parsed(path, read_bytes(disk, path), unsealed=unsealed)


def read_bytes(disk: Disk, path: str) -> bytes:
    """Read all of a file.

    Raises:
        CorruptFileError: the file is missing, or is no file that this process may read.
        OSError: the disk fails, or the process lacks resources; it names the file.
    """
    try:
        return disk.read(path)
    except FileNotFoundError as error:
        raise CorruptFileError(path, MISSING) from error
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror or error}"
        if error.errno in _LASTING:
            remedy = "change its owner or permissions" if error.errno in _PERMISSION else ""
            raise CorruptFileError(path, problem, remedy=remedy) from error
        raise OSError(error.errno, f"{path}: {problem}") from error


def parsed(path: str, data: bytes, *, unsealed: bool = False) -> SmallFile:
    """Verify the bytes of a file. Raises: as `read_file`."""
    seal = _SEAL.search(data)
    if seal is None:
        if not unsealed or b"#headrace" in data:
            problem = "the file is empty" if not data else "the checksum line is missing or damaged"
            raise CorruptFileError(path, problem)
        return SmallFile(_decoded(path, data), is_sealed=False)
    if int(seal[2], 16) != _checksum(path, data[:-_DIGITS_BYTES]):
        raise CorruptFileError(path, "the checksum does not match")
    if int(seal[1]) > _newest(path):
        raise NewerFormatError(path, int(seal[1]))
    return SmallFile(_decoded(path, data[: seal.start()]), is_sealed=True)


def _newest(path: str) -> int:
    """Return the format version of a file that this release writes."""
    return max(FORMAT, _FORMATS.get(path, FORMAT))


def _decoded(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(path, "the file is not text", position=error.start) from error


def _checksum(path: str, data: bytes) -> int:
    return int(crc32c(data, crc32c(path.encode() + b"\n")))

"""Looks at the machine: folder and disk, port, open files, clock. Each is a `Finding`."""

import errno
import fcntl
import os
import resource
import shutil
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_CONNECT_SECONDS_MAX = 0.5
_ANSWER_BYTES_MAX = 64 * 1024
_FREE_BYTES_FAIL = 100 * 1000**2
_FREE_BYTES_WARN = 5 * 1000**3
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_SYNCS = 5
_SYNC_MS_WARN = 20.0
_FILES_WARN = 4096
_FILES_PER_PARTITION = 3
_EPOCH_S_MIN = 1_760_000_000  # October 2025: this version is younger
_OF_MEMORY = {"ramfs", "tmpfs"}
_OF_NETWORKS = {"9p", "ceph", "cifs", "fuse.sshfs", "nfs", "nfs4", "smb3"}
_MOUNTS = Path("/proc/self/mounts")
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_LEASE_API = 20900  # no other broker serves it


class Grade(StrEnum):
    """How a finding bears on `serve`: fine, fine but mind the remedy, or in its way."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, what was found, and what to do about it."""

    about: str
    grade: Grade
    found: str
    remedy: str = ""


def disk(folder: Path) -> Iterator[Finding]:
    """Whether the folder can be written, who uses it, its file system, space and speed."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    made = "" if there == folder.absolute() else f" (to be made in {there})"
    try:
        latency_ms = _sync_ms(there)
    except OSError as error:
        yield Finding(
            "data folder", Grade.FAIL, f"{folder}{made} cannot be written: {error.strerror}",
            "make room, or choose another --data-dir" if error.errno in _NO_SPACE
            else "choose another --data-dir, or change the rights or owner of this one",
        )  # fmt: skip
        return
    if _is_in_use(there / ".lock"):
        yield Finding("data folder", Grade.WARN, f"{folder} is in use by a running broker",
                      "a second broker needs another --data-dir")  # fmt: skip
    else:
        yield Finding("data folder", Grade.OK, f"{folder} can be written{made}")
    yield _file_system(there)
    yield _space(there)
    if latency_ms > _SYNC_MS_WARN:
        yield Finding(
            "disk sync", Grade.WARN, f"{latency_ms:.1f} ms for one fdatasync",
            "headrace.durability=fsync waits that long for every group of writes",
        )  # fmt: skip
    else:
        yield Finding("disk sync", Grade.OK, f"{latency_ms:.1f} ms for one fdatasync")


def _sync_ms(folder: Path) -> float:
    """The median of some syncs of a file that nobody sees. Raises: OSError."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            os.write(file.fileno(), bytes(4096))
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def _is_in_use(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _file_system(folder: Path) -> Finding:
    kind = _kind_of_file_system(folder)
    if kind in _OF_MEMORY:
        return Finding("file system", Grade.WARN, f"{kind}, which lives in memory",
                       "records are lost with the machine; choose another --data-dir")  # fmt: skip
    if kind in _OF_NETWORKS:
        return Finding("file system", Grade.WARN, f"{kind}, which is on a network",
                       "locks and syncs may not hold there; use a local disk")  # fmt: skip
    return Finding("file system", Grade.OK, kind)


def _kind_of_file_system(folder: Path) -> str:
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"  # not Linux
    mounts = [(Path(one[1]), one[2]) for one in (line.split(" ") for line in lines)]
    real = folder.resolve()
    under = [one for one in mounts if real.is_relative_to(one[0])]
    return max(under, key=lambda one: len(one[0].parts))[1] if under else "unknown"


def _space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    found = f"{free / 1000**3:.1f} GB are free"
    remedy = "make room, or set log.retention.bytes"
    if free < _FREE_BYTES_FAIL:
        return Finding("disk space", Grade.FAIL, found, remedy)
    if free < _FREE_BYTES_WARN:
        return Finding("disk space", Grade.WARN, found, remedy)
    return Finding("disk space", Grade.OK, found)


def port_on(host: str, port: int) -> Finding:
    """Whether the port is free, and otherwise who answers there."""
    about = f"port {port}"
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS_MAX) as connection:
            connection.sendall(_API_VERSIONS)
            keys = _keys_of(connection)
    except OSError as error:
        if isinstance(error, TimeoutError):
            return Finding(about, Grade.FAIL, f"something on {host} listens and says nothing",
                           "choose another --port or stop what uses it")  # fmt: skip
        return _bindable(about, host, port)
    if _LEASE_API in keys:
        return Finding(about, Grade.WARN, f"a Headrace broker answers on {host}",
                       "a second broker needs another --port")  # fmt: skip
    who = "another Kafka broker answers" if keys else "something that is no Kafka broker answers"
    return Finding(about, Grade.FAIL, f"{who} on {host}",
                   "choose another --port or stop what uses it")  # fmt: skip


def _keys_of(connection: socket.socket) -> set[int]:
    """The API keys in the answer to ApiVersions; none when it is no such answer."""
    data = b""
    while len(data) < 4 or len(data) < min(4 + int.from_bytes(data[:4]), _ANSWER_BYTES_MAX):
        piece = connection.recv(_ANSWER_BYTES_MAX)
        if not piece:
            return set()
        data += piece
    try:
        _, correlation_id, error, count = struct.unpack_from(">iihi", data)
        if (correlation_id, error) != (1, 0):
            return set()
        return {struct.unpack_from(">h", data, 14 + 6 * index)[0] for index in range(count)}
    except struct.error:
        return set()


def _bindable(about: str, host: str, port: int) -> Finding:
    try:
        with socket.create_server((host, port)):
            return Finding(about, Grade.OK, f"free on {host}")
    except OSError as error:
        if error.errno == errno.EACCES:
            remedy = "choose a --port above 1023"
        else:
            remedy = "check --host and --port"
        return Finding(about, Grade.FAIL, f"cannot listen on {host}: {error.strerror}", remedy)


def open_files() -> Finding:
    """How many files the broker may open; it raises its own soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Finding("open files", Grade.OK, "unlimited")
    found = f"{hard}, enough for about {hard // _FILES_PER_PARTITION} partitions"
    if hard < _FILES_WARN:
        return Finding("open files", Grade.WARN, found, "raise the hard limit (ulimit -Hn)")
    return Finding("open files", Grade.OK, found)


def clock() -> Finding:
    """Whether the clock can be right: records carry its time, and retention goes by it."""
    now = time.time()
    found = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < _EPOCH_S_MIN:
        return Finding("clock", Grade.WARN, f"{found} is before this version was made",
                       "set the clock; retention by time goes by it")  # fmt: skip
    return Finding("clock", Grade.OK, found)

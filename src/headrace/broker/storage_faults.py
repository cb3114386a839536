"""Who is told what of logs that cannot be written: once when it begins, once when it is over."""

import errno
import logging
import resource
from dataclasses import dataclass

from headrace.broker.runtime import StorageFault
from headrace.core.types import MonoMs, elapsed_ms
from headrace.log.api import Clock

log = logging.getLogger("headrace.broker")

_TOLD_MAX = 10  # a full disk fails every partition; the first few say enough
STORAGE_ERRORS = (OSError, StorageFault)
_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_FILES = {errno.EMFILE, errno.ENFILE}


@dataclass(slots=True)
class _Fault:
    """Since when a log fails, how often it did, and whether that was logged."""

    since: MonoMs
    told: bool
    count: int = 1


class StorageFaults:
    """The logs that cannot be written at present."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._faults: dict[str, _Fault] = {}

    def failed(self, name: str, error: OSError) -> None:
        """A write or a sync of a log failed."""
        known = self._faults.get(name)
        if known is not None:
            known.count += 1
            return
        told = len(self._faults) < _TOLD_MAX
        self._faults[name] = _Fault(self._clock.mono(), told)
        if told:
            log.error(
                "cannot write to %s: %s; clients are told so and try again. %s",
                name, error.strerror or error, _advice(error),
            )  # fmt: skip
        elif len(self._faults) == _TOLD_MAX + 1:
            log.error("cannot write to further partitions either; they are not named")

    def over(self, name: str) -> None:
        """A log is written again; nothing when it was all the time."""
        fault = self._faults.pop(name, None)
        if fault is not None and fault.told:
            log.warning(
                "%s is written again, after %d failures in %d ms",
                name, fault.count, elapsed_ms(fault.since, self._clock.mono()),
            )  # fmt: skip

    def forget(self, name: str) -> None:
        """A log is closed or deleted."""
        self._faults.pop(name, None)


def is_full(error: OSError) -> bool:
    """Return whether a write failed because there is no room for it."""
    return error.errno in _SPACE


def storage_text(error: Exception) -> str:
    """Return the message of KAFKA_STORAGE_ERROR for an administrator."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError) and cause.errno in _NO_FILES:
        remedy = f"on its machine: {_advice(cause)}"
    else:
        remedy = (
            "free space or look for disk errors on its machine, then repeat the request; no "
            "restart is needed"
        )
    return f"the broker cannot write to its data folder ({error}); {remedy}"


def _advice(error: OSError) -> str:
    if is_full(error):
        return "Free space, or raise the quota or file size limit; no restart is needed."
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"The process may open {limit} files: raise the limit (ulimit -n, nofile in "
            "limits.conf) and restart the broker."
        )
    if error.errno == errno.ENFILE:
        return "The system has no more open files to give: raise the sysctl fs.file-max."
    if error.errno == errno.EROFS:
        return "The file system is read-only: look for disk errors, then mount it writable."
    return "Look for disk errors (dmesg); it is tried again without a restart."

"""The advice that goes with a write that failed."""

import errno
import os
import resource

import pytest

from headrace.broker.runtime import StorageFault
from headrace.broker.storage_faults import StorageFaults, storage_text
from headrace.log.memory_disk import VirtualClock


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (errno.EMFILE, f"may open {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOSPC, "Free space"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "dmesg"),
    ],
)
def test_the_advice_fits_the_error(
    number: int, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    StorageFaults(VirtualClock()).failed("orders-0", error_of(number))
    (message,) = caplog.messages
    assert wanted in message
    assert ("dmesg" in message) == (number == errno.EIO)


def test_administrators_read_about_the_limit_of_open_files_too() -> None:
    assert "ulimit -n" in storage_text(error_of(errno.EMFILE))
    wrapped = StorageFault("the catalogue: Too many open files")
    wrapped.__cause__ = error_of(errno.EMFILE)
    assert "ulimit -n" in storage_text(wrapped)
    assert "free space" in storage_text(error_of(errno.ENOSPC))

"""CRC-32C: the values of RFC 3720, and the package without its extension where we look for it."""

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import checksums


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_the_examples_of_the_standard(data: bytes, expected: int) -> None:
    assert checksums.crc32c(data) == expected
    assert checksums.crc32c(memoryview(bytearray(data))) == expected


@given(st.binary())
def test_it_is_that_of_the_package(data: bytes) -> None:
    assert checksums.crc32c(data) == package.crc32c(data)


def test_another_layout_of_the_package_is_imported_as_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checksums, "_EXTENSION", "crc32c._no_such_module")
    assert checksums._loaded() is package
    monkeypatch.setattr(checksums, "_PACKAGE", "no_such_package")
    assert checksums._loaded() is package

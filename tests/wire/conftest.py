"""Each kernel of the columns; batches that nobody should send: right checksums, wrong records."""

import importlib.util
import struct
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from crc32c import crc32c

from headrace.wire import (
    _codec,
    _codec_encode,
    batches,
    columns,
    columns_compiled,
    columns_numpy,
    columns_numpy_encode,
)
from headrace.wire.batches import Record
from headrace.wire.compression import Codec, compress


def _copy(module: ModuleType, path: str, **changes: ModuleType) -> ModuleType:
    """The module once more, from the source at `path`, with names of its own changed."""
    loader = SourceFileLoader(f"{module.__name__}_copy", path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    copied = importlib.util.module_from_spec(spec)
    loader.exec_module(copied)
    for name, value in changes.items():
        setattr(copied, name, value)
    return copied


@pytest.fixture(scope="session")
def copied() -> Callable[..., ModuleType]:
    return _copy


def _columns(decoder: ModuleType, encoder: ModuleType) -> ModuleType:
    return _copy(columns, str(columns.__file__), _decoder=decoder, _encoder=encoder)


def _plain() -> ModuleType:
    halves = {}
    for half in (_codec, _codec_encode):
        name = half.__name__.rpartition(".")[2]
        source = Path(str(columns_compiled.__file__)).with_name(f"{name}.py")
        halves[name] = _copy(half, str(source))
        assert not halves[name].COMPILED
    return _copy(columns_compiled, str(columns_compiled.__file__), **halves)


_PLAIN = _plain()
KERNELS = {
    "numpy": _columns(columns_numpy, columns_numpy_encode),
    "compiled": _columns(columns_compiled, columns_compiled),
    "plain": _columns(_PLAIN, _PLAIN),
}
_NOT_BUILT = pytest.mark.skipif(
    not columns_compiled.COMPILED,
    reason="the kernel is not compiled here: install a C compiler, then `pip install -e .`",
)


@pytest.fixture(scope="session")
def numpy_kernel() -> ModuleType:
    """`wire.columns` bound to numpy, to compare others to."""
    return KERNELS["numpy"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `kernel` runs with each: `wire.columns` bound to that one."""
    if "kernel" in metafunc.fixturenames:
        found = [
            pytest.param(module, id=name, marks=_NOT_BUILT if name == "compiled" else ())
            for name, module in KERNELS.items()
        ]
        metafunc.parametrize("kernel", found)


MINIMAL = b"\x00\x00\x00\x01\x01\x00"
NO_UTF8 = b"\x12" + MINIMAL[:5] + b"\x02\x02\xff\x01"
BROKEN = {
    "missing record": (b"", 1),
    "fewer than counted": (b"\x0c" + MINIMAL, 2),
    "more than counted": (b"\x0c" + MINIMAL + b"\x0c\x00\x00\x02\x01\x01\x00", 1),
    "negative count": (b"", -1),
    "negative length": (b"\x0d" + MINIMAL, 1),
    "longer than the batch": (b"\x0e" + MINIMAL, 1),
    "a byte too many in the record": (b"\x0e" + MINIMAL + b"\x00", 1),
    "a byte too many behind the headers": (b"\x14" + NO_UTF8[1:] + b"\x00", 1),
    "delta beyond the last": (b"\x0c\x00\x00\x02\x01\x01\x00", 1),
    "negative delta": (b"\x0c\x00\x00\x01\x01\x01\x00", 1),
    "the same delta twice": ((b"\x0c" + MINIMAL) * 2, 2),
    "key of -2 bytes": (b"\x0c\x00\x00\x00\x03\x01\x00", 1),
    "value of -2 bytes": (b"\x0c\x00\x00\x00\x01\x03\x00", 1),
    "key leaves the record": (b"\x0c\x00\x00\x00\x06\x01\x00", 1),
    "value leaves the record by one": (b"\x0c\x00\x00\x00\x01\x04\x00", 1),
    "headers that are not there": (b"\x0c\x00\x00\x00\x01\x01\x20", 1),
    "-1 headers": (b"\x0c\x00\x00\x00\x01\x01\x01", 1),
    "header without a name": (b"\x10" + MINIMAL[:5] + b"\x02\x01\x01", 1),
    "header value leaves the record": (b"\x12" + MINIMAL[:5] + b"\x02\x02a\x02", 1),
    "record ends amid its varints": (b"\x04\x00\x00" + b"\x0c" + MINIMAL, 2),
    "varint without an end": (b"\x1a\x00" + b"\xff" * 12, 1),
    "length without an end": (b"\xff" * 6, 1),
}


def sealed(batch: bytes | bytearray) -> bytes:
    """The batch with its length and checksum made right again."""
    data = bytearray(batch)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def with_body(body: bytes, count: int, codec: Codec) -> bytes:
    one = Record(0, 1000, None, None)
    head = bytearray(batches.build([one])[: batches.HEADER_BYTES])
    struct.pack_into(">h", head, 21, codec)
    struct.pack_into(">i", head, 23, max(count - 1, 0))
    struct.pack_into(">i", head, 57, count)
    return sealed(head + compress(codec, body))


def with_places(position: int, layout: str, value: int) -> bytes:
    data = bytearray(batches.build([Record(0, 0, None, None), Record(1, 1, None, None)]))
    struct.pack_into(layout, data, position, value)
    return sealed(data)


@pytest.fixture(
    params=[
        *(
            pytest.param(with_body(*broken, codec), id=f"{name}, {codec.name}")
            for name, broken in BROKEN.items()
            for codec in (Codec.NONE, Codec.LZ4)
        ),
        pytest.param(sealed(with_body(b"", 1, Codec.GZIP) + b"junk"), id="broken compression"),
        pytest.param(with_places(0, ">q", -1), id="negative base offset"),
        pytest.param(with_places(0, ">q", (1 << 63) - 1), id="base offset too high"),
        pytest.param(with_places(27, ">q", (1 << 63) - 1), id="timestamp overflows"),
    ]
)
def broken_batch(request: pytest.FixtureRequest) -> bytes:
    """A batch whose checksum is right and whose records are not."""
    found: bytes = request.param
    return found


@pytest.fixture
def odd_header_batch() -> bytes:
    """One record with one header: its name is the byte 0xFF, its value null."""
    return with_body(NO_UTF8, 1, Codec.NONE)

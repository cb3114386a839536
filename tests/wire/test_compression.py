"""Codecs: round trips, framings of other clients, damage and bombs."""

import struct
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.compression import Codec, compress, decompress
from headrace.wire.primitives import Malformed

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
BOMB = bytes(8 << 20)


@given(st.binary(max_size=100_000), st.sampled_from(Codec))
def test_what_was_compressed_comes_back(data: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", Codec)
def test_output_grows_far_beyond_the_first_buffer(codec: Codec) -> None:
    assert decompress(codec, compress(codec, BOMB)) == BOMB


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_stops_at_the_limit(codec: Codec) -> None:
    stored = compress(codec, BOMB)
    assert len(decompress(codec, stored, limit=len(BOMB))) == len(BOMB)
    with pytest.raises(Malformed, match="beyond"):
        decompress(codec, stored, limit=len(BOMB) - 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_damage_is_malformed_and_nothing_else(codec: Codec) -> None:
    stored = compress(codec, bytes(range(256)) * 20)
    for damaged in (b"\xff" * 40, stored[:-3], stored[: len(stored) // 2]):
        with pytest.raises(Malformed):
            decompress(codec, damaged)


@given(st.sampled_from(COMPRESSING), st.binary(max_size=200))
def test_random_bytes_are_output_or_malformed(codec: Codec, data: bytes) -> None:
    try:
        found = decompress(codec, data, limit=1 << 20)
    except Malformed:
        return
    assert len(found) <= 1 << 20


def test_an_unknown_codec_is_malformed() -> None:
    with pytest.raises(Malformed, match="codec 5"):
        decompress(5, b"")


def test_lz4_blocks_are_independent_as_kafka_demands() -> None:
    frame = compress(Codec.LZ4, b"x" * 200_000)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0x20, "block independence flag"


def test_snappy_is_written_in_xerial_blocks_and_read_raw_too() -> None:
    data = b"some words " * 10_000
    stored = compress(Codec.SNAPPY, data)
    assert stored[:8] == b"\x82SNAPPY\x00"
    assert struct.unpack_from(">ii", stored, 8) == (1, 1)
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_a_xerial_block_that_leaves_its_stream_is_malformed() -> None:
    stored = compress(Codec.SNAPPY, b"some words")
    for size in (0, -1, 1 << 30):
        with pytest.raises(Malformed, match="snappy block"):
            decompress(Codec.SNAPPY, stored[:16] + struct.pack(">i", size) + stored[20:])
    with pytest.raises(Malformed, match="without its length"):
        decompress(Codec.SNAPPY, stored + b"\x00")


def test_gzip_is_what_zlib_reads_and_writes() -> None:
    data = b"some words " * 100
    assert zlib.decompress(compress(Codec.GZIP, data), 31) == data
    writer = zlib.compressobj(wbits=31)
    assert decompress(Codec.GZIP, writer.compress(data) + writer.flush()) == data

"""Frames: any cutting of the stream gives the same frames, and bad sizes are told."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire import frames
from headrace.wire.frames import Frames
from headrace.wire.primitives import Malformed

MAX = 3_000_000
STAGED = 16 * 1024


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def receive(source: Frames, data: bytes, step: int) -> list[bytes]:
    """Feed `data` in pieces of at most `step` bytes, as a socket would."""
    found: list[bytes] = []
    while data:
        buffer = source.buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data), step)
        buffer[:count] = data[:count]
        del buffer
        data = data[count:]
        found += map(bytes, source.received(count))
    return found


@given(st.lists(st.binary(min_size=8, max_size=100), max_size=10), st.integers(1, 200))
def test_frames_do_not_depend_on_how_bytes_arrive(bodies: list[bytes], step: int) -> None:
    assert receive(Frames(MAX, bytearray(STAGED)), b"".join(map(framed, bodies)), step) == bodies


@pytest.mark.parametrize("step", [7, 1000, 70_000, 10_000_000])
@pytest.mark.parametrize("size", [STAGED - 5, STAGED - 4, STAGED - 3, STAGED + 9, 1_048_576, MAX])
def test_large_frames_between_small_ones(size: int, step: int) -> None:
    if step == 7 and size > 2 * STAGED:
        step = 1777
    large = bytes(index % 251 for index in range(size))
    bodies = [b"x" * 8, large, b"y" * 9, large, b"z" * 10]
    assert receive(Frames(MAX, bytearray(STAGED)), b"".join(map(framed, bodies)), step) == bodies


def test_a_claimed_size_costs_nothing_until_bytes_come() -> None:
    source = Frames(2**31 - 1, bytearray(STAGED))
    receive(source, struct.pack(">i", 2**31 - 1) + b"x", 5)
    assert len(source.buffer()) <= 131_072


@pytest.mark.parametrize(
    ("completed", "room"), [(0, 8192), (100_000, 100_000), (2_500_000, 1_048_576)]
)
def test_room_for_a_frame_as_large_as_the_largest_completed(completed: int, room: int) -> None:
    source = Frames(MAX, bytearray(STAGED))
    receive(source, framed(bytes(completed)) if completed else b"", MAX)
    receive(source, struct.pack(">i", MAX) + bytes(2000), STAGED)
    assert source.allocated_bytes <= 8192  # it is not known yet whether there is memory
    source.received(len(source.buffer()))
    assert source.allocated_bytes + source.growth_bytes == room


@pytest.mark.parametrize(
    ("begin", "remedy"),
    [
        (
            b"\x16\x03\x01\x02",
            "a TLS handshake on a plaintext port; set security.protocol=PLAINTEXT",
        ),
        (b"GET ", "an HTTP request on the port of the Kafka protocol"),
    ],
)
def test_other_protocols_are_named(begin: bytes, remedy: str) -> None:
    with pytest.raises(Malformed, match=remedy):
        receive(Frames(MAX, bytearray(STAGED)), begin, 4)


@pytest.mark.parametrize("size", [-1, 0, 7, MAX + 1, 2**31 - 1])
def test_sizes_that_are_refused(size: int) -> None:
    with pytest.raises(Malformed, match="a frame of"):
        receive(Frames(MAX, bytearray(STAGED)), struct.pack(">i", size), 4)


def test_request_headers() -> None:
    old = struct.pack(">hhih", 3, 1, 7, 2) + b"me" + b"body"
    head = frames.request_head(old)
    assert (head.api_key, head.version, head.correlation_id, head.client_id) == (3, 1, 7, "me")
    assert bytes(frames.body_of(old, head, flexible=False)) == b"body"
    new = struct.pack(">hhih", 3, 12, 8, -1) + b"\x01\x05\x02ab" + b"body"
    head = frames.request_head(new)
    assert head.client_id is None
    assert bytes(frames.body_of(new, head, flexible=True)) == b"body"


@pytest.mark.parametrize("cut", range(12))
def test_a_header_cut_short_is_malformed(cut: int) -> None:
    frame = struct.pack(">hhih", 3, 12, 7, 2) + b"me"
    with pytest.raises(Malformed):
        frames.body_of(frame[:cut], frames.request_head(frame[:cut]), flexible=True)


def test_response_heads_count_themselves() -> None:
    assert frames.response_head(9, 10, flexible=False) == struct.pack(">ii", 14, 9)
    assert frames.response_head(9, 10, flexible=True) == struct.pack(">iib", 15, 9, 0)


def test_connections_share_one_staging_buffer() -> None:
    staging = bytearray(STAGED)
    sources = [Frames(MAX, staging) for _ in range(3)]
    bodies = [bytes([65 + number]) * (10 + number) for number in range(len(sources))]
    found: list[list[bytes]] = [[], [], []]
    streams = [framed(body) * 2 for body in bodies]
    for at in range(max(map(len, streams))):
        for number, source in enumerate(sources):
            found[number] += receive(source, streams[number][at : at + 1], 1)
    assert found == [[body, body] for body in bodies]

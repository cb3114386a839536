"""What must not be sent ends its own connection, with a logged reason, and nothing else."""

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.apis import SERVED as APIS
from headrace.broker.apis import SERVED_FOR_SHARE_GROUPS
from headrace.wire import codec

Connect = Callable[[], Any]
SERVED = [(api, version) for api in (*APIS, *SERVED_FOR_SHARE_GROUPS) for version in api.versions]


@pytest.fixture
def bystander(connect: Connect) -> Any:
    """A connection that was there before."""
    wire = connect()
    assert wire.call(18, 0).error_code == 0
    return wire


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", 3) + b"abc", "a frame of 3 bytes"),
        (struct.pack(">i", 1_048_577), "a frame of 1048577 bytes"),
        (struct.pack(">ihhih", 10, 999, 0, 1, -1), "API key 999 is not served"),
        (struct.pack(">ihhih", 10, -1, 0, 1, -1), "API key -1 is not served"),
        (struct.pack(">ihhih", 10, 3, 99, 1, -1), "Metadata version 99 is not served"),
        (struct.pack(">ihhih", 10, 0, 0, 1, -1), "Produce version 0 is not served"),
        (struct.pack(">ihhih", 10, 3, -1, 1, -1), "Metadata version -1 is not served"),
        (struct.pack(">ihhih", 10, 3, 1, 1, 50), "request header: 50 bytes wanted"),
        (struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1), "Metadata version 1: an array of"),
        (struct.pack(">ihhih", 10, 3, 9, 1, -1), "Metadata version 9: 1 bytes wanted"),
    ],
)
def test_a_bad_frame_ends_its_connection_with_a_reason(
    connect: Connect, bystander: Any, caplog: pytest.LogCaptureFixture, frame: bytes, reason: str
) -> None:
    wire = connect()
    wire.socket.sendall(frame)
    assert wire.closed()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("closing 127.0.0.1:")
    assert reason in told[0]
    assert bystander.call(18, 0).error_code == 0


def test_apiversions_from_the_future_is_answered_in_version_0(connect: Connect) -> None:
    wire = connect()
    wire.send(18, 99, b"whatever that version holds", correlation_id=77)
    correlation_id, body = wire.receive()
    answer = codec.decode_response(18, 0, body)
    assert (correlation_id, answer.error_code) == (77, 35)
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [
        (18, 0, 4)
    ]
    assert wire.call(18, 4, client_software_name="t", client_software_version="1").error_code == 0


def test_random_bodies_for_everything_that_is_served(connect: Connect, bystander: Any) -> None:
    random_bytes = random.Random(1)
    for api, version in SERVED:
        for size in (0, 1, 5, 40, 400):
            wire = connect()
            wire.send(api.key, version, random_bytes.randbytes(size))
            wire.socket.shutdown(1)
            # Some random bytes are a request; it gets an answer, the others an end.
            while wire.socket.recv(65536):
                pass
            wire.close()
    assert bystander.call(18, 0).error_code == 0


def test_random_streams(connect: Connect, bystander: Any) -> None:
    random_bytes = random.Random(2)
    for _ in range(50):
        wire = connect()
        wire.socket.sendall(struct.pack(">i", 200) + random_bytes.randbytes(3000))
        assert wire.closed()
    assert bystander.call(18, 0).error_code == 0


def test_a_peer_that_goes_away_in_a_frame_is_forgotten(connect: Connect, bystander: Any) -> None:
    wire = connect()
    wire.socket.sendall(struct.pack(">i", 1000) + b"only a part")
    wire.close()
    assert bystander.call(18, 0).error_code == 0


def test_more_frames_than_are_queued_are_answered_in_order(connect: Connect) -> None:
    wire = connect()
    count = 500
    for number in range(count):
        wire.send(18, 0, b"", correlation_id=number)
    assert [wire.receive()[0] for _ in range(count)] == list(range(count))


def test_a_bug_in_a_handler_ends_one_connection_and_is_told(
    connect: Connect,
    bystander: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(request: object, services: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("headrace.broker.handlers.describe_cluster.handle", broken)
    wire = connect()
    wire.send(
        60, 0, bytes(codec.encode_request(60, 0, {"include_cluster_authorized_operations": 0}))
    )
    assert wire.closed()
    (record,) = caplog.records
    assert "after a bug" in record.getMessage()
    assert record.exc_info
    assert bystander.call(18, 0).error_code == 0

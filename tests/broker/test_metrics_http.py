"""The HTTP side of metrics: probes, what is no request, and bounds."""

import contextlib
import socket
from pathlib import Path

import pytest

import headrace
from headrace.broker import metrics_http
from headrace.broker.services import StartError
from headrace.client.connection import Cluster, Patience
from headrace.client.errors import Unreachable

from .metrics_rig import METRICS, TIMEOUT, get

BROKER_SETTINGS = METRICS


def test_probes(broker: headrace.Broker) -> None:
    assert get(broker, "/-/healthy") == (200, "text/plain; charset=utf-8", "ok\n")
    assert get(broker, "/-/ready") == (200, "text/plain; charset=utf-8", "ready\n")
    assert get(broker, "/-/ready?verbose=1")[0] == 200
    assert get(broker, "/favicon.ico")[0] == 404


def exchange(broker: headrace.Broker, sent: bytes) -> bytes:
    """What comes back until the server closes."""
    assert broker.metrics_port is not None
    with socket.create_connection(("127.0.0.1", broker.metrics_port), timeout=TIMEOUT) as one:
        one.sendall(sent)
        one.shutdown(socket.SHUT_WR)
        found = b""
        while piece := one.recv(65536):
            found += piece
        return found


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /metrics\r\n\r\n", b"400 "),
        (b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff", b"400 "),
        (b"GET metrics HTTP/1.1\r\n\r\n", b"400 "),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", b"400 "),
        (b"GET /metrics HTTP/1.1\r\n", b"400 "),
        (b"", b"400 "),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 "),
        (b"GET /" + b"x" * metrics_http.HEAD_BYTES_MAX + b" HTTP/1.1\r\n\r\n", b"431 "),
    ],
)
def test_what_is_no_request_is_told_so(broker: headrace.Broker, sent: bytes, status: bytes) -> None:
    answer = exchange(broker, sent)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close\r\n" in answer
    assert get(broker, "/-/healthy")[0] == 200


def test_a_kafka_client_is_answered_at_once(broker: headrace.Broker) -> None:
    """The end of the connection alone would not tell it what is wrong with the port."""
    patience = Patience(total_s=0.1)
    with (
        Cluster(f"127.0.0.1:{broker.metrics_port}", patience=patience) as cluster,
        pytest.raises(
            Unreachable,
            match=r"answers in HTTP, not in the Kafka protocol\); name the port of the broker's",
        ),
    ):
        cluster.partitions("orders")


def test_a_head_request_has_the_length_but_no_body(broker: headrace.Broker) -> None:
    head, _, body = exchange(broker, b"HEAD /-/healthy HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Content-Length: 3" in head
    assert body == b""


def test_who_says_nothing_is_hung_up_on(
    broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_http, "WAIT_SECONDS_MAX", 0.05)
    assert broker.metrics_port is not None
    with socket.create_connection(("127.0.0.1", broker.metrics_port), timeout=TIMEOUT) as one:
        one.sendall(b"GET /")
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""


def test_too_many_scrapers_are_refused(
    broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_http, "CONNECTIONS_MAX", 0)
    assert get(broker, "/-/healthy")[0] == 503


def test_a_port_in_use_is_told_and_leaves_the_folder_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 is in use"):
            headrace.Broker(tmp_path, settings={"headrace.metrics.port": port}).start()
    with headrace.Broker(tmp_path) as broker:
        assert broker.metrics_port is None

"""Where a broker listens, where clients are sent, and what its operator is warned of."""

import logging
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import headrace
from headrace.broker.addresses import address_text, is_loopback, parsed_listener
from headrace.broker.config import Config, ConfigError
from headrace.broker.services import StartError

TIMEOUT = 60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLAINTEXT://broker.example.com:9092", ("broker.example.com", 9092)),
        ("plaintext://[::1]:1", ("::1", 1)),
        ("10.0.0.7:65535", ("10.0.0.7", 65_535)),
    ],
)
def test_listeners_that_are_advertised(text: str, expected: tuple[str, int]) -> None:
    assert parsed_listener(text) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("SSL://a:1", "'SSL' is not supported, only PLAINTEXT"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", "one address is expected"),
        ("broker.example.com", "is not PLAINTEXT://HOST:PORT"),
        ("PLAINTEXT://:9092", "is not PLAINTEXT://HOST:PORT"),
        ("::1:9092", "is not PLAINTEXT://HOST:PORT"),
        ("[a]:9092", "is not PLAINTEXT://HOST:PORT"),
        ("a:0", "'0' is not a port from 1 to 65535"),
        ("a:b", "'b' is not a port"),
        ("PLAINTEXT://0.0.0.0:9092", "no client can connect to 0.0.0.0"),
    ],
)
def test_listeners_that_are_refused(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=r"^advertised\.listeners: .*" + re.escape(fault)):
        Config.parse({"advertised.listeners": text})


@pytest.mark.parametrize(
    ("name", "option"), [("log.dirs", "--data-dir"), ("listeners", "--host and --port")]
)
def test_settings_that_are_options_are_named_with_them(name: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is not a setting here; use {option} of"):
        Config.parse({name: ""})


def test_addresses_are_written_as_clients_take_them() -> None:
    assert [address_text("a", 1), address_text("::1", 2)] == ["a:1", "[::1]:2"]
    assert [is_loopback(one) for one in ("127.0.0.1", "127.3.2.1", "::1", "localhost")] == [
        True
    ] * 4
    assert [is_loopback(one) for one in ("0.0.0.0", "::", "", "10.0.0.7", "broker")] == [False] * 5


def test_a_client_is_sent_through_a_tunnel() -> None:
    """The advertised port is another than that of the listener, as in front of a container."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    settings = {"advertised.listeners": f"PLAINTEXT://localhost:{port}"}
    with headrace.Broker(settings=settings) as broker:
        own = int(broker.bootstrap_servers.rpartition(":")[2])
        with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
            (node,) = admin.describe_cluster().brokers
            assert (node.host, node.port) == ("localhost", port)
        assert own != port
        # What listens there hands connections on, as `ssh -L` does.
        tunnel = subprocess.Popen([sys.executable, "-c", _TUNNEL, str(port), str(own)])
        try:
            producer = Producer({"bootstrap.servers": f"127.0.0.1:{own}", "log_level": 0})
            producer.produce("orders", b"1")
            assert producer.flush(TIMEOUT) == 0
            consumer = Consumer({
                "bootstrap.servers": f"127.0.0.1:{own}", "group.id": "g", "log_level": 0,
                "auto.offset.reset": "earliest",
            })  # fmt: skip
            try:
                consumer.subscribe(["orders"])
                polled = (consumer.poll(1.0) for _ in range(TIMEOUT))
                assert any(one is not None and one.value() == b"1" for one in polled)
            finally:
                consumer.close()
        finally:
            tunnel.kill()
            tunnel.wait(TIMEOUT)


_TUNNEL = """
import asyncio, sys

async def pump(source, sink):
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.close()

async def handed_on(source, sink):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(pump(source, writer), pump(reader, sink), return_exceptions=True)

async def main():
    async with await asyncio.start_server(handed_on, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()

asyncio.run(main())
"""


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_an_operator_is_warned_that_everybody_may_do_anything(
    host: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace.broker")
    with headrace.Broker(host=host, settings={"advertised.host": "broker.example.com"}) as broker:
        port = broker.bootstrap_servers.rpartition(":")[2]
    lines = [one.message for one in caplog.records if "without authentication" in one.message]
    assert len(lines) == warned
    if warned:
        assert "everybody who reaches this port can read, write and delete everything" in lines[0]
        assert f"connect to broker.example.com:{port} (advertised.listeners)" in lines[0]


def test_the_metrics_port_is_not_reached_from_other_machines_by_default() -> None:
    settings = {"headrace.metrics.port": 0, "advertised.host": "localhost"}
    with headrace.Broker(host="0.0.0.0", settings=settings) as broker:
        assert broker.metrics_port is not None
        socket.create_connection(("127.0.0.1", broker.metrics_port), TIMEOUT).close()
        with pytest.raises(ConnectionRefusedError):  # another address of the same machine
            socket.create_connection(("127.0.0.2", broker.metrics_port), TIMEOUT)


def test_a_metrics_port_in_use_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"headrace.metrics.port": taken.getsockname()[1]}
        with pytest.raises(StartError, match="is in use; choose another --metrics-port"):
            headrace.Broker(tmp_path, settings=settings).start()


def test_an_ipv6_address_stands_in_brackets(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    process = subprocess.Popen(
        [
            sys.executable, "-m", "headrace", "serve", "--host", "::1", "--port", "0",
            "--data-dir", str(tmp_path),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            assert "::1" in process.communicate()[1], "a machine without IPv6"
            pytest.skip("no IPv6 address to listen on")
        assert re.search(r"listening on \[::1\]:\d+, data in", line)
    finally:
        process.kill()
        process.communicate()

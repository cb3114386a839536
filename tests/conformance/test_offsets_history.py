"""What Kafka's own tools and stock clients do to offsets stands in the history, with who did it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer

import headrace

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TIMEOUT_S = 60


def told(broker: headrace.Broker) -> list[dict[str, Any]]:
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    line = (sys.executable, "-m", "headrace", "offsets", "history", "team", "--json", *servers)
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return [json.loads(one) for one in ended.stdout.splitlines()]


def test_reset_by_kafkas_tool(broker: headrace.Broker, run_java: Callable[..., Any]) -> None:
    servers = broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "log_level": 2})
    for _ in range(9):
        producer.produce("orders", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    settings = {"group.id": "team", "client.id": "billing", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"bootstrap.servers": servers, "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    read, deadline = 0, time.monotonic() + TIMEOUT_S
    while read < 9:
        assert time.monotonic() < deadline, f"{read} records were read"
        message = consumer.poll(0.2)
        read += message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()
    reset = run_java(
        TOOL, "--bootstrap-server", servers, "--group", "team", "--topic", "orders",
        "--reset-offsets", "--to-offset", "4", "--execute",
    )  # fmt: skip
    assert "orders" in reset.stdout, reset.stderr
    deleted = run_java(TOOL, "--bootstrap-server", servers, "--group", "team", "--delete")
    assert "successful" in deleted.stdout, deleted.stderr
    journal, generation, commit, empty, reset_, removed, gone = told(broker)
    member = generation["members"][0]["member_id"]
    assert member.startswith("billing-")
    assert (commit["by"], commit["from"], commit["to"]) == (f"{member} /127.0.0.1", None, 9)
    assert empty["type"] == "empty"
    assert (reset_["cause"], reset_["from"], reset_["to"], reset_["rewound"]) == ("reset", 9, 4, 5)
    assert reset_["by"].startswith("adminclient-")
    assert reset_["by"].endswith(" /127.0.0.1")
    assert (removed["cause"], removed["to"]) == ("group deletion", None)
    assert removed["by"].startswith("adminclient-")
    assert (gone["type"], gone["cause"], gone["by"]) == (
        "deletion",
        "group deletion",
        removed["by"],
    )
    assert journal["complete"]

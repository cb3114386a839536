"""`headrace consume --share-group` prints what kafka-console-share-consumer prints."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

import headrace

RunJava = Callable[..., subprocess.CompletedProcess[str]]
TOPIC = "jobs"
_TOOL = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
_SECONDS_MAX = 60
_PRINTED = (
    "timestamp", "key", "offset", "delivery", "epoch", "partition", "headers", "value",
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        (),
        tuple(f"--formatter-property=print.{name}=true" for name in _PRINTED),
        (
            "--formatter-property=print.key=true", "--formatter-property=key.separator= | ",
            "--formatter-property=null.literal=NULL", "--formatter-property=print.delivery=true",
        ),
        ("--release",),
        ("--reject",),
    ],
)  # fmt: skip
def test_the_same_text(
    broker: headrace.Broker, run_java: RunJava, options: tuple[str, ...]
) -> None:
    with headrace.SyncAdmin(broker.bootstrap_servers) as admin:
        admin.create_topic(TOPIC, 1)
        for group in ("theirs", "ours"):
            earliest = {"share.auto.offset.reset": "earliest"}
            admin.incremental_alter_configs(headrace.ResourceType.GROUP, group, values=earliest)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(TOPIC, b"one", key=b"k", headers={"a": b"1", "b": None}, timestamp=1_000)
    producer.produce(TOPIC, None, timestamp=2_000)
    producer.produce(TOPIC, b"three", timestamp=3_000)
    assert producer.flush(_SECONDS_MAX) == 0

    where = ("--bootstrap-server", broker.bootstrap_servers, "--topic", TOPIC)
    common = (*where, "--max-messages", "3", *options)
    theirs = run_java(_TOOL, *common, "--group", "theirs")
    command = (sys.executable, "-m", "headrace", "consume", *common, "--share-group", "ours")
    ours = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    assert theirs.returncode == ours.returncode == 0, theirs.stderr + ours.stderr
    assert ours.stdout == theirs.stdout
    (told,) = (line for line in theirs.stderr.splitlines() if line.startswith("Processed"))
    assert told in ours.stderr.splitlines()

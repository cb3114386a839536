"""Apache Kafka's own command-line programs against a running broker and its files."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

import headrace

from .confluent_client import GROUP, Client
from .conftest import RunJava

TOOLS = "org.apache.kafka.tools"


def tool(run: RunJava, name: str, *arguments: str, stdin: str = "") -> str:
    """What a program printed; it must have ended well."""
    done = run(name, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafka_topics(broker: headrace.Broker, run_java: RunJava) -> None:
    def topics(*arguments: str) -> str:
        servers = ("--bootstrap-server", broker.bootstrap_servers)
        return tool(run_java, f"{TOOLS}.TopicCommand", *servers, *arguments)

    created = topics(
        "--create", "--topic", "orders", "--partitions", "2", "--replication-factor", "1",
        "--config", "retention.ms=123456",
    )  # fmt: skip
    assert created == "Created topic orders.\n"
    topics("--alter", "--topic", "orders", "--partitions", "3")
    described = topics("--describe", "--topic", "orders")
    assert re.match(
        r"Topic: orders\tTopicId: \S{22}\tPartitionCount: 3\tReplicationFactor: 1\t"
        r"Configs: .*retention.ms=123456",
        described,
    )
    assert re.findall(r"Partition: (\d)\tLeader: 1\tReplicas: 1\tIsr: 1", described) == [*"012"]
    assert topics("--list", "--exclude-internal") == "orders\n"
    assert topics("--describe", "--under-replicated-partitions") == ""
    topics("--delete", "--topic", "orders")
    assert topics("--list", "--exclude-internal").strip() == ""


@pytest.mark.parametrize(
    ("entity", "given", "shown"),
    [
        (("topics", "--entity-name", "t"), "cleanup.policy=[compact,delete]", "compact,delete"),
        (("topics", "--entity-name", "t"), "retention.ms=1000", "retention.ms=1000"),
        (("brokers", "--entity-default"), "log.retention.ms=99", "log.retention.ms=99"),
        (("brokers", "--entity-name", "1"), "log.retention.bytes=99", "retention.bytes=99"),
        (("groups", "--entity-name", "g"), "share.delivery.count.limit=7", "count.limit=7"),
    ],
)
def test_kafka_configs(
    broker: headrace.Broker,
    run_java: RunJava,
    entity: tuple[str, ...],
    given: str,
    shown: str,
) -> None:
    def configs(*arguments: str) -> str:
        servers = ("--bootstrap-server", broker.bootstrap_servers, "--entity-type", *entity)
        return tool(run_java, "kafka.admin.ConfigCommand", *servers, *arguments)

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("t", 1)])["t"].result()
    assert "Completed updating" in configs("--alter", "--add-config", given)
    assert shown in configs("--describe")
    configs("--alter", "--delete-config", given.split("=")[0])
    assert shown not in configs("--describe")


def test_the_console_clients_pipe_records_through(
    broker: headrace.Broker, run_java: RunJava
) -> None:
    servers = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "lines")
    tool(
        run_java, f"{TOOLS}.ConsoleProducer", *servers, "--reader-property", "parse.key=true",
        "--reader-property", "key.separator=:", stdin="a:1\nb:2\nc:3\n",
    )  # fmt: skip
    consume = (
        run_java, f"{TOOLS}.consumer.ConsoleConsumer", *servers, "--max-messages", "3",
        "--timeout-ms", "60000", "--formatter-property", "print.key=true",
    )  # fmt: skip
    assert tool(*consume, "--from-beginning") == "a\t1\nb\t2\nc\t3\n"
    assert tool(*consume, "--partition", "0", "--offset", "earliest") == "a\t1\nb\t2\nc\t3\n"


def test_the_console_share_consumer_accepts_what_it_prints(
    broker: headrace.Broker, run_java: RunJava
) -> None:
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    tool(run_java, f"{TOOLS}.ConsoleProducer", *servers, "--topic", "jobs", stdin="1\n2\n3\n")
    group = ("--entity-type", "groups", "--entity-name", "workers")
    setting = ("--alter", "--add-config", "share.auto.offset.reset=earliest")
    tool(run_java, "kafka.admin.ConfigCommand", *servers, *group, *setting)
    consumer = f"{TOOLS}.consumer.ConsoleShareConsumer"
    wanted = (run_java, consumer, *servers, "--topic", "jobs", "--group", "workers")
    assert tool(*wanted, "--timeout-ms", "60000", "--max-messages", "3") == "1\n2\n3\n"
    assert tool(*wanted, "--timeout-ms", "5000") == ""


def test_offsets_log_folders_and_deletion_of_records(
    broker: headrace.Broker, run_java: RunJava, tmp_path: Path
) -> None:
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("t", 1)])["t"].result()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(10):
        producer.produce("t", str(number), partition=0)
    assert producer.flush(10) == 0
    wanted = tmp_path / "wanted.json"
    partition = {"topic": "t", "partition": 0, "offset": 4}
    wanted.write_text(json.dumps({"partitions": [partition], "version": 1}))
    deleted = tool(
        run_java, f"{TOOLS}.DeleteRecordsCommand", *servers, "--offset-json-file", str(wanted)
    )
    assert "partition: t-0\tlow_watermark: 4" in deleted
    shell = (run_java, f"{TOOLS}.GetOffsetShell", *servers, "--topic", "t")
    assert tool(*shell, "--time", "earliest") == "t:0:4\n"
    assert tool(*shell, "--time", "latest") == "t:0:10\n"
    folders = tool(run_java, f"{TOOLS}.LogDirsCommand", *servers, "--describe", "--topic-list", "t")
    (found,) = json.loads(folders.splitlines()[-1])["brokers"][0]["logDirs"]
    assert found["error"] is None
    assert [one["partition"] for one in found["partitions"]] == ["t-0"]
    assert found["partitions"][0]["size"] > 0


def test_kafka_dump_log_reads_every_file_of_a_partition(run_java: RunJava, tmp_path: Path) -> None:
    with headrace.Broker(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        small = {"segment.bytes": "10000", "index.interval.bytes": "500"}
        admin.create_topics([NewTopic("t", 1, config=small)])["t"].result()
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
        )
        for number in range(200):
            producer.produce("t", b"v" * 100, key=str(number), partition=0)
            if number % 10 == 0:
                producer.flush()
        assert producer.flush(10) == 0
        files = sorted((tmp_path / "t-0").iterdir())
        kinds = {file.suffix for file in files}
        assert {".log", ".index", ".timeindex", ".snapshot"} <= kinds
        assert sum(file.suffix == ".log" for file in files) >= 2
        named = [str(one) for one in files if one.suffix in {".log", ".snapshot"}]
        dump = (run_java, f"{TOOLS}.DumpLogSegments", "--files")
        printed = tool(*dump, ",".join(named), "--print-data-log")
        assert [int(one) for one in re.findall(r"key: (\d+)", printed)] == [*range(200)]
        assert "isvalid: false" not in printed
        assert re.search(r"producerId: \d+ producerEpoch: 0", printed)
        indexes = [str(one) for one in files if one.suffix in {".index", ".timeindex"}]
        checked = tool(*dump, ",".join(indexes), "--index-sanity-check")
        assert checked.count("passed sanity check") == len(indexes)
        verified = tool(*dump, ",".join(indexes), "--verify-index-only")
        assert not re.search(r"[Mm]ismatch|Found|invalid", verified)


def test_kafka_dump_log_reads_the_journal_of_share_groups(
    run_java: RunJava, tmp_path: Path
) -> None:
    with headrace.Broker(tmp_path) as broker:
        servers: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(servers)
        admin.create_topics([NewTopic("jobs", 1)])["jobs"].result()
        explicit = {"group.id": GROUP, "share.acknowledgement.mode": "explicit"}
        consumer = ShareConsumer({**servers, **explicit})
        consumer.subscribe(["jobs"])
        Client(broker).joined(consumer)  # at the end of the topic
        producer = Producer(servers)
        for number in range(3):
            producer.produce("jobs", str(number), partition=0)
        assert producer.flush(10) == 0
        verdicts = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT]
        until = time.monotonic() + 60
        while verdicts:
            assert time.monotonic() < until
            for message in consumer.poll(0.1):
                consumer.acknowledge(message, verdicts.pop(0))
        consumer.commit_sync()
        consumer.close()
    segment = tmp_path / "__share_group_state-0" / f"{0:020}.log"
    dump = (run_java, f"{TOOLS}.DumpLogSegments", "--files", str(segment))
    printed = tool(*dump, "--share-group-state-decoder")
    assert "isvalid: false" not in printed
    records = re.findall(r"key: (\{.*\}) payload: (\{.*\})", printed)
    assert {json.loads(key)["data"]["groupId"] for key, _ in records} == {GROUP}
    state: dict[int, tuple[int, int]] = {}
    for _, value in records:
        for batch in json.loads(value)["data"]["stateBatches"]:
            for offset in range(batch["firstOffset"], batch["lastOffset"] + 1):
                state[offset] = batch["deliveryState"], batch["deliveryCount"]
    assert {offset: state[offset] for offset in (1, 2)} == {1: (0, 1), 2: (4, 1)}

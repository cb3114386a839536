"""The sink's options: Spark's and Kafka's names, and what cannot be honoured is refused."""

import re
import time
from types import SimpleNamespace

import pytest

import headrace
from headrace.client.admin import create_topic
from headrace.client.connection import Cluster
from headrace.client.produce.producer import Limits
from headrace.spark.options import OptionError
from headrace.spark.sink import writer
from headrace.spark.sink.options import SinkOptions
from headrace.wire.compression import Codec

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_what_is_not_said_has_kafka_s_default() -> None:
    options = SinkOptions.parse(SERVERS)
    assert (options.topic, options.codec) == (None, Codec.NONE)
    assert options.limits == Limits(request=1048576, batch=1048576)
    assert options.include_headers
    assert not options.include_timestamp


def test_names_are_spark_s_and_kafka_s_in_any_case() -> None:
    options = SinkOptions.parse(
        {
            **SERVERS,
            "TOPIC": "t",
            "Kafka.Compression.Type": "ZSTD",
            "kafka.max.request.size": "5000000",
            "kafka.batch.size": "16384",
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            "kafka.delivery.timeout.ms": "5000",
            "kafka.request.timeout.ms": "1000",
            "includeheaders": "false",
        }
    )
    assert (options.topic, options.codec, options.include_headers) == ("t", Codec.ZSTD, False)
    assert options.limits == Limits(request=5_000_000, batch=16_384)
    assert (options.retry_timeout_ms, options.request_timeout_ms) == (5000, 1000)


def test_what_spark_keeps_among_a_sink_s_options_is_not_ours() -> None:
    SinkOptions.parse({**SERVERS, "checkpointLocation": "c", "queryName": "q"})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("topic", "a,b", "name one topic; rows for several name theirs in a column 'topic'"),
        ("topic", " ", "name one topic"),
        ("kafka.compression.type", "brotli", "give one of none, gzip, snappy, lz4, zstd"),
        ("kafka.acks", "1", "the sink is idempotent, which takes 'all'; leave the option out"),
        ("kafka.enable.idempotence", "false", "always idempotent: leave the option out"),
        ("kafka.max.request.size", "0", "give a whole number of at least 1"),
        ("kafka.max.request.size", f"{2**31}", f"give at most {2**31 - 1}"),
        ("kafka.request.timeout.ms", "99999999999", f"give at most {2**31 - 1}"),
        ("kafka.linger.ms", "5", "a task writes what it has at once; leave it out"),
        ("kafka.transactional.id", "x", "it writes at least once"),
        ("kafka.key.serializer", "x", "encode them in the column 'key'"),
        ("path", "x", "name the topic with option 'topic'"),
        ("subscribe", "t", "name the topic with option 'topic'"),
        ("topics", "t", "did you mean 'topic'?"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_remedy(
    name: str, value: str, told: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(told)) as refused:
        SinkOptions.parse({**SERVERS, name: value})
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_topic_that_appears_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of Apache Kafka may not know a topic that another one has just created."""
    with headrace.Broker() as broker:

        def pause(_seconds: float) -> None:
            with Cluster(broker.bootstrap_servers) as cluster:
                create_topic(cluster, "late", 1, exist_ok=True)

        clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
        monkeypatch.setattr(writer, "time", clock)
        writer.check_topic(SinkOptions(bootstrap_servers=broker.bootstrap_servers, topic="late"))

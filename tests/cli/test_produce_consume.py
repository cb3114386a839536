"""`headrace produce` and `headrace consume` against a broker, and their text against Kafka's."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import headrace
from headrace.client.admin import log_ends
from headrace.client.connection import Cluster

Command = Callable[..., Any]
Golden = Callable[[str], str]
_IDLE_MS = "30000"
TIME_MS = 1_795_267_252_206


def first(count: int) -> tuple[str, ...]:
    """Options that read so many records from the beginning, however slow a machine is."""
    return ("--from-beginning", "--max-messages", str(count), "--timeout-ms", _IDLE_MS)


def ends(broker: headrace.Broker, topic: str) -> int:
    """How many records a topic got."""
    with Cluster(broker.bootstrap_servers) as cluster:
        return sum(log_ends(cluster, topic).values())


def shows(**switches: str | bool) -> list[str]:
    """--formatter-property for each: print_key=True is print.key=true."""
    return [
        part
        for name, value in switches.items()
        for part in (
            "--formatter-property",
            f"{name.replace('_', '.')}={str(value).lower() if value in (True, False) else value}",
        )
    ]


@pytest.fixture
def text(broker: headrace.Broker, cli: Command) -> None:
    """The topic `text` of the golden files."""
    assert cli("topics", "--create", "--topic", "text", "--partitions", "1").code == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, Any]]]] = [
        (b"k1", b"v1", [("h1", b"v1"), ("h2", None)]),
        (None, None, []),
        (b"", b"", []),
        ("schlüssel".encode(), b"\xff\x00", []),
    ]
    for index, (key, value, headers) in enumerate(records):
        producer.produce("text", value, key, headers=headers, timestamp=TIME_MS + index)
    assert producer.flush(10) == 0


@pytest.mark.usefixtures("text")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "consume_1",
            shows(
                print_key=True,
                print_timestamp=True,
                print_partition=True,
                print_offset=True,
                print_headers=True,
            ),
        ),
        (
            "consume_2",
            shows(
                print_key=True,
                null_literal="NIL",
                key_separator="@",
                line_separator="%",
                print_headers=True,
                headers_separator="/",
            ),
        ),
        (
            "consume_3",
            shows(print_delivery=True, print_offset=True, print_value=False),
        ),
    ],
)
def test_text_is_that_of_kafkas_tool(
    cli: Command, golden: Golden, name: str, arguments: list[str]
) -> None:
    place = ("--topic", "text", "--partition", "0", "--offset", "earliest")
    count = 2 if name == "consume_3" else 4
    limits = ("--max-messages", str(count), "--timeout-ms", _IDLE_MS)
    ended = cli("consume", *place, *limits, *arguments)
    assert ended.out.decode(errors="replace") == golden(name)
    assert (ended.code, ended.err) == (0, f"Processed a total of {count} messages\n")


def test_the_formatter_that_there_is_may_be_named(cli: Command) -> None:
    assert cli("produce", "--topic", "t", stdin=b"a\n").code == 0
    for name in (
        "DefaultMessageFormatter",
        "org.apache.kafka.tools.consumer.DefaultMessageFormatter",
    ):
        ended = cli(
            "consume",
            "--topic",
            "t",
            "--from-beginning",
            "--max-messages",
            "1",
            "--formatter",
            name,
        )
        assert (ended.code, ended.text) == (0, "a\n")


@pytest.mark.usefixtures("text")
def test_json_is_one_object_a_line(cli: Command) -> None:
    ended = cli("consume", "--topic", "text", *first(4), "--json")
    one, second, _, last = (json.loads(line) for line in ended.out.splitlines())
    assert one == {
        "topic": "text",
        "partition": 0,
        "offset": 0,
        "timestamp": TIME_MS,
        "timestamp_type": "CreateTime",
        "headers": [["h1", "v1"], ["h2", None]],
        "key": "k1",
        "value": "v1",
    }
    assert (second["key"], second["value"]) == (None, None)
    assert (last["key"], last["value"]) == ("schlüssel", {"base64": "/wA="})


def test_any_bytes_come_out_as_they_went_in(cli: Command) -> None:
    every = bytes(byte for byte in range(256) if byte != 10)
    assert cli("produce", "--topic", "t", stdin=every + b"\nlast").code == 0
    assert cli("consume", "--topic", "t", *first(2)).out == every + b"\nlast\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_file_with_keys_headers_and_nulls(cli: Command, tmp_path: Path, codec: str) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"h:1\tk1\tv1\nNULL\tNULL\tNULL\n")
    properties = ("parse.key=true", "parse.headers=true", "null.marker=NULL")
    reading = [part for one in properties for part in ("--reader-property", one)]
    arguments = ("--topic", "t", "--file", str(file), "--compression-codec", codec)
    assert cli("produce", *arguments, *reading).code == 0
    shown = cli("consume", "--topic", "t", *first(2), *shows(print_key=True, print_headers=True))
    assert shown.text == "h:1\tk1\tv1\nNO_HEADERS\tnull\tnull\n"


def test_what_was_read_before_a_bad_line_is_sent(cli: Command, broker: headrace.Broker) -> None:
    keyed = ("--reader-property", "parse.key=true", "--sync")
    ended = cli("produce", "--topic", "t", *keyed, stdin=b"k\tv\nnone\nk\tw\n")
    assert ended.code == 1
    assert ended.err == "headrace produce: No key separator found on line number 2: 'none'\n"
    assert cli("consume", "--topic", "t", *first(1)).text == "v\n"
    assert ends(broker, "t") == 1


def test_acknowledgements_that_no_broker_accepts_are_refused(cli: Command) -> None:
    ended = cli("produce", "--topic", "t", "--request-required-acks", "7", stdin=b"v\n")
    assert ended.code == 1
    assert ended.err == (
        "headrace produce: --request-required-acks '7': expected one of -1, all, 1, 0\n"
    )


def test_keys_go_where_javas_producer_sends_them(cli: Command) -> None:
    assert cli("topics", "--create", "--topic", "t", "--partitions", "10").code == 0
    keyed = ("--reader-property", "parse.key=true")
    keys = ("alpha", "beta", "gamma", "delta")
    lines = "".join(f"{key}\tv\n" for key in keys).encode()
    assert cli("produce", "--topic", "t", *keyed, stdin=lines).code == 0
    shown = cli("consume", "--topic", "t", *first(4), "--json").out.splitlines()
    placed = {one["key"]: one["partition"] for one in map(json.loads, shown)}
    assert placed == {"alpha": 8, "beta": 4, "gamma": 6, "delta": 8}, "as Java's producer did"


def test_further_delivery_errors_are_suppressed(cli: Command) -> None:
    assert cli("topics", "--create", "--topic", "t", "--config", "max.message.bytes=300").code == 0
    ended = cli("produce", "--topic", "t", "--sync", stdin=12 * (bytes(500) + b"\n"))
    assert ended.code == 1
    *errors, suppressed, total = ended.err.splitlines()
    assert len(errors) == 10
    assert suppressed == "headrace produce: suppressing further errors (10 already reported)"
    assert total == "headrace produce: 12 of 12 records were not delivered"


def test_a_record_that_is_too_large_is_told(cli: Command, broker: headrace.Broker) -> None:
    made = ("--create", "--topic", "t", "--config", "max.message.bytes=300")
    assert cli("topics", *made).code == 0
    ended = cli("produce", "--topic", "t", "--sync", stdin=bytes(50) + b"\n" + bytes(500) + b"\n")
    assert ended.code == 1
    told, total = ended.err.splitlines()
    assert told.startswith("headrace produce: a record for t was not delivered: ")
    assert total == "headrace produce: 1 of 2 records were not delivered"
    assert ends(broker, "t") == 1


@pytest.mark.usefixtures("text")
def test_an_offset_outside_the_log_is_refused(cli: Command) -> None:
    ended = cli("consume", "--topic", "text", "--partition", "0", "--offset", "99999999")
    assert ended.code == 1
    assert re.search(
        r"--offset 99999999 is not in the log of text-0, which begins at 0 and gets (\d+) next; "
        r"give an offset from 0 to \1, earliest or latest\n",
        ended.err,
    )


@pytest.mark.usefixtures("text")
def test_reading_from_an_offset_and_by_pattern(cli: Command) -> None:
    place = ("--topic", "text", "--partition", "0", "--offset", "1", "--max-messages", "1")
    ended = cli("consume", *place, *shows(print_offset=True))
    assert ended.text == "Offset:1\tnull\n", ended.err
    assert cli("produce", "--topic", "tests", stdin=b"other\n").code == 0
    by_pattern = cli("consume", "--include", "te.*s|none", *first(1))
    assert by_pattern.text == "other\n"


def test_values_by_kafkas_deserializers(cli: Command, broker: headrace.Broker) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("numbers", (7).to_bytes(8, "big"))
    producer.produce("numbers", b"odd")
    assert producer.flush(10) == 0
    numbers = ("--topic", "numbers", *first(2), "--value-deserializer", "LongDeserializer")
    ended = cli("consume", *numbers)
    assert (ended.code, ended.text) == (1, "7\n")
    assert "numbers-0 offset 1: 3 bytes, not 8; --skip-message-on-error goes on" in ended.err
    skipping = cli("consume", *numbers, "--skip-message-on-error")
    assert (skipping.code, skipping.text) == (0, "7\n")
    assert "numbers-0 offset 1: 3 bytes, not 8; skipped" in skipping.err


def test_a_topic_that_is_not_there_is_waited_for(cli: Command) -> None:
    ended = cli("consume", "--topic", "absent", "--timeout-ms", "100")
    assert ended.code == 0
    waiting, total = ended.err.splitlines()
    assert waiting == "headrace consume: there is no topic absent; waiting for one"
    assert total == "Processed a total of 0 messages"
    assert "absent" not in cli("topics", "--list").text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Exactly one of the following arguments is required"),
        (("--topic", "t", "--include", "u"), "Exactly one of the following arguments"),
        (("--topic", "t", "--offset", "1"), "The partition is required"),
        (("--topic", "t", "--partition", "0", "--offset", "x"), "value 'x' is incorrect"),
        (
            ("--topic", "t", "--partition", "0", "--offset", "1", "--from-beginning"),
            "cannot be specified together",
        ),
        (("--topic", "t", "--isolation-level", "x"), "read_uncommitted or read_committed"),
        (
            (
                "--topic",
                "t",
                "--timeout-ms",
                "0",
                "--formatter",
                "kafka.tools.NoOpMessageFormatter",
            ),
            "--formatter kafka.tools.NoOpMessageFormatter: classes of Java's are not run",
        ),
        (("--topic", "t", "--formatter-property", "x=y"), "x is not known; one of print"),
        (("--topic", "t", "--command-property", "x=y"), 'No such configuration property: "x"'),
        (
            ("--topic", "t", "--group", "g", "--command-property", "group.id=h"),
            "Detected group ids: 'g', 'h'",
        ),
        (
            ("--topic", "t", "--command-property", "security.protocol=SSL"),
            "security.protocol=SSL is not supported",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line_and_1(
    cli: Command, arguments: tuple[str, ...], told: str
) -> None:
    ended = cli("consume", *arguments)
    assert ended.code == 1
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_broker_that_is_not_there_is_told_in_seconds(offline: Command, command: str) -> None:
    ended = offline(command, "--topic", "t", "--bootstrap-server", "127.0.0.1:1")
    assert ended.code == 1
    assert "gave up after 3 s at 127.0.0.1:1" in ended.err
    assert ended.err.count("\n") == 1


def test_a_group_goes_on_where_it_was_and_passes_over_no_partition(
    cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At its end it asks a broker that may be away; this one is not, however slow it is.
    monkeypatch.setattr("headrace.cli.consume_loop._COMMITTED_S", 30.0)
    # librdkafka's lookup of both ends returns the end as the start if it loses an error.
    lossy = "headrace.client.consumer.Consumer.get_watermark_offsets"
    monkeypatch.setattr(lossy, lambda *_, **__: (10, 10))
    assert cli("topics", "--create", "--topic", "wide", "--partitions", "3").code == 0
    lines = [f"k{number}\t{number}" for number in range(30)]
    text = "".join(f"{line}\n" for line in lines).encode()
    assert (
        cli("produce", "--topic", "wide", "--reader-property", "parse.key=true", stdin=text).code
        == 0
    )
    group = (
        "--topic", "wide", "--group", "team", "--timeout-ms", "30000",
        "--formatter-property", "print.key=true",
    )  # fmt: skip
    began = cli("consume", *group, "--from-beginning", "--max-messages", "5")
    rest = cli("consume", *group, "--max-messages", "25")
    assert (began.code, rest.code) == (0, 0)
    assert len(began.text.splitlines()) == 5
    assert sorted(began.text.splitlines() + rest.text.splitlines()) == sorted(lines)
    told = cli("configs", "--describe", "--entity-type", "groups")
    assert told.text == "Dynamic configs for group team are:\n"

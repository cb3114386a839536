"""Options of the log: Spark's names, defaults and refusals, each in one readable line."""

import pytest

from headrace.client.offsets import OffsetSpec
from headrace.client.resets import OutOfRange, Strategy
from headrace.spark.log.bounds import Committed, Offsets, Time, Times
from headrace.spark.log.options import LogOptions
from headrace.spark.options import OptionError

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
GIVEN = {**SERVERS, "subscribe": "orders, payments,orders"}
DAY = "1790000000000"
NEAREST = "offset.reset.strategy.offset-out-of-range"


def test_required_options_suffice_and_the_rest_has_spark_s_defaults() -> None:
    found = LogOptions.parse(GIVEN)
    assert found == LogOptions(bootstrap_servers="127.0.0.1:9092", topics=("orders", "payments"))
    assert found.fail_on_data_loss
    assert not found.read_committed
    assert found.max_offsets_per_trigger is None
    assert found.max_trigger_delay_s == 15 * 60
    assert found.min_partitions is None


def test_names_are_compared_without_regard_to_case() -> None:
    found = LogOptions.parse(
        {
            **{name.upper(): value for name, value in GIVEN.items()},
            "startingoffsets": "EARLIEST",
            "FAILONDATALOSS": "False",
            "kafka.GROUP.id": "g",
        }
    )
    assert (found.start, found.fail_on_data_loss, found.group) == (OffsetSpec.EARLIEST, False, "g")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("startingOffsets", '{"t":{"0":-2}}', "start", Offsets({("t", 0): -2})),
        ("startingTimestamp", DAY, "start_time", Time(int(DAY))),
        ("startingOffsetsByTimestamp", '{"t":{"0":5}}', "start_times", Times({("t", 0): 5})),
        ("startingOffsetsByTimestampStrategy", "LATEST", "no_match", "latest"),
        ("endingOffsets", "latest", "end", OffsetSpec.LATEST),
        ("endingTimestamp", DAY, "end_time", Time(int(DAY))),
        ("endingOffsetsByTimestamp", '{"t":{"0":5}}', "end_times", Times({("t", 0): 5})),
        ("startingOffsets", "safe_latest", "start", Strategy.SAFE_LATEST),
        (NEAREST, "nearest", "out_of_range", OutOfRange.NEAREST),
        (f"kafka.{NEAREST}", "None", "out_of_range", OutOfRange.NONE),
        ("failOnDataLoss", "false", "fail_on_data_loss", False),
        ("maxOffsetsPerTrigger", "7", "max_offsets_per_trigger", 7),
        ("minOffsetsPerTrigger", "7", "min_offsets_per_trigger", 7),
        ("maxTriggerDelay", "90s", "max_trigger_delay_s", 90),
        ("maxTriggerDelay", "2 h", "max_trigger_delay_s", 7200),
        ("maxTriggerDelay", "500ms", "max_trigger_delay_s", 0.5),
        ("maxTriggerDelay", "500", "max_trigger_delay_s", 0.5),
        ("minPartitions", "7", "min_partitions", 7),
        ("maxRecordsPerPartition", "7", "max_records_per_partition", 7),
        ("includeHeaders", "true", "include_headers", True),
        ("kafka.isolation.level", "read_committed", "read_committed", True),
        ("kafka.isolation.level", "READ_UNCOMMITTED", "read_committed", False),
        ("kafka.group.id", "g", "group", "g"),
        ("groupIdPrefix", "team-a", "group_id_prefix", "team-a"),
        ("fetchOffset.numRetries", "5", "offset_retries", 5),
        ("fetchOffset.retryIntervalMs", "20", "offset_retry_ms", 20),
        ("kafkaConsumer.pollTimeoutMs", "9000", "request_timeout_ms", 9000),
    ],
)
def test_each_option_of_spark_is_understood(
    name: str, text: str, field: str, value: object
) -> None:
    assert getattr(LogOptions.parse({**GIVEN, name: text}), field) == value


def test_topics_are_named_in_one_of_three_ways() -> None:
    assert LogOptions.parse({**SERVERS, "subscribePattern": "o.*"}).pattern == "o.*"
    assert LogOptions.parse({**SERVERS, "assign": '{"t":[1]}'}).assigned == (("t", 1),)
    with pytest.raises(OptionError, match=r"give 'share.group.id' .* or one of 'subscribe'"):
        LogOptions.parse(SERVERS)
    with pytest.raises(OptionError, match=r"give one of .*, not several"):
        LogOptions.parse({**GIVEN, "subscribePattern": "o.*"})
    with pytest.raises(OptionError, match=r"give 'share.group.id' .* or one of 'subscribe'"):
        LogOptions.parse({**SERVERS, "subscribe": " , "})


def test_a_time_counts_before_times_and_these_before_offsets() -> None:
    offsets = {**GIVEN, "startingOffsets": "earliest", "endingOffsets": "latest"}
    times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}'}
    times |= {"endingOffsetsByTimestamp": '{"t":{"0":6}}'}
    time = {"startingTimestamp": "7", "endingTimestamp": "8"}
    found = LogOptions.parse(offsets)
    assert (found.given_start, found.given_end) == (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    found = LogOptions.parse(offsets | times)
    assert (found.given_start, found.given_end) == (Times({("t", 0): 5}), Times({("t", 0): 6}))
    found = LogOptions.parse(offsets | times | time)
    assert (found.given_start, found.given_end) == (Time(7), Time(8))


def test_what_a_group_committed_needs_a_group() -> None:
    given = {**GIVEN, "startingOffsets": "committed"}
    assert LogOptions.parse({**given, "kafka.group.id": "g"}).start == Committed()
    with pytest.raises(OptionError, match=r"name it with 'kafka.group.id'"):
        LogOptions.parse(given)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("maxOffsetPerTrigger", "1", "unknown option .*; did you mean 'maxOffsetsPerTrigger'"),
        ("subscribePattern", "(", "it is no regular expression"),
        ("maxTriggerDelay", "soon", "give a time with its unit"),
        ("startingOffsetsByTimestampStrategy", "first", "give 'error' or 'latest'"),
        ("kafka.isolation.level", "serializable", "give 'read_committed' or 'read_uncommitted'"),
        ("failOnDataLoss", "no", "give 'true' or 'false'"),
        ("minOffsetsPerTrigger", "-1", "give a whole number of at least 1"),
        ("kafka.group.id", " ", "give the name of a group"),
        ("includeDelivery", "true", "name the share group with 'share.group.id'"),
        ("kafka.auto.offset.reset", "earliest", "say with 'startingOffsets' where to start, "),
        ("auto.offset.reset", "safe_latest", "with 'offset.reset.strategy.offset-out-of-range'"),
        (NEAREST, "true", "give 'none' or 'nearest'"),
        (f"kafka.{NEAREST}", "earliest", "give 'none' or 'nearest'"),
        ("kafka.key.deserializer", "x", "decode them with DataFrame functions"),
        ("kafka.enable.auto.commit", "true", "offsets are committed to 'kafka.group.id'"),
        ("kafka.request.timeout.ms", "1", "it is 'requestTimeoutMs' here"),
        ("kafka.security.protocol", "SASL_SSL", "use a listener of type PLAINTEXT"),
        ("kafka.fetch.min.bytes", "1", "its client is not librdkafka's"),
        ("startingTimestamp", f"{10**20}", f"option 'startingTimestamp' is .*at most {2**63 - 1}"),
        ("requestTimeoutMs", f"{2**31}", f"option 'requestTimeoutMs' is .*at most {2**31 - 1}"),
        ("kafkaConsumer.pollTimeoutMs", f"{2**31}", f"give at most {2**31 - 1}"),
        ("retryTimeoutMs", f"{2**63}", f"give at most {2**63 - 1}"),
        ("fetchOffset.retryIntervalMs", f"{2**31}", f"give at most {2**31 - 1}"),
        ("maxOffsetsPerTrigger", f"{2**63}", f"give at most {2**63 - 1}"),
        ("maxTriggerDelay", f"{10**20}d", f"give at most {(2**63 - 1) // 86_400_000}"),
        ("path", "somewhere", "load\\(\\) takes no path"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_a_remedy(name: str, value: str, told: str) -> None:
    given = SERVERS if name == "subscribePattern" else GIVEN
    with pytest.raises(OptionError, match=told) as found:
        LogOptions.parse({**given, name: value})
    assert "\n" not in str(found.value)


def test_limits_must_fit_each_other() -> None:
    given = {**GIVEN, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(9\) is more than"):
        LogOptions.parse(given)


@pytest.mark.parametrize(
    "given",
    [
        {"endingOffsets": "latest"},
        {"endingTimestamp": DAY},
        {"endingOffsetsByTimestamp": '{"t":{"0":5}}'},
    ],
)
def test_a_stream_has_no_end(given: dict[str, str]) -> None:
    found = LogOptions.parse({**GIVEN, **given})
    with pytest.raises(OptionError, match="a stream has no end"):
        found.for_stream()
    assert found.for_batch() == found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "latest"}, "cannot start at latest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "cannot start at latest"),
        ({"endingOffsets": "earliest"}, "cannot end at earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "cannot end at earliest"),
        (
            {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":8}}'},
            "t-0 starts at 9, after its end 8",
        ),
        (
            {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"1":9}}'},
            "t-0 stands in one of them only",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"t":{"0":9}}',
                "endingOffsetsByTimestamp": '{"t":{"0":8}}',
            },
            "t-0 starts at 9, after its end 8",
        ),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "9 is after endingTimestamp 8"),
    ],
)
def test_bounds_of_a_batch_must_leave_something_to_read(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        LogOptions.parse({**GIVEN, **given}).for_batch()


def test_limits_of_triggers_are_told_to_have_no_effect_in_a_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = {"maxOffsetsPerTrigger": "8", "minOffsetsPerTrigger": "7", "maxTriggerDelay": "1s"}
    LogOptions.parse({**GIVEN, **limits}).for_stream()
    LogOptions.parse(GIVEN).for_batch()
    assert not caplog.records
    for given in ({"maxOffsetsPerTrigger": "8"}, limits):
        caplog.clear()
        LogOptions.parse({**GIVEN, **given}).for_batch()
        (line,) = caplog.records
        assert line.levelname == "WARNING"
        assert line.getMessage().startswith(f"{', '.join(given)}: for streams, without effect")


def test_open_ends_fit_any_offset() -> None:
    given = {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":-1}}'}
    found = LogOptions.parse({**GIVEN, **given})
    assert found.for_batch() == found


def test_a_batch_may_start_late_where_a_group_has_its_offsets() -> None:
    for text in ("safe_latest", "latest_on_start"):
        found = LogOptions.parse({**GIVEN, "startingOffsets": text})
        with pytest.raises(OptionError, match=f"starts at {text} .* with 'kafka.group.id'"):
            found.for_batch()
        assert found.for_stream() == found
        LogOptions.parse({**GIVEN, "startingOffsets": text, "kafka.group.id": "g"}).for_batch()
    LogOptions.parse({**GIVEN, "startingOffsets": "earliest_on_start"}).for_batch()


@pytest.mark.parametrize(
    ("given", "outside"),
    [
        ({}, "none"),
        ({"failOnDataLoss": "false"}, "nearest"),
        ({NEAREST: "nearest"}, "nearest"),
        ({NEAREST: "none", "failOnDataLoss": "false"}, "none"),
        ({"startingOffsets": "safe_latest"}, "none"),
    ],
)
def test_positions_outside_the_log_are_lost_data_unless_told_otherwise(
    given: dict[str, str], outside: str
) -> None:
    found = LogOptions.parse({**GIVEN, **given})
    assert found.when_outside == outside
    assert found.passes_removed is (outside == "nearest")

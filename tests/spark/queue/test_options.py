"""Options: Spark's spellings in any case, and one readable line for what cannot be used."""

import pytest

from headrace.client.reset_settings import OUT_OF_RANGE
from headrace.spark.options import OptionError
from headrace.spark.queue.options import QueueOptions

GIVEN = {
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "subscribe": "orders, payments,orders",
    "share.group.id": "billing",
}


def test_required_options_suffice_and_the_rest_has_defaults() -> None:
    assert QueueOptions.parse(GIVEN) == QueueOptions(
        bootstrap_servers="127.0.0.1:9092", topics=("orders", "payments"), group="billing"
    )


def test_names_are_compared_without_regard_to_case() -> None:
    found = QueueOptions.parse(
        {
            **{name.upper(): value for name, value in GIVEN.items()},
            "maxoffsetspertrigger": "7",
            "MAXRECORDSPERPARTITION": "3",
            "startingOffsets": "EARLIEST",
            "includeDelivery": "True",
        }
    )
    assert (found.max_offsets_per_trigger, found.max_records_per_partition) == (7, 3)
    assert (found.start, found.include_delivery) == ("earliest", True)


def test_the_group_may_be_spelled_as_a_client_setting() -> None:
    given = {**GIVEN, "kafka.share.group.id": "billing"}
    assert QueueOptions.parse(given).group == "billing"
    with pytest.raises(OptionError, match="given twice, with different values"):
        QueueOptions.parse({**GIVEN, "kafka.share.group.id": "other"})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("maxOffsetPerTrigger", "1", "unknown option .*; did you mean 'maxOffsetsPerTrigger'"),
        ("newCheckpoint", "reset", "'reset': give 'fail' to refuse .*, or 'continue' to read on"),
        ("kafka.auto.offset.reset", "latest", "say with 'startingOffsets' where a topic starts"),
        (f"kafka.{OUT_OF_RANGE}", "nearest", "a share group keeps its own positions"),
        ("startingOffsets", "safe_latest", "give 'earliest' or 'latest'; a share group keeps"),
        ("kafka.security.protocol", "SSL", "not supported yet: .* connects in plain text"),
        ("kafka.ssl.truststore.location", "t.jks", "without TLS and without authentication"),
        ("kafka.sasl.mechanism", "PLAIN", "give it a listener of that kind"),
        ("zzz", "1", "unknown option 'zzz'; there are kafka.bootstrap.servers, "),
        ("kafka.group.id", "g", "a share group is named by 'share.group.id'"),
        ("subscribePattern", "a.*", "name the topics with 'subscribe'"),
        ("path", "somewhere", "load\\(\\) takes no path"),
        ("maxOffsetsPerTrigger", "0", "'0': give a whole number of at least 1"),
        ("maxOffsetsPerTrigger", "1e3", "give a whole number"),
        ("acquireWaitMs", f"{2**31}", f"option 'acquireWaitMs' is .*give at most {2**31 - 1}"),
        ("includeHeaders", "yes", "give 'true' or 'false'"),
        ("startingOffsets", '{"t":{"0":1}}', "give 'earliest' or 'latest'"),
        ("kafka.bootstrap.servers", "localhost", "'localhost' is not host:port"),
        ("logLevel", "loud", "give 'DEBUG', 'INFO'"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_a_remedy(name: str, value: str, told: str) -> None:
    with pytest.raises(OptionError, match=told) as found:
        QueueOptions.parse({**GIVEN, name: value})
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", GIVEN)
def test_a_required_option_is_named_with_an_example(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is required, e.g."):
        QueueOptions.parse({other: value for other, value in GIVEN.items() if other != name})


def test_topics_that_are_only_commas_are_none() -> None:
    with pytest.raises(OptionError, match="'subscribe' is required"):
        QueueOptions.parse({**GIVEN, "subscribe": " , "})

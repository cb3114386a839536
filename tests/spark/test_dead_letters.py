"""Dead letters as rows, and back to the group that failed them: to no other, and not twice."""

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.client.admin import create_topic, log_ends, set_group_configs
from headrace.client.leases import describe
from headrace.client.records import read_records
from headrace.spark import Reject, acknowledge, dead_letters, each_record, redrive

pytestmark = pytest.mark.spark

DLQ = "dlq.t"


class Case:
    """Two groups on the topic `t`; what `strict` cannot read becomes a dead letter of it."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow
        self.seen: dict[str, list[str]] = {"strict": [], "lenient": []}
        config = {"errors.deadletterqueue.topic.name": DLQ}
        set_group_configs(flow.cluster, "strict", config)

    def run(self, group: str) -> None:
        """Have a group read all there is for it, with a checkpoint of its own."""

        def note(rows: DataFrame, batch_id: int) -> None:
            self.seen[group] += [row.text for row in rows.collect()]

        rows = self.flow.rows(**{"share.group.id": group, "includeDelivery": "true"})
        parsed = each_record(rows, strict if group == "strict" else lenient, "text string")
        sink = acknowledge(note, bootstrap_servers=self.flow.servers, group=group)
        writer = parsed.writeStream.option("checkpointLocation", f"{self.flow.checkpoint}-{group}")
        writer.foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()

    def letters(self) -> DataFrame:
        reader = self.flow.spark.read.format("headrace").option("includeHeaders", "true")
        reader = reader.option("kafka.bootstrap.servers", self.flow.servers)
        return dead_letters(reader.option("subscribe", DLQ).load())

    def redrive(self, letters: DataFrame, **more: Any) -> Any:
        return redrive(letters, bootstrap_servers=self.flow.servers, **more)

    def finished(self, group: str) -> bool:
        """Whether every record that the group was given is done with."""
        state = describe(self.flow.cluster, group)
        return all(one.start == one.log_end and not one.in_flight for one in state)


def strict(record: Any) -> dict[str, Any]:
    if not record.value.startswith(b"{"):
        raise Reject("not JSON")
    return {"text": json.loads(record.value)["v"]}


def lenient(record: Any) -> dict[str, Any]:
    return {"text": record.value.decode()}


@pytest.fixture
def case(flow: Any) -> Case:
    """Ten good records and two bad ones, which both groups have read."""
    made = Case(flow)
    flow.produce(10, '{{"v": "{}"}}')
    flow.produce(2, "v={}")
    for group in ("strict", "lenient"):
        made.run(group)
    return made


def test_a_dead_letter_tells_all_about_itself(case: Case) -> None:
    found = sorted(case.letters().collect(), key=lambda row: str(row.original_partition))
    assert [row.value for row in found] == [b"v=0", b"v=1"]
    first = found[0]
    assert (first.group, first.reason, first.delivery_count) == ("strict", "not JSON", 1)
    assert first.member.startswith("lease/")
    assert (first.original_topic, first.original_partition, first.original_offset) == ("t", 0, 5)
    assert (first.key, first.redriven) == (b"key 0", 0)
    assert [(one.key, one.value) for one in first.headers] == [("number", b"0")]
    assert first.letter.startswith("dlq.t-0@0@")


def test_repaired_records_go_to_the_group_that_failed_and_the_account_closes(case: Case) -> None:
    repaired = case.letters().withColumn(
        "value", f.expr("""'{"v": "' || substr(value, 3) || '"}'""")
    )
    told = case.redrive(repaired)
    assert (told.written, told.skipped) == ({"strict": 2}, 0)
    before = list(case.seen["lenient"])
    for group in ("strict", "lenient"):
        case.run(group)
    assert sorted(case.seen["strict"]) == sorted([*map(str, range(10)), "0", "1"])
    assert case.seen["lenient"] == before
    assert len(before) == 12
    assert case.finished("strict")
    assert case.finished("lenient")
    assert {one.topic for one in describe(case.flow.cluster, "lenient")} == {"t"}
    assert sum(log_ends(case.flow.cluster, DLQ).values()) == 2


def test_a_record_goes_back_as_it_was_with_its_origin_in_its_headers(case: Case) -> None:
    case.redrive(case.letters().where("original_partition = 1"))
    (found,) = read_records(case.flow.cluster, "redrive.strict", 0)
    letter = case.letters().where("original_partition = 1").first()
    assert letter is not None
    assert (found.key, found.value) == (b"key 1", b"v=1")
    assert found.timestamp == int(letter.timestamp.timestamp() * 1000)
    assert found.headers == (
        ("number", b"1"),
        ("headrace.redrive.topic", b"t"),
        ("headrace.redrive.partition", b"1"),
        ("headrace.redrive.offset", b"5"),
        ("headrace.redrive.letter", letter.letter.encode()),
        ("headrace.redrive.count", b"1"),
    )


def test_a_letter_goes_back_once_unless_told_again(case: Case) -> None:
    case.redrive(case.letters().where("original_partition = 0"))
    told = case.redrive(case.letters())
    assert (told.written, told.skipped) == ({"strict": 1}, 1)
    told = case.redrive(case.letters())
    assert (told.written, told.skipped) == ({}, 2)
    told = case.redrive(case.letters(), again=True)
    assert (told.written, told.skipped) == ({"strict": 2}, 0)


def test_a_record_that_fails_again_is_a_new_letter_that_says_so(case: Case) -> None:
    case.redrive(case.letters())
    case.run("strict")
    again = case.letters().where("redriven = 1").orderBy("original_partition").collect()
    places = [(row.original_topic, row.original_partition, row.original_offset) for row in again]
    assert places == [("t", 0, 5), ("t", 1, 5)]
    assert [row.reason for row in again] == ["not JSON", "not JSON"]
    assert [[one.key for one in row.headers] for row in again] == [["number"], ["number"]]
    assert case.finished("strict")
    assert case.redrive(case.letters()).written == {"strict": 2}


def test_letters_are_read_as_a_stream(case: Case) -> None:
    flow, found = case.flow, []
    options = {"subscribe": DLQ, "share.group.id": "morgue", "includeHeaders": "true"}
    letters = dead_letters(flow.rows(**options))
    flow.run(letters, lambda rows, _: found.extend(rows.select("group", "reason").collect()))
    assert [(row.group, row.reason) for row in found] == [("strict", "not JSON")] * 2


def test_other_records_in_the_topic_have_no_group_and_do_not_go_anywhere(case: Case) -> None:
    rows = case.flow.spark.sql("SELECT 'stray' AS value")
    writer = rows.write.format("headrace").mode("append").option("topic", DLQ)
    writer.option("kafka.bootstrap.servers", case.flow.servers).save()
    stray = case.letters().where("`group` IS NULL").collect()
    assert [(row.value, row.original_topic) for row in stray] == [(b"stray", None)]
    with pytest.raises(ValueError, match=r"rows without a group .* where"):
        case.redrive(case.letters())
    assert case.redrive(case.letters().where("`group` IS NOT NULL")).written == {"strict": 2}


def test_letters_without_payload_are_not_redriven_as_empty_records(flow: Any) -> None:
    made = Case(flow)
    configs = {"errors.deadletterqueue.copy.record.enable": "false"}
    set_group_configs(flow.cluster, "strict", configs)
    flow.produce(1, "v={}")
    made.run("strict")
    with pytest.raises(ValueError, match=r"^1 dead letters have neither .*copy\.record\.enable"):
        made.redrive(made.letters())
    again = made.letters().withColumn("value", f.lit('{"v": "mended"}'))
    assert made.redrive(again).written == {"strict": 1}


def test_letters_are_redriven_from_a_stream_batch_by_batch(case: Case) -> None:
    flow = case.flow
    told: list[Any] = []
    letters = dead_letters(flow.rows(subscribe=DLQ, includeHeaders="true"))
    with pytest.raises(ValueError, match="the rows of a batch: call it in foreachBatch"):
        case.redrive(letters)
    flow.run(letters, lambda rows, _: told.append(case.redrive(rows)))
    assert [one.written for one in told if one.written] == [{"strict": 2}]


def test_columns_that_are_missing_are_told(flow: Any) -> None:
    create_topic(flow.cluster, DLQ, 1)
    with pytest.raises(ValueError, match=r"columns headers are missing.*includeHeaders"):
        dead_letters(flow.rows(subscribe=DLQ))
    with pytest.raises(ValueError, match=r"columns group, .* are missing.*dead_letters"):
        redrive(flow.rows(), bootstrap_servers=flow.servers)

"""Records of KIP-848 groups as Apache Kafka's own tool has read them: ours reads and writes them.

What Headrace prints of them is compared in tests/cli/test_log_dump.py.
"""

import json
from pathlib import Path

import pytest

from headrace.core.machine import Entry
from headrace.core.types import WallMs
from headrace.log.consumer_group_records import KINDS
from headrace.log.group_records import GroupJournal
from headrace.wire import batches

HERE = Path(__file__).parent
RECORDS = list(batches.records((HERE / "consumer_groups.log").read_bytes()))
PRINTED = (HERE / "consumer_groups.txt").read_text().splitlines()
PASSED_OVER = "4"  # Kafka before 4.1 wrote it, and Headrace never does


@pytest.mark.parametrize(("record", "line"), list(zip(RECORDS, PRINTED, strict=True)))
def test_records_are_written_as_kafka_read_them(record: batches.Record, line: str) -> None:
    journal = GroupJournal()
    again = journal.records(journal.events(record.key, record.value), WallMs(record.timestamp))
    is_passed_over = json.loads(line[5:].split(" payload: ")[0])["type"] == PASSED_OVER
    assert again == ([] if is_passed_over else [Entry(record.key, record.value)])


def test_all_types_are_there_with_a_value_and_as_a_tombstone() -> None:
    found = {
        (int(json.loads(line[5:].split(" payload: ")[0])["type"]), line.endswith("<DELETE>"))
        for line in PRINTED
    }
    assert found == {(kind, dropped) for kind in KINDS for dropped in (False, True)}

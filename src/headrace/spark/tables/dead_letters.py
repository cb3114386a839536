"""The table `dead_letters`: what share groups set aside, with a copy in a dead-letter topic or not.

Which topic that is, is a setting of the group. What was copied is read there, by the headers of the
copies; what was not is listed by the broker. Source: KIP-1191 for the headers.
"""

from collections.abc import Iterable, Iterator

from headrace.client.configs import ResourceType, describe_configs
from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.records import read_records
from headrace.client.share_archived import ArchivedRun, list_archived_share_records
from headrace.spark.tables.names import Row, is_absent, moment, portions
from headrace.spark.tables.share import span
from headrace.spark.tables.wanted import Wanted
from headrace.wire.batches import Record
from headrace.wire.error_codes import ErrorCode

DEAD_LETTERS = (
    "group string, topic string, partition int, first bigint, last bigint, records bigint, "
    "readable bigint, delivery_count int, reason string, holder string, archived_at timestamp, "
    "letter struct<topic: string, partition: int, offset: bigint>"
)

_WHY = "__dlq.errors."
_SETTING = "errors.deadletterqueue.topic.name"
_ROWS_MAX = 5_000


def dead_letters(cluster: Cluster, wanted: Wanted) -> Iterator[list[Row]]:
    """A row a run of records without a copy, and a row a copy.

    Raises: `Unsupported` on other brokers.
    """
    groups_of: dict[str, set[str]] = {}
    for names in portions(cluster, wanted, share=True):
        for name in names:
            rows = _listed(cluster, name, wanted)
            if rows is None:
                continue
            yield rows
            if topic := _topic_of(cluster, name):
                groups_of.setdefault(topic, set()).add(name)
    for topic, groups in groups_of.items():
        yield from _copied(cluster, topic, groups, wanted)


def _listed(cluster: Cluster, group: str, wanted: Wanted) -> list[Row] | None:
    """What has no copy; None when there is no such share group."""
    try:
        found = list_archived_share_records(cluster, group, wanted.topic)
    except BrokerError as error:
        if is_absent(error):
            return None
        raise
    return [_run(group, one) for one in found.runs if wanted.has(one.topic, one.partition)]


def _topic_of(cluster: Cluster, group: str) -> str:
    """The dead-letter topic of a group; "" when it has none."""
    found = describe_configs(cluster, ResourceType.GROUP, group)
    return next((one.value or "" for one in found if one.name == _SETTING), "")


def _copied(
    cluster: Cluster, topic: str, groups: Iterable[str], wanted: Wanted
) -> Iterator[list[Row]]:
    """The copies of these groups in a dead-letter topic; none when nothing made it yet."""
    try:
        partitions = cluster.partitions(topic)
    except BrokerError as error:
        if error.code != ErrorCode.unknown_topic_or_partition:
            raise
        return
    rows: list[Row] = []
    for partition in partitions:
        for record in read_records(cluster, topic, partition):
            row = _copy(record, topic, partition)
            if row is None or row["group"] not in groups:
                continue
            if wanted.has(row["topic"], row["partition"]):
                rows.append(row)
            if len(rows) >= _ROWS_MAX:
                yield rows
                rows = []
    yield rows


def _run(group: str, one: ArchivedRun) -> Row:
    return span(group, one) | {
        "readable": one.readable,
        "reason": one.reason,
        "holder": one.member,
        "archived_at": moment(one.archived_at),
    }


def _copy(record: Record, topic: str, partition: int) -> Row | None:
    """What the last headers of a copy say; None for a record that is none."""
    said = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    try:
        offset = int(said[f"{_WHY}offset"])
        return {
            "group": said[f"{_WHY}group"],
            "topic": said[f"{_WHY}topic"],
            "partition": int(said[f"{_WHY}partition"]),
            "first": offset,
            "last": offset,
            "records": 1,
            "delivery_count": int(said[f"{_WHY}delivery.count"]),
            "reason": said.get(f"{_WHY}message"),
            "holder": said.get(f"{_WHY}member") or None,
            "letter": {"topic": topic, "partition": partition, "offset": record.offset},
        }
    except (KeyError, ValueError):
        return None

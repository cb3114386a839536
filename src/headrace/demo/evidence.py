"""Reads, from three places that do not know of each other, what became of every record.

The journal `__share_group_state` is read as any consumer could, and every verdict in it counts, not
only those that recovery still needs: a record that was finished and later got another verdict is
found even if nobody would notice. Dead letters are known by their headers (KIP-1191).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from headrace.client.connection import Cluster
from headrace.client.leases import describe
from headrace.client.records import read_records
from headrace.core.runs import State
from headrace.demo.account import Evidence
from headrace.log.record_codec import ShareRecord, read_share_record

JOURNAL_TOPIC = "__share_group_state"
ALLOWED_AFTER = {
    State.ACKNOWLEDGED: {State.ACKNOWLEDGED},
    State.ARCHIVING: {State.ARCHIVING, State.ARCHIVED},
    State.ARCHIVED: {State.ARCHIVED},
}


@dataclass(slots=True)
class Verdicts:
    """The verdicts of one partition in the order of the journal."""

    last: dict[int, State] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)

    def add(self, record: ShareRecord) -> None:
        for batch in record.batches:
            for offset in batch.span:
                before = self.last.get(offset)
                if before in ALLOWED_AFTER and batch.state not in ALLOWED_AFTER[before]:
                    self.undone.add(offset)
                self.last[offset] = batch.state

    def offsets(self, state: State) -> frozenset[int]:
        return frozenset(offset for offset, last in self.last.items() if last is state)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Where a dead letter came from and why, as its headers say."""

    group: str
    topic: str
    partition: int
    offset: int
    delivery_count: int
    reason: str


class BadDeadLetter(Exception):
    """A record of the dead-letter topic lacks a header, or has one that cannot be read."""


def dead_letter(headers: Iterable[tuple[str, bytes | None]]) -> DeadLetter:
    """The headers as a value. Raises: BadDeadLetter."""
    texts = {name: (value or b"").decode() for name, value in headers}
    try:
        return DeadLetter(
            texts["__dlq.errors.group"],
            texts["__dlq.errors.topic"],
            int(texts["__dlq.errors.partition"]),
            int(texts["__dlq.errors.offset"]),
            int(texts["__dlq.errors.delivery.count"]),
            texts["__dlq.errors.message"],
        )
    except (KeyError, ValueError) as error:
        raise BadDeadLetter(f"a dead letter with headers {texts}: {error!r}") from error


def journal(cluster: Cluster, group: str) -> dict[int, Verdicts]:
    """Every verdict of a group that reads one topic, by partition."""
    found: dict[int, Verdicts] = defaultdict(Verdicts)
    for shard in cluster.partitions(JOURNAL_TOPIC):
        for record in read_records(cluster, JOURNAL_TOPIC, shard):
            decoded = read_share_record(record.key, record.value)
            if decoded is not None and decoded.key.group == group:
                found[decoded.key.partition].add(decoded)
    return found


def dead_letters(cluster: Cluster, topic: str) -> list[DeadLetter]:
    """All dead letters of a topic. Raises: BadDeadLetter."""
    return [
        dead_letter(record.headers)
        for partition in cluster.partitions(topic)
        for record in read_records(cluster, topic, partition)
    ]


def processed(parquet: Path) -> dict[int, list[int]]:
    """The offsets of all rows of the output, by partition."""
    found: dict[int, list[int]] = defaultdict(list)
    for file in sorted(parquet.rglob("*.parquet")):
        table = pq.ParquetFile(file).read(columns=["partition", "offset"])
        rows = zip(
            table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True
        )
        for partition, offset in rows:
            found[partition].append(offset)
    return found


def collect(
    cluster: Cluster,
    *,
    group: str,
    topic: str,
    parquet: Path,
    produced: Mapping[int, int],
    dead: Iterable[DeadLetter],
) -> dict[int, Evidence]:
    """What is found of each partition. Raises: as `Cluster`."""
    verdicts = journal(cluster, group)
    rows = processed(parquet)
    letters: dict[int, list[int]] = defaultdict(list)
    for letter in dead:
        if (letter.group, letter.topic) == (group, topic):
            letters[letter.partition].append(letter.offset)
    described = {one.partition: one for one in describe(cluster, group) if one.topic == topic}
    evidence = {}
    for partition in cluster.partitions(topic):
        last = verdicts.get(partition, Verdicts())
        state = described.get(partition)
        evidence[partition] = Evidence(
            produced=produced.get(partition, 0),
            log_end=state.log_end if state else -1,
            start=state.start if state else -1,
            end=state.end if state else -1,
            accepted=last.offsets(State.ACKNOWLEDGED),
            archived=last.offsets(State.ARCHIVED),
            undone=frozenset(last.undone),
            processed=rows.get(partition, []),
            dead=letters.get(partition, []),
        )
    return evidence


def reasons(dead: Iterable[DeadLetter]) -> list[tuple[str, int]]:
    """Kinds of reasons, most frequent first; where in the text it was is left out of a reason."""
    return Counter(": ".join(letter.reason.split(": ")[:2]) for letter in dead).most_common()

"""The account: is every record that was produced finished, exactly once, in every place?

Three places that do not know of each other tell what became of a record: the broker's journal (the
last verdict of every offset), the Parquet rows (what the pipeline processed) and the dead-letter
topic (what it refused). The account closes when they say the same, for every offset from 0 to the
end of the log, and nothing is left in flight. Pure; `evidence` reads the places.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SPANS_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found about one partition.

    `produced` is the producer's count of confirmed records; `start` and `end` are SPSO and SPEO.
    `accepted` and `archived` are last verdicts in the journal, `undone` offsets whose journal says
    something else after they were finished. `processed` and `dead` may name an offset twice.
    """

    produced: int
    log_end: int
    start: int
    end: int
    accepted: frozenset[int]
    archived: frozenset[int]
    undone: frozenset[int]
    processed: Sequence[int]
    dead: Sequence[int]


@dataclass(frozen=True, slots=True)
class Account:
    """The evidence and everything in it that does not add up, in words."""

    partitions: Mapping[int, Evidence]
    complaints: tuple[str, ...]

    @property
    def closes(self) -> bool:
        return not self.complaints

    @property
    def produced(self) -> int:
        return sum(one.produced for one in self.partitions.values())

    @property
    def accepted(self) -> int:
        return sum(len(one.accepted) for one in self.partitions.values())

    @property
    def rejected(self) -> int:
        return sum(len(one.archived) for one in self.partitions.values())


def settle(partitions: Mapping[int, Evidence], *, unprocessable: int) -> Account:
    """Draw up the account; `unprocessable` is how many records of the input must be rejected."""
    complaints = [
        f"partition {number}: {complaint}"
        for number, evidence in sorted(partitions.items())
        for complaint in _complaints(evidence)
    ]
    rejected = sum(len(one.archived) for one in partitions.values())
    if rejected != unprocessable:
        complaints.append(
            f"{rejected} records were rejected, {unprocessable} of the input cannot be processed"
        )
    return Account(dict(sorted(partitions.items())), tuple(complaints))


def _complaints(it: Evidence) -> list[str]:
    everything = frozenset(range(it.log_end))
    processed, dead = frozenset(it.processed), frozenset(it.dead)
    sets = {
        "never finished": everything - it.accepted - it.archived,
        "both accepted and archived": it.accepted & it.archived,
        "finished and then changed": it.undone,
        "finished beyond the end of the log": (it.accepted | it.archived) - everything,
        "accepted but missing in the Parquet output": it.accepted - processed,
        "in the Parquet output but not accepted": processed - it.accepted,
        "more than once in the Parquet output": _twice(it.processed),
        "archived but missing in the dead-letter topic": it.archived - dead,
        "in the dead-letter topic but not archived": dead - it.archived,
        "more than once in the dead-letter topic": _twice(it.dead),
    }
    found = [f"{_spans(offsets)} {what}" for what, offsets in sets.items() if offsets]
    if it.produced != it.log_end:
        found.append(f"{it.produced} records were confirmed, the log ends at {it.log_end}")
    if not it.start == it.end == it.log_end:
        found.append(f"SPSO {it.start}, SPEO {it.end} and log end {it.log_end} are not the same")
    return found


def _twice(offsets: Iterable[int]) -> frozenset[int]:
    return frozenset(offset for offset, times in Counter(offsets).items() if times > 1)


def _spans(offsets: frozenset[int]) -> str:
    """Offsets as text: how many, and the first few of their spans."""
    spans: list[list[int]] = []
    for offset in sorted(offsets):
        if spans and offset == spans[-1][1] + 1:
            spans[-1][1] = offset
        else:
            spans.append([offset, offset])
    shown = [
        str(first) if first == last else f"{first}-{last}"
        for first, last in spans[:SPANS_SHOWN_MAX]
    ]
    more = ", ..." if len(spans) > SPANS_SHOWN_MAX else ""
    records = "1 record" if len(offsets) == 1 else f"{len(offsets)} records"
    return f"{records} ({', '.join(shown)}{more})"

"""What brokers know of the topics of a query: partitions, ends of their logs, offsets by time.

One connection to the cluster, for the driver's thread; only requests of the plain protocol.
"""

import logging
import re
import time
from collections.abc import Iterable, Mapping

from headrace.client.connection import Cluster
from headrace.client.errors import BrokerError
from headrace.client.group_offsets import list_group_offsets
from headrace.client.offsets import OffsetSpec, Spec, TopicPartition, list_offsets
from headrace.client.resets import Strategy
from headrace.client.topics import TopicDescription, describe_topics
from headrace.spark.log.bounds import Bound, Committed, Offsets, Time, Times
from headrace.spark.log.options import LogOptions
from headrace.spark.log.plan import Log, Seen
from headrace.spark.options import OptionError

LOG = logging.getLogger(__name__)

_TRIES = 3
_UNKNOWN_TOPIC_OR_PARTITION = 3
_LATEST, _EARLIEST = int(OffsetSpec.LATEST), int(OffsetSpec.EARLIEST)


class Topics:
    """The topics that options name. Raises: as `Cluster`, from every method."""

    def __init__(self, options: LogOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster

    def must_be_there(self, seen: Seen) -> None:
        """Raises: `OptionError` when a topic or partition that options name is not in `seen`."""
        there = {topic for topic, _ in seen.logs}
        missing = [topic for topic in self._options.topics if topic not in there]
        missing += [f"{t}-{p}" for t, p in self._options.assigned if (t, p) not in seen.logs]
        if missing:
            raise OptionError(
                f"{self._cluster.bootstrap_servers} has no {', '.join(missing)}; create it, or "
                "correct the name"
            )

    def look(self, known: Mapping[TopicPartition, int] | None = None) -> Seen:
        """The partitions there are now, with the ends of their logs.

        A leader just elected may tell an end that lies before what was read already (`known`), and
        a broker just started may not know a topic: it is asked again as often as
        `fetchOffset.numRetries` says.
        """
        known = known or {}
        seen = self._seen()
        for _ in range(self._options.offset_retries):
            behind = [
                place
                for place, at in sorted(known.items())
                if place not in seen.logs or seen.logs[place].end < at
            ]
            if not behind:
                break
            LOG.warning("%s end before what was read of them, or are gone; asking again", behind)
            time.sleep(self._options.offset_retry_ms / 1000)
            seen = self._seen()
        return seen

    def start(self, seen: Seen, default: OffsetSpec) -> dict[TopicPartition, int]:
        """Where reading starts. Raises: `OptionError` when that cannot be told."""
        bound = self._options.given_start or default
        if isinstance(bound, Committed):
            return self._committed(seen, bound)
        if isinstance(bound, Time | Times):
            by_time = self._by_time(seen, bound)
            for (topic, partition), offset in by_time.items():
                if offset is None and self._options.no_match == "error":
                    raise OptionError(
                        f"{topic}-{partition} has no record as late as its starting timestamp; "
                        "give an earlier one, or startingOffsetsByTimestampStrategy 'latest'"
                    )
            return _or_end(by_time, seen)
        assert not isinstance(bound, Strategy), "`Starts` has it"
        return _resolved(bound, seen)

    def end(self, seen: Seen) -> dict[TopicPartition, int]:
        """Where a batch query ends. Raises: as `start`."""
        bound = self._options.given_end or OffsetSpec.LATEST
        if isinstance(bound, Time | Times):
            return _or_end(self._by_time(seen, bound), seen)
        assert not isinstance(bound, Committed | Strategy), "the parser makes none"
        return _resolved(bound, seen)

    def _seen(self) -> Seen:
        for left in reversed(range(_TRIES)):
            described = self._described()
            places = self._places(described)
            try:
                starts = list_offsets(self._cluster, dict.fromkeys(places, OffsetSpec.EARLIEST))
                ends = list_offsets(
                    self._cluster,
                    dict.fromkeys(places, OffsetSpec.LATEST),
                    read_committed=self._options.read_committed,
                )
            except BrokerError as error:
                if error.code != _UNKNOWN_TOPIC_OR_PARTITION or not left:
                    raise
                self._cluster.close()  # deleted since it was described
                continue
            logs = {
                place: Log(starts[place].offset or 0, ends[place].offset or 0) for place in places
            }
            ids = {
                name: one.id.hex
                for name, one in described.items()
                if one.id is not None and one.id.int
            }
            return Seen(logs, ids)
        raise AssertionError("the last try returns or raises")

    def _described(self) -> dict[str, TopicDescription]:
        if self._options.pattern is None:
            names = self._options.topics or {topic for topic, _ in self._options.assigned}
            return describe_topics(self._cluster, names)
        wanted = re.compile(self._options.pattern)
        return {
            name: one
            for name, one in describe_topics(self._cluster).items()
            if not one.internal and wanted.fullmatch(name)
        }

    def _places(self, described: Mapping[str, TopicDescription]) -> list[TopicPartition]:
        there = [
            (name, part.partition) for name, one in described.items() for part in one.partitions
        ]
        assigned = set(self._options.assigned)
        return [place for place in there if not assigned or place in assigned]

    def _committed(self, seen: Seen, bound: Committed) -> dict[TopicPartition, int]:
        assert self._options.group is not None, "the parser asks for it"
        found = list_group_offsets(
            self._cluster, self._options.group, seen.logs, require_stable=True
        )
        LOG.info("group %s has committed %s", self._options.group, _told(found, seen))
        default = _resolved(bound.otherwise, seen)
        return {
            place: found[place].offset if place in found else default[place] for place in seen.logs
        }

    def _by_time(self, seen: Seen, bound: Time | Times) -> dict[TopicPartition, int | None]:
        asked: dict[TopicPartition, Spec]
        if isinstance(bound, Time):
            asked = dict.fromkeys(seen.logs, bound.ms)
        else:
            _must_name_all(bound.of, seen)
            asked = dict(bound.of)
        listed = list_offsets(self._cluster, asked, read_committed=self._options.read_committed)
        return {place: found.offset for place, found in listed.items()}


def must_be_ordered(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], given: Bound | None
) -> None:
    """Raises: `OptionError` when a partition starts after the end that was given for it."""
    for (topic, partition), first in sorted(start.items()):
        last = end[topic, partition]
        if first > last and given is not None and given is not OffsetSpec.LATEST:
            raise OptionError(
                f"{topic}-{partition} starts at offset {first}, after its end {last}; give a "
                "later end or an earlier start"
            )


def _resolved(bound: OffsetSpec | Offsets, seen: Seen) -> dict[TopicPartition, int]:
    if isinstance(bound, Offsets):
        _must_name_all(bound.of, seen)
        asked = bound.of
    else:
        asked = dict.fromkeys(seen.logs, int(bound))
    return {
        place: seen.logs[place].start
        if offset == _EARLIEST
        else seen.logs[place].end
        if offset == _LATEST
        else offset
        for place, offset in asked.items()
    }


def _or_end(offsets: Mapping[TopicPartition, int | None], seen: Seen) -> dict[TopicPartition, int]:
    return {
        place: seen.logs[place].end if offset is None else offset
        for place, offset in offsets.items()
    }


def _must_name_all(named: Iterable[TopicPartition], seen: Seen) -> None:
    odd = sorted(set(named) ^ seen.logs.keys())
    if odd:
        topic, partition = odd[0]
        lacking = (topic, partition) in seen.logs
        raise OptionError(
            f"offsets or timestamps by partition must name all partitions, and no others: "
            f"{topic}-{partition} is {'missing' if lacking else 'not there'}; use -2 for earliest, "
            "-1 for latest"
        )


def _told(found: Mapping[TopicPartition, object], seen: Seen) -> str:
    return f"offsets of {len(found)} of {len(seen.logs)} partitions"

"""How far a query has read, as it stands in Spark's offset log.

`offsets` are those of the next records. `since` has the begins of the batch that ended here where
the position before does not tell them: at the very start (Spark asks for that again after a crash,
and `latest` is then another), of partitions that were new, and after records that were lost. So a
batch that runs again has the same records. `ids` are those of topics: a topic that was deleted and
made again has another, however long it is. `started` is when the query began (ms since 1970), or
its group, if partitions that are new to it may begin elsewhere than at their first record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headrace.client.offsets import TopicPartition

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """The streaming offset."""

    offsets: Mapping[TopicPartition, int]
    since: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    started: int | None = None

    @property
    def may_be_initial(self) -> bool:
        """Whether nothing was read before: the position that Spark does not log."""
        return self.offsets == self.since

    def begins(self, before: "Position") -> dict[TopicPartition, int]:
        """Where the batch begins that leads from `before` to here."""
        return {
            place: self.since[place] if place in self.since else before.offsets[place]
            for place in self.offsets
            if place in self.since or place in before.offsets
        }

    def to_json(self) -> dict[str, Any]:
        found = {"v": _VERSION, "offsets": _nested(self.offsets)}
        if self.since or not self.offsets:
            found["from"] = _nested(self.since)
        if self.ids:
            found["ids"] = dict(self.ids)
        if self.started is not None:
            found["started"] = self.started
        return found

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Raises: ValueError for an offset that this version did not write."""
        if found.get("v") != _VERSION or "offsets" not in found:
            raise ValueError(
                f"the checkpoint holds offsets of version {found.get('v')} or of another use of "
                f"the headrace source, this reads a log in version {_VERSION}; go on with the "
                "release and the options that wrote it, or start with a new checkpoint "
                "and a new output folder"
            )
        return cls(
            _flat(found["offsets"]),
            _flat(found.get("from", {})),
            dict(found.get("ids", {})),
            found.get("started"),
        )


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _flat(found: dict[str, dict[str, int]]) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): offset
        for topic, partitions in found.items()
        for partition, offset in partitions.items()
    }

"""What one group has committed: by topic and partition, the newest commit.

Offsets are kept under the name of their topic, as the journal's keys have it; the topic's id, where
a commit has one, tells whether it still is the same topic.
"""

from collections.abc import Iterator
from uuid import UUID

from headrace.core.group_words import Committed


class Offsets:
    """The committed offsets of a group, whatever kind of group it is."""

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, Committed]] = {}

    def __bool__(self) -> bool:
        return bool(self.by_topic)

    def __iter__(self) -> Iterator[tuple[str, int, Committed]]:
        for topic, partitions in self.by_topic.items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def topics(self) -> Iterator[tuple[str, UUID | None]]:
        """The topics with commits, by name and by each id that commits for it have."""
        for topic, partitions in self.by_topic.items():
            # By identity: equal ids are one object nearly always, and comparing them takes long.
            for topic_id in {id(one.topic_id): one.topic_id for one in partitions.values()}.values():
                yield topic, topic_id

    def find(self, topic: str, partition: int, topic_id: UUID | None) -> Committed | None:
        """The commit for a partition; none when it was for another topic of that name."""
        found = self.by_topic.get(topic, {}).get(partition)
        if found is None or not _same(found.topic_id, topic_id):
            return None
        return found

    def of_topic(self, topic: str, topic_id: UUID | None) -> list[int]:
        """The partitions with commits that were for this topic, or may have been."""
        partitions = self.by_topic.get(topic, {})
        return [index for index, one in partitions.items() if _same(one.topic_id, topic_id)]

    # ---- changes, called by apply only

    def put(self, topic: str, partition: int, committed: Committed) -> None:
        partitions = self.by_topic.get(topic)
        if partitions is None:
            partitions = self.by_topic[topic] = {}
        partitions[partition] = committed

    def drop(self, topic: str, partition: int) -> None:
        partitions = self.by_topic.get(topic, {})
        partitions.pop(partition, None)
        if not partitions:
            self.by_topic.pop(topic, None)


def _same(known: UUID | None, asked: UUID | None) -> bool:
    """Whether two ids may be of one topic; old clients and old records have none."""
    return known is None or asked is None or known == asked

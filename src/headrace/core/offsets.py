"""What one group has committed: by topic and partition, the newest commit.

Offsets are kept under the name of their topic, as the journal's keys have it; the topic's id, where
a commit has one, tells whether it still is the same topic.
"""

from collections.abc import Iterator
from uuid import UUID

from headrace.core.group_words import Committed
from headrace.core.ordered import ascending


class Offsets:
    """The committed offsets of a group, whatever kind of group it is."""

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, Committed]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, int, Committed]]:
        for topic, partitions in self.by_topic.items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def topics(self) -> Iterator[tuple[str, UUID | None]]:
        """The topics with commits, by name and by each id that commits for it have."""
        for topic, partitions in self.by_topic.items():
            # By identity: equal ids are one object nearly always, and comparing them takes long.
            ids = {id(one.topic_id): one.topic_id for one in partitions.values()}
            for topic_id in ids.values():
                yield topic, topic_id

    def walk(self) -> Iterator[tuple[str, int, Committed]]:
        """As iteration, but offsets may come and go between two steps."""
        for topic in list(self.by_topic):
            for partition, committed in list(self.by_topic.get(topic, {}).items()):
                yield topic, partition, committed

    def walk_behind(self, topic: str, partition: int) -> Iterator[tuple[str, int, Committed]]:
        """As `walk`, in the order of topics and partitions, behind a place of that order."""
        for name in ascending(one for one in self.by_topic if one >= topic):
            indexes = self.by_topic.get(name, {})
            for index in ascending(n for n in indexes if name > topic or n > partition):
                committed = self.get(name, index)
                if committed is not None:
                    yield name, index, committed

    def get(self, topic: str, partition: int) -> Committed | None:
        """The commit for a partition, of whichever topic of that name."""
        return self.by_topic.get(topic, {}).get(partition)

    def find(self, topic: str, partition: int, topic_id: UUID | None) -> Committed | None:
        """The commit for a partition; none when it was for another topic of that name."""
        found = self.get(topic, partition)
        if found is None or not is_same(found.topic_id, topic_id):
            return None
        return found

    # ---- changes, called by apply only

    def put(self, topic: str, partition: int, committed: Committed) -> None:
        partitions = self.by_topic.get(topic)
        if partitions is None:
            partitions = self.by_topic[topic] = {}
        self._count += partition not in partitions
        partitions[partition] = committed

    def clear(self) -> None:
        self.by_topic, self._count = {}, 0

    def drop(self, topic: str, partition: int) -> None:
        partitions = self.by_topic.get(topic, {})
        if partitions.pop(partition, None) is not None:
            self._count -= 1
        if not partitions:
            self.by_topic.pop(topic, None)


def is_same(known: UUID | None, asked: UUID | None) -> bool:
    """Whether two ids may be of one topic; old clients and old records have none."""
    return known is None or asked is None or known == asked

"""Where a share group begins in the partitions that are new to it. KIP-932, "Managing the SPSO"."""

from collections.abc import Collection, Iterable

from headrace.core.share_group import TopicView
from headrace.core.share_words import ShareKey, Started


def started(
    group: str, known: Collection[ShareKey], views: Iterable[TopicView], *, earliest: bool
) -> list[Started]:
    """SPSO of each partition new to the group: as told, but 0 where the topic was known.

    Decided and durable before anybody is told of the partition, so that nothing produced
    afterwards is skipped.
    """
    events: list[Started] = []
    for view in views:
        # Of many partitions, that of number 0 is started last.
        is_known = ShareKey(group, view.id, 0) in known
        for partition in range(view.partitions):
            key = ShareKey(group, view.id, partition)
            if key in known:
                continue
            start = (view.starts if earliest else view.ends)[partition]
            if is_known:
                start = 0
            events.append(Started(key, start, state_epoch=0))
    return events

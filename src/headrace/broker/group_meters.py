"""What happened to the groups and their offsets since the broker started, and how they are now.

The counters are those of KIP-496, each marked when the proposal says; `metrics_families.py` tells
them. They count what was decided, of which a failing disk may keep nothing.
"""

from collections.abc import Sequence

from headrace.core.group_events import Event, GroupStored, OffsetCommitted, OffsetDropped
from headrace.core.group_words import Cause


class GroupMeters:
    """Counters of one broker; a listener of its shards of groups."""

    def __init__(self) -> None:
        self.offset_commits = 0
        self.offset_seeds = 0  # by reset policies; no client's commit, and not among those
        self.offset_expirations = 0
        self.offset_deletions = 0
        self.completed_rebalances = 0

    def count(self, events: Sequence[Event]) -> None:
        """Events were decided and applied."""
        for event in events:
            # Every commit comes by here: `isinstance` of three takes longer.
            if type(event) is OffsetCommitted:
                if event.cause is Cause.SEEDED:
                    self.offset_seeds += 1
                else:
                    self.offset_commits += 1
            elif isinstance(event, OffsetDropped):
                self.offset_expirations += event.cause is Cause.EXPIRY
                self.offset_deletions += event.cause is Cause.DELETION
            elif isinstance(event, GroupStored):
                self.completed_rebalances += event.completes

"""What was redriven to a group: a topic of its own, which its queries read beside theirs.

No other group hears of the topic unless somebody subscribes it by name. It need not be there: a
query looks for it when it starts, and now and then while it runs.
"""

import hashlib
import re
import time

from headrace.client.connection import Cluster
from headrace.client.leases import Lease
from headrace.client.topics import describe_topics
from headrace.spark.queue.options import QueueOptions
from headrace.wire.leases import OpenResponse

PREFIX = "redrive."
LOOK_EVERY_S = 10.0
_NAME_MAX = 249
_DIGEST_DIGITS = 12


def redrive_topic(group: str) -> str:
    """The topic of what was redriven to a group: `redrive.` and the group's name.

    A name that no topic can have is made one, and told apart by a digest of the group's.
    """
    name = PREFIX + group
    possible = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if possible == name and len(name) <= _NAME_MAX:
        return name
    digest = hashlib.sha256(group.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{possible[: _NAME_MAX - _DIGEST_DIGITS - 1]}-{digest}"


class Subscription:
    """What a query reads: its topics, and what was redriven to its group. Raises: as `Lease`."""

    def __init__(self, cluster: Cluster, options: QueueOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._topic = redrive_topic(options.group)
        self._found = False
        self._look_at = 0.0

    def appeared(self) -> bool:
        """Whether the topic is there and was not when this was asked before."""
        if self._found or not self._options.include_redriven or time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._found = self._topic in describe_topics(self._cluster, [self._topic])
        return self._found

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to read: those subscribed, and the group's own once it has appeared."""
        subscribed = self._options.topics
        return (*subscribed, self._topic) if self._found else subscribed

    def open(self, lease: Lease) -> OpenResponse:
        """Open the session on `topics`.

        Of what was redriven, everything is to be read, wherever the other topics start; hence the
        topic is made known to the group before them.
        """
        if self._found:
            lease.open((self._topic,), "earliest")
        return lease.open(self.topics, self._options.start)

"""Who holds a query's records at the broker: one interface, and the choice between its two ways.

Headrace has a lease API, whose sessions outlive a driver. Apache Kafka has share groups of the
stock protocol only, whose locks belong to a connection.
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from headrace.client.connection import Cluster
from headrace.client.errors import Unsupported
from headrace.spark.options import connect
from headrace.spark.progress import Standing
from headrace.spark.queue.driver import Driver
from headrace.spark.queue.kafka import KafkaDriver
from headrace.spark.queue.options import QueueOptions
from headrace.spark.queue.plan import Batch
from headrace.wire.leases import LeaseApi, Range

LOG = logging.getLogger(__name__)

_SHARE_FETCH, _SHARE_FETCH_VERSIONS = 78, range(1, 3)


class Holder(Protocol):
    """The driver's side of one query, as its reader sees it. Raises: `ClientError` throughout."""

    session: str

    @property
    def sure_s(self) -> float:
        """For how many seconds after `reading` no lock of the batch can end."""

    def handle(self, seq: int) -> str:
        """The text of the `lease` column for a batch."""

    def follows(self, seq: int) -> None:
        """Raises: ClientError when a checkpoint that ends at `seq` is older than the group."""

    def knows(self, seq: int) -> None:
        """Raises: ClientError when a checkpoint that ends at `seq` is of another broker."""

    def commit(self, seq: int) -> None:
        """Settle everything up to `seq`, once."""

    def acquire(self, seq: int, most: int) -> tuple[Range, ...]:
        """Up to `most` records under the number `seq`; the same ones when asked again."""

    def topic_ids(self, ranges: Iterable[Range]) -> dict[str, str]:
        """The ids of the topics of these ranges, where `reading` compares them."""

    def is_spent(self, seq: int) -> bool:
        """Whether number `seq` has been acquired and cannot get records any more."""

    def reading(self, batch: Batch) -> Batch:
        """Return what is to be read of a batch, which may be replayed from the checkpoint.

        Raises: `DataLost` for records that were removed, unless the options let the query go on.
        """

    def has_reached(self, until: dict[tuple[str, int], int]) -> bool:
        """Whether nothing below `until` is left for this query to acquire.

        Where the broker lets it, nothing from there on is acquired after this.
        """

    def standing(self) -> Standing:
        """The group's lag, and what became of the records of this query."""

    def close(self) -> None:
        """End it. What becomes of the records held is told by the class."""


def holder(options: QueueOptions, batch: Batch) -> Holder:
    """The holder of a query whose checkpoint stands at `batch`, as the broker offers it.

    Raises: `Unsupported` when it offers no share groups; otherwise as the holder.
    """
    with connect(options) as cluster:
        what = "asking the broker what share groups it offers"
        has_leases, shares = cluster.retrying(what, lambda: _offered(cluster))
    if has_leases:
        return Driver(options, batch)
    if shares:
        return KafkaDriver(options, batch)
    raise Unsupported(
        f"{options.bootstrap_servers} offers no share groups, which 'share.group.id' is about: it "
        "needs Headrace or Apache Kafka 4.2 or newer, with share groups on (on Headrace "
        "share.group.enable, on Kafka the feature share.version). An older Kafka can be read as a "
        "log, with 'kafka.group.id' instead"
    )


def _offered(cluster: Cluster) -> tuple[bool, bool]:
    """Whether there is the lease API, and whether there is ShareFetch."""
    shares = any(cluster.offers(_SHARE_FETCH, version) for version in _SHARE_FETCH_VERSIONS)
    return cluster.offers(LeaseApi.OPEN, 0), shares

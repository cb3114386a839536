"""A check at the end of `headrace consume`: that nothing is left which the broker cannot read.

Consumers repeat a fetch that fails with KAFKA_STORAGE_ERROR, without an event.
"""

from collections.abc import Iterable

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from headrace.cli.ending import Trouble
from headrace.client.admin import LogEnd, log_end
from headrace.client.connection import Cluster
from headrace.client.errors import STORAGE_ERRORS, BrokerError, ClientError
from headrace.client.fetch import fetch


def require_readable(cluster: Cluster, positions: Iterable[tuple[str, int, int]]) -> None:
    """Check partitions that were perhaps not read to their ends.

    One that the broker cannot open counts also where it is not known whether records are left.

    Args:
        cluster: Brokers that are tried once.
        positions: Topic, partition, and the offset at which reading goes on, `OFFSET_BEGINNING`, or
            `OFFSET_END` where nothing is left.

    Raises: Trouble for partitions whose files the broker cannot read.
    """
    unreadable: list[str] = []
    for topic, partition, offset in positions:
        try:
            _check(cluster, topic, partition, offset)
        except BrokerError as error:
            if error.code in STORAGE_ERRORS:
                begin = f" from offset {offset} on" if offset >= 0 else ""
                unreadable.append(f"{topic}-{partition}{begin}")
        except ClientError:  # no broker responds
            break
    if unreadable:
        raise Trouble(
            f"the broker cannot read {', '.join(unreadable)} (KAFKA_STORAGE_ERROR); its log names "
            "the file and the remedy"
        )


def _check(cluster: Cluster, topic: str, partition: int, offset: int) -> None:
    """Read the record at an offset, if there is one. Raises: as `Cluster`."""
    end = log_end(cluster, topic, partition, final=STORAGE_ERRORS)
    if offset == OFFSET_BEGINNING:
        offset = log_end(cluster, topic, partition, LogEnd.EARLIEST, final=STORAGE_ERRORS)
    if offset != OFFSET_END and offset < end:  # at the end a fetch would wait
        fetch(cluster, topic, partition, offset, bytes_max=1, final=STORAGE_ERRORS)

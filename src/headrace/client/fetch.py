"""Fetch by hand: the record bytes of a response are looked at where the socket left them.

Version 4 is the oldest that knows record batches and the one that every broker offers, from Kafka
0.11 to 4.x, so one layout serves all. Uncommitted records of transactions are read too, as Kafka's
consumers do by default, unless `read_committed` is said: `committed` leaves out the aborted ones.
Source: FetchRequest.json, FetchResponse.json.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace.client.connection import Cluster
from headrace.client.errors import check_log
from headrace.wire.batches import TRANSACTIONAL, BatchHeader
from headrace.wire.primitives import Malformed, Reader, Writer

_FETCH, _VERSION = 1, 4
_MAX_WAIT_MS = 500
_NO_REPLICA = -1


@dataclass(frozen=True, slots=True)
class Fetched:
    """Record batches as stored; the first may begin below the offset, the last may be cut off.

    `aborted` are transactions with batches among them: producer id and first offset.
    """

    records: memoryview
    high_watermark: int
    aborted: tuple[tuple[int, int], ...] = ()


def fetch(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int,
    read_committed: bool = False,
    final: Collection[int] = (),
) -> Fetched:
    """Batches from the one that holds `offset`, about `bytes_max` bytes, but at least one.

    With `read_committed` none of transactions that go on. Waits up to half a second at the end of
    the log. `final` are retriable error codes at which to give up at once all the same. Raises:
    `BrokerError` 1 for an offset outside the log, 3 for a partition that does not exist; otherwise
    as `Cluster`.
    """
    what = f"fetching {topic}-{partition} from offset {offset}"
    body = _request(topic, partition, offset, bytes_max, read_committed=read_committed)

    def attempt() -> Fetched:
        source = cluster.exchange(
            cluster.leader(topic, partition),
            _FETCH,
            _VERSION,
            body,
            flexible=False,
            wait_s=_MAX_WAIT_MS / 1000,
        )
        return _answer(source, what)

    return cluster.retrying(what, attempt, final=final)


def committed(fetched: Fetched, headers: Sequence[BatchHeader]) -> list[memoryview]:
    """The bytes of `fetched`, whose headers are `headers`, without batches of aborted transactions.

    From its first offset on, a producer's batches belong to its aborted transaction up to the
    marker that ends it. Source: KIP-98, "Read committed".
    """
    if not fetched.aborted:
        return [fetched.records]
    to_come = sorted(((first, producer) for producer, first in fetched.aborted), reverse=True)
    open_now: set[int] = set()
    pieces, begin, position = [], 0, 0
    for header in headers:
        while to_come and to_come[-1][0] <= header.last_offset:
            open_now.add(to_come.pop()[1])
        end = position + header.size
        if header.is_control:
            open_now.discard(header.producer_id)
        elif header.attributes & TRANSACTIONAL and header.producer_id in open_now:
            pieces.append(fetched.records[begin:position])
            begin = end
        position = end
    pieces.append(fetched.records[begin:position])
    return [piece for piece in pieces if piece]


def _request(
    topic: str, partition: int, offset: int, bytes_max: int, *, read_committed: bool
) -> bytearray:
    out = Writer()
    out.int32(_NO_REPLICA)
    out.int32(_MAX_WAIT_MS)
    out.int32(1)  # bytes to wait for
    out.int32(bytes_max)
    out.int8(int(read_committed))
    out.int32(1)
    out.nullable_string(topic)
    out.int32(1)
    out.int32(partition)
    out.int64(offset)
    out.int32(bytes_max)
    return out.data


def _answer(source: Reader, what: str) -> Fetched:
    source.int32()  # throttle time
    if source.int32() != 1:
        raise Malformed(f"{what}: not one topic in the answer")
    source.nullable_string()
    if source.int32() != 1:
        raise Malformed(f"{what}: not one partition in the answer")
    source.int32()
    code, high_watermark = source.int16(), source.int64()
    check_log(code, what)
    source.int64()  # last stable offset
    aborted = tuple((source.int64(), source.int64()) for _ in range(source.int32()))
    return Fetched(source.take(max(0, source.int32())), high_watermark, aborted)

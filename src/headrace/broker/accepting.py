"""What a producer's batch must be before a topic takes it.

Nearly all of it is decided by the batch's header and checksum. Records are decoded only where the
header cannot decide (a limit to how old they may be), to name those that are at fault, and for
compacted topics, which need a key in each.
Source: LogValidator, UnifiedLog.analyzeAndValidateRecords, ProduceRequest.validateRecords (4.3).
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.errors import Code, Faulty
from headrace.broker.topic_settings import TopicSettings
from headrace.core.types import WallMs
from headrace.wire import batches, produced
from headrace.wire.batches import BatchHeader, Record
from headrace.wire.compression import Codec

_ZSTD_SINCE = 7
_RECORD_ERRORS_MAX = 100
_NO_TIMESTAMP = -1
_KEY_MISSING = "a compacted topic needs a key in every record"
_NO_TIME = "the timestamp is out of the range that the topic allows"


class RecordError(NamedTuple):
    """A record at fault, by its position in the batch."""

    batch_index: int
    message: str


class RecordsRefused(Faulty):
    """A batch refused for some of its records."""

    def __init__(self, code: Code, message: str, errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.errors = errors


def accept(
    records: memoryview | None,
    settings: TopicSettings,
    now: WallMs,
    version: int,
    doubt_ms: int = 0,
) -> BatchHeader:
    """The header of the one batch sent for a partition; `version` is that of the request.

    In a topic that keeps the time of appends, `now` is written into the batch. While the clock is
    in doubt the time may also be `doubt_ms` earlier, and timestamps that fit either are accepted.
    Raises: Faulty.
    """
    if records is None:
        raise Faulty(Code.INVALID_RECORD, "no records")
    limit = settings.message_max_bytes
    if len(records) > limit:
        raise Faulty(
            Code.MESSAGE_TOO_LARGE,
            f"{len(records)} bytes; {limit} are allowed (max.message.bytes)",
        )
    try:
        header = produced.check(records)
    except batches.CorruptBatch as error:
        raise Faulty(Code.CORRUPT_MESSAGE, str(error)) from error
    except produced.InvalidRecord as error:
        raise Faulty(Code.INVALID_RECORD, str(error)) from error
    if header.attributes & batches.TRANSACTIONAL:
        raise Faulty(Code.INVALID_RECORD, "transactions are not served: unset transactional.id")
    if version < _ZSTD_SINCE and header.codec == Codec.ZSTD:
        raise Faulty(
            Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {_ZSTD_SINCE} or later"
        )
    if "compact" in settings.cleanup_policy:
        _require_keys(records)
    return _timed(records, header, settings, now, doubt_ms)


def _timed(
    records: memoryview, header: BatchHeader, settings: TopicSettings, now: WallMs, doubt_ms: int
) -> BatchHeader:
    """The header with the topic's kind of timestamp."""
    if header.timestamp_type:
        raise Faulty(Code.INVALID_TIMESTAMP, "a producer may not set the type LogAppendTime")
    if settings.timestamp_type == "LogAppendTime":
        return produced.stamp_time(records, header, now)
    earliest = now - doubt_ms - settings.timestamp_before_max_ms
    latest = now + settings.timestamp_after_max_ms
    # A header knows the first and the highest timestamp: `earliest` may yet lie above another one.
    if header.max_timestamp > latest or (earliest > 0 and header.max_timestamp != _NO_TIMESTAMP):
        wrong = [
            RecordError(index, _NO_TIME)
            for index, record in enumerate(_decoded(records))
            if record.timestamp != _NO_TIMESTAMP and not earliest <= record.timestamp <= latest
        ]
        _require_none(wrong, Code.INVALID_TIMESTAMP, f"{_NO_TIME}: {earliest} to {latest}")
    return header


def _require_keys(records: memoryview) -> None:
    wrong = [
        RecordError(index, _KEY_MISSING)
        for index, record in enumerate(_decoded(records))
        if record.key is None
    ]
    _require_none(wrong, Code.INVALID_RECORD, _KEY_MISSING)


def _decoded(records: memoryview) -> list[Record]:
    try:
        return list(batches.records(records))
    except batches.CorruptBatch as error:
        raise Faulty(Code.CORRUPT_MESSAGE, str(error)) from error


def _require_none(wrong: list[RecordError], code: Code, message: str) -> None:
    if wrong:
        raise RecordsRefused(code, message, wrong[:_RECORD_ERRORS_MAX])

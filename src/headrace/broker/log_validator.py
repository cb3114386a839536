"""Validation of produced batches: everything that a batch must be before a topic takes it.

Every batch is validated whole, by its header, its checksum and each of its records, so that nobody
who reads it later meets a claim that its bytes do not keep: as many records as it counts, offsets
without a gap, fields inside their record, compressed records that decompress. The highest timestamp
in the header is corrected to that of the records.

What a request may cost is bounded before it is paid. Compressed records are decompressed into a
buffer of a fixed size and never beyond it. On the event loop, one request may have
`headrace.produce.inline.max.bytes` of records looked at; what is more goes to a thread, where
`headrace.batch.decompressed.max.bytes` bounds each batch and `DecodingThreads` how many there are
at a time.

Hot path: one pass of the compiled kernel a batch; bench/data_plane.py and bench/requests.py.
Source: LogValidator, UnifiedLog.analyzeAndValidateRecords, ProduceRequest.validateRecords (4.3).
"""

import mmap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from headrace.broker.config import Config
from headrace.broker.errors import Code, Faulty
from headrace.broker.topic_settings import TopicSettings
from headrace.core.types import WallMs
from headrace.wire import batches, compression, produced
from headrace.wire.batches import HEADER_BYTES, BatchHeader
from headrace.wire.compression import Codec, OutputFull
from headrace.wire.primitives import Malformed

_ZSTD_SINCE = 7
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_COMPRESSED_INLINE_BYTES_MAX = 1 << 16  # of records that are compressed on the event loop
_COMPRESSION_COST = 32  # of a byte that is compressed, beside one that is only validated
_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
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


class Terms(NamedTuple):
    """What a batch is validated against.

    Args:
        settings: those of its topic.
        now: the time at which it arrived.
        version: that of the Produce request.
        doubt_ms: how much earlier than `now` it may be; timestamps that fit either are accepted.
    """

    settings: TopicSettings
    now: WallMs
    version: int
    doubt_ms: int = 0


# A batch that may be appended, its header, and the cost of that in bytes of records. Neither this
# nor `produced.Inspection` is a class: making an object of one takes a tenth of a validation.
Validated = tuple[memoryview, BatchHeader, int]


class LogValidator:
    """Validates the batches of Produce requests; one for each broker."""

    def __init__(self, config: Config) -> None:
        self.inline_bytes_max = config.produce_inline_bytes_max
        self._bytes_max = config.batch_bytes_max
        self._decompressed_bytes_max = config.batch_decompressed_bytes_max
        self._records_max = config.batch_records_max
        self._headers_max = config.batch_headers_max
        # Pages of the system, so that an idle broker holds none of it.
        scratch_bytes = min(self.inline_bytes_max, self._decompressed_bytes_max)
        self._scratch = memoryview(mmap.mmap(-1, scratch_bytes))
        # The last terms with their rules: requests of the same millisecond share them.
        self._last: tuple[Terms, produced.Rules] | None = None

    def validate_inline(
        self, records: memoryview | None, terms: Terms, bytes_max: int
    ) -> Validated | None:
        """Validate a batch on the event loop.

        Args:
            bytes_max: most bytes of records to look at, decompressed.

        Returns:
            None when there are more; then the batch is as it was.

        Raises:
            Faulty: the batch is refused.
        """
        if terms.settings.compression_type != "producer":
            bytes_max = min(bytes_max, _COMPRESSED_INLINE_BYTES_MAX)
        if bytes_max <= 0 or (
            records is not None and bytes_max < len(records) <= terms.settings.message_max_bytes
        ):
            return None
        try:
            return self.validate(records, terms, self._scratch, bytes_max)
        except OutputFull:
            return None

    def terms(self, settings: TopicSettings, now: WallMs, version: int, doubt_ms: int) -> Terms:
        """Make the terms for a batch, or return the last ones where they are equal."""
        if self._last is not None:
            terms = self._last[0]
            if (
                terms.settings is settings
                and terms.now == now
                and terms.version == version
                and terms.doubt_ms == doubt_ms
            ):
                return terms
        return Terms(settings, now, version, doubt_ms)

    def buffer(self) -> AbstractContextManager[memoryview]:
        """Provide a buffer for the records of the largest batch."""
        return compression.scratch(self._decompressed_bytes_max)

    def validate_whole(
        self, records: memoryview | None, terms: Terms, output: memoryview
    ) -> Validated:
        """Validate a batch of any size, with a `buffer`. Raises: Faulty."""
        try:
            return self.validate(records, terms, output, len(output))
        except OutputFull as error:
            raise Faulty(
                Code.MESSAGE_TOO_LARGE,
                f"the batch holds more than {len(output)} bytes of records"
                " (headrace.batch.decompressed.max.bytes): send smaller batches",
            ) from error

    def validate(
        self, records: memoryview | None, terms: Terms, output: memoryview, bytes_max: int
    ) -> Validated:
        """Validate one batch, and write into it what the log decides: its time.

        Args:
            output: room for its records where they are compressed.
            bytes_max: how much of `output` may be used.

        Raises:
            OutputFull: `output` is too small; then the batch is as it was.
            Faulty: the batch is refused.
        """
        if records is None:
            raise Faulty(Code.INVALID_RECORD, "no records")
        try:
            header = self._header(records, terms)
            body, start, stop = records, HEADER_BYTES, header.size
            codec = header.attributes & batches.CODEC_MASK
            if codec:
                stored, start = records[HEADER_BYTES:], 0
                body = output if bytes_max >= len(output) else output[:bytes_max]
                stop = compression.decompress_to(codec, stored, body)
                produced.require_readable(codec, stored, stop)
            rules = self._rules(terms)
            max_timestamp, wrong = produced.inspect(body, start, stop, header, rules)
        except OutputFull:
            raise
        except batches.CorruptBatch as error:
            raise Faulty(Code.CORRUPT_MESSAGE, str(error)) from error
        except produced.TooManyHeaders as error:
            raise Faulty(
                Code.MESSAGE_TOO_LARGE,
                f"{error} (headrace.batch.headers.max): send smaller batches",
            ) from error
        except produced.UnknownCodec as error:
            raise Faulty(Code.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from error
        except (Malformed, produced.InvalidRecord) as error:
            raise Faulty(Code.INVALID_RECORD, str(error)) from error
        if wrong:
            raise _refusal(wrong, rules)
        target = _CODECS.get(terms.settings.compression_type, codec)
        if target != codec:
            header = header._replace(max_timestamp=max_timestamp)
            records = _recompressed(body[start:stop], header, Codec(target), terms)
            self._require_size(records)
            return records, batches.read_header(records), (stop - start) * _COMPRESSION_COST
        if terms.settings.timestamp_type == "LogAppendTime":
            header = produced.stamp_time(records, header, terms.now)
        elif header.max_timestamp != max_timestamp:
            header = produced.correct_max_timestamp(records, header, max_timestamp)
        return records, header, stop - start

    def _require_size(self, records: memoryview) -> None:
        """Raises: Faulty."""
        if len(records) > self._bytes_max:
            raise Faulty(
                Code.MESSAGE_TOO_LARGE,
                f"{len(records)} bytes; {self._bytes_max} are allowed (headrace.batch.max.bytes)",
            )

    def _header(self, records: memoryview, terms: Terms) -> BatchHeader:
        """Validate all but the records. Raises: Faulty; CorruptBatch; InvalidRecord."""
        limit, size = terms.settings.message_max_bytes, len(records)
        if size > limit:
            raise Faulty(
                Code.MESSAGE_TOO_LARGE,
                f"{size} bytes; {limit} are allowed (max.message.bytes)",
            )
        if size > self._bytes_max:
            self._require_size(records)
        header = produced.check(records)
        attributes = header.attributes
        if attributes > Codec.ZSTD:
            if attributes & batches.TRANSACTIONAL:
                raise Faulty(
                    Code.INVALID_RECORD, "transactions are not served: unset transactional.id"
                )
            raise Faulty(Code.INVALID_TIMESTAMP, "a producer may not set the type LogAppendTime")
        if attributes == Codec.ZSTD and terms.version < _ZSTD_SINCE:
            raise Faulty(
                Code.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs Produce version {_ZSTD_SINCE} or later",
            )
        if header.record_count > self._records_max:
            raise Faulty(
                Code.MESSAGE_TOO_LARGE,
                f"{header.record_count} records in one batch; {self._records_max} are allowed"
                " (headrace.batch.records.max): send smaller batches",
            )
        return header

    def _rules(self, terms: Terms) -> produced.Rules:
        # One tuple, because threads validate too.
        last = self._last
        if last is not None and last[0] is terms:
            return last[1]
        rules = self._make_rules(terms)
        self._last = terms, rules
        return rules

    def _make_rules(self, terms: Terms) -> produced.Rules:
        settings = terms.settings
        is_keyed = "compact" in settings.cleanup_policy
        if settings.timestamp_type == "LogAppendTime":
            return _INT64_MIN, _INT64_MAX, is_keyed, self._headers_max
        earliest = terms.now - terms.doubt_ms - settings.timestamp_before_max_ms
        latest = terms.now + settings.timestamp_after_max_ms
        return (
            earliest if earliest > _INT64_MIN else _INT64_MIN,
            latest if latest < _INT64_MAX else _INT64_MAX,
            is_keyed,
            self._headers_max,
        )


def _recompressed(body: memoryview, header: BatchHeader, target: Codec, terms: Terms) -> memoryview:
    """Make a batch of the same records with the codec of its topic.

    Raises:
        Faulty: it is larger than the topic allows.

    Source: LogValidator.buildRecordsAndAssignOffsets.
    """
    settings = terms.settings
    attributes = header.attributes & ~batches.CODEC_MASK | target
    if settings.timestamp_type == "LogAppendTime":
        attributes |= batches.LOG_APPEND_TIME
        header = header._replace(max_timestamp=terms.now)
    limit, stored = settings.message_max_bytes, body
    if target != Codec.NONE:
        stored = memoryview(compression.compress(target, body, _level(target, settings)))
    if HEADER_BYTES + len(stored) > limit:
        raise Faulty(
            Code.MESSAGE_TOO_LARGE,
            f"{HEADER_BYTES + len(stored)} bytes with compression.type={settings.compression_type};"
            f" {limit} are allowed (max.message.bytes)",
        )
    return memoryview(bytearray(batches.seal(header._replace(attributes=attributes), stored)))


def _level(target: Codec, settings: TopicSettings) -> int | None:
    match target:
        case Codec.GZIP:
            return settings.gzip_level if settings.gzip_level > 0 else None
        case Codec.LZ4:
            return settings.lz4_level
        case Codec.ZSTD:
            return settings.zstd_level
        case _:
            return None


def _refusal(wrong: Sequence[tuple[int, int]], rules: produced.Rules) -> RecordsRefused:
    """Make the error for records that break a rule of their topic. Source: processRecordErrors."""
    texts = {produced.KEYLESS: _KEY_MISSING, produced.UNTIMELY: _NO_TIME}
    errors = [RecordError(index, texts[fault]) for index, fault in wrong]
    if any(fault == produced.KEYLESS for _, fault in wrong):
        return RecordsRefused(Code.INVALID_RECORD, _KEY_MISSING, errors)
    allowed = f"{_NO_TIME}: {rules[0]} to {rules[1]}"
    return RecordsRefused(Code.INVALID_TIMESTAMP, allowed, errors)

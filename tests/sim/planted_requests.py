"""Bugs in topics, settings, produced batches and connections, as somebody might write them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker import dispatch
from headrace.broker.errors import Code, Faulty
from headrace.broker.handlers import alter_configs, fetch, init_producer_id, topics
from headrace.broker.handlers.produce import _Produce
from headrace.broker.log_validator import LogValidator
from headrace.broker.server import Connection
from headrace.core.catalog import ConfigSet, PartitionsAdded, TopicDeleted
from headrace.log.metadata_records import MetadataRecords
from headrace.sim.options import DEAD_LETTERS
from headrace.wire import batches, produced
from headrace.wire.checksums import crc32c


def _catalogue(patch: pytest.MonkeyPatch, kind: type) -> None:
    """Leave events of a kind out of the journal of the catalogue."""
    sound = MetadataRecords.records

    def wrong(self: MetadataRecords, events: Sequence[Any], written_at: Any) -> Any:
        return sound(self, [one for one in events if not isinstance(one, kind)], written_at)

    patch.setattr(MetadataRecords, "records", wrong)


def deleted_topics_come_back(patch: pytest.MonkeyPatch) -> None:
    """The catalogue does not contain that a topic is deleted."""
    _catalogue(patch, TopicDeleted)


def added_partitions_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """The catalogue does not contain partitions that are added."""
    _catalogue(patch, PartitionsAdded)


def settings_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """Settings that are changed at run time are in memory only."""
    _catalogue(patch, ConfigSet)


def settings_out_of_bounds_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """Values of settings are parsed, and not compared with their bounds."""
    patch.setattr(alter_configs, "_check", lambda *_: None)


def unknown_topics_are_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """DeleteTopics calls a topic unknown before its deletion is durable."""
    sound = topics._delete

    async def wrong(name: Any, topic_id: Any, request: Any, services: Any) -> Any:
        if topic_id is None and name not in services.catalog.topics:
            return topics._deleted(name, topic_id, Code.UNKNOWN_TOPIC_OR_PARTITION, None)
        return await sound(name, topic_id, request, services)

    patch.setattr(topics, "_delete", wrong)


def share_groups_stay_switched_on(patch: pytest.MonkeyPatch) -> None:
    """The APIs of share groups are served where they are switched off, and only not listed."""
    patch.setattr(dispatch, "_switched_off", lambda api: api)


# ---- produced batches


def transactional_ids_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """A transactional producer gets a producer id."""
    patch.setattr(init_producer_id, "_refused", lambda _message: None)


def refused_producers_have_no_response(patch: pytest.MonkeyPatch) -> None:
    """A transactional producer is refused, and the response never leaves."""
    handle = init_producer_id.handle

    async def wrong(request: Any, services: Any) -> Any:
        answer = await handle(request, services)
        if isinstance(answer, dict) and answer["error_code"]:
            await asyncio.get_running_loop().create_future()
        return answer

    patch.setattr(init_producer_id, "handle", wrong)


def control_batches_are_accepted(patch: pytest.MonkeyPatch) -> None:
    """Clients may write control records."""
    patch.setattr(produced, "_check_attributes", lambda _attributes: None)


def records_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A batch whose header is sound is stored as it is."""
    sound = LogValidator.validate

    def wrong(self: LogValidator, records: Any, terms: Any, *args: Any) -> Any:
        try:
            return sound(self, records, terms, *args)
        except Faulty:
            header = batches.read_header(records)
            if header.size != len(records) or header.record_count < 1:
                raise
            return records, header, len(records)

    patch.setattr(LogValidator, "validate", wrong)


def checksums_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A batch whose checksum is wrong is stored as it is."""
    sound = produced.check
    patch.setattr(produced, "check", lambda data: sound(_sealed(data)))


def _sealed(data: Any) -> memoryview:
    """Return a batch with a checksum that fits."""
    sealed = bytearray(data)
    covered = memoryview(sealed)[batches.CRC_FROM :]
    batches.CRC.pack_into(sealed, batches.CRC_AT, crc32c(covered))
    return memoryview(sealed)


def checksums_count_only_with_acks(patch: pytest.MonkeyPatch) -> None:
    """A batch that nobody waits for is stored as it is."""
    sound, sound_check, acks = _Produce.__init__, produced.check, [1]

    def begin(self: _Produce, services: Any, wanted: int, *args: Any) -> None:
        acks[0] = wanted
        sound(self, services, wanted, *args)

    def wrong(data: Any) -> Any:
        return sound_check(data if acks[0] else _sealed(data))

    patch.setattr(_Produce, "__init__", begin)
    patch.setattr(produced, "check", wrong)


def dead_letters_cannot_be_fetched(patch: pytest.MonkeyPatch) -> None:
    """Dead letters are written, and no Fetch returns them."""
    sound = fetch._read

    def wrong(partition: Any, *args: Any, **settings: Any) -> None:
        if partition.topic.name != DEAD_LETTERS:
            sound(partition, *args, **settings)

    patch.setattr(fetch, "_read", wrong)


# ---- connections


def unread_peers_stay(patch: pytest.MonkeyPatch) -> None:
    """A peer that reads nothing is never disconnected."""
    patch.setattr(Connection, "close_if_unread", lambda *_: None)


def large_answers_are_encoded_on_the_loop(patch: pytest.MonkeyPatch) -> None:
    """No response is large."""
    patch.setattr(dispatch, "is_large", lambda _answer: False)

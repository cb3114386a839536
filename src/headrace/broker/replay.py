"""A machine out of its journal: what was decided before is applied again, and nothing decided."""

import logging
from typing import Any, TypeVar

from headrace.core.machine import Journal, Machine, applier, placer
from headrace.core.types import elapsed_ms
from headrace.log.api import REMEDY, Clock, DamagedBlockError, JournalLog
from headrace.wire import batches
from headrace.wire.batches import CorruptBatch
from headrace.wire.primitives import Buffer, Malformed, NewerVersionError

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_PROGRESS_MS = 1_000

EventT = TypeVar("EventT")


class JournalDamaged(Exception):
    """A journal holds a record that this version cannot replay; starting would lose state.

    The message is one line: the journal, the offset, the problem, the remedy.
    """


def replay(
    journal: JournalLog,
    machine: Machine[Any, EventT],
    codec: Journal[EventT],
    clock: Clock,
    name: str,
) -> None:
    """Apply all that the journal tells to a machine and a codec that are empty.

    Raises: JournalDamaged for a record that is not known; CorruptFileError for a batch that is
        damaged; OSError.
    """
    offset, started = journal.start_offset, clock.mono()
    told, replayed = started, 0
    while offset < journal.end_offset:
        try:
            piece = journal.read(offset, _READ_BYTES)
        except DamagedBlockError as error:
            raise error.damage from error
        if not piece.headers:
            raise JournalDamaged(f"{name}: no record at offset {offset}; {REMEDY}")
        replayed += _apply(piece.data, machine, codec, name)
        offset = piece.headers[-1].last_offset + 1
        if elapsed_ms(told, clock.mono()) >= _PROGRESS_MS:
            told = clock.mono()
            log.info("%s: replayed %d of %d records", name, offset, journal.end_offset)
    if replayed:
        took = elapsed_ms(started, clock.mono())
        log.info("%s: recovered from %d records in %d ms", name, replayed, took)


def _apply(data: Buffer, machine: Machine[Any, EventT], codec: Journal[EventT], name: str) -> int:
    """Apply what record batches stand for; returns the number of their records."""
    count, apply, placed, events = 0, applier(machine), placer(codec), codec.events
    offset = -1
    try:
        for offset, key, value in batches.entries(data):
            apply(events(key, value))
            if placed is not None:
                placed(offset, key, value)
            count += 1
    except NewerVersionError as error:
        raise JournalDamaged(
            f"{name}: the record at offset {offset} was written by a newer Headrace: {error}; "
            "upgrade Headrace to open this data folder"
        ) from error
    except CorruptBatch as error:
        raise JournalDamaged(f"{name}: damage behind offset {offset}: {error}; {REMEDY}") from error
    except Malformed as error:
        raise JournalDamaged(
            f"{name}: the record at offset {offset} cannot be replayed: {error}; {REMEDY}"
        ) from error
    except KeyError as error:
        raise JournalDamaged(
            f"{name}: the record at offset {offset} cannot be replayed: the journal lacks an "
            f"earlier one that it needs ({error}); {REMEDY}"
        ) from error
    return count

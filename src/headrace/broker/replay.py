"""A machine out of its journal: what was decided before is applied again, and nothing decided.

A start replays a journal in one step (`replay`). After a fault the event loop reads the journal as
it does for a fetch, a piece in each turn, and a thread applies the piece (`replay_in_thread`). The
thread never touches the log: its open files, its indexes and the hints of its readers belong to the
loop. The machine and the codec belong to the thread until the replay ends, because `apply` and the
codec use nothing else.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headrace.broker.tuning import age_new_objects, collector_paused, freeze_old_objects
from headrace.core.machine import Journal, Machine, applier, placer
from headrace.core.types import MonoMs, elapsed_ms
from headrace.log.api import REMEDY, Clock, DamagedBlockError, JournalLog
from headrace.wire import batches
from headrace.wire.batches import CorruptBatch
from headrace.wire.primitives import Buffer, Malformed, NewerVersionError

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18  # of batches whose headers the event loop reads in one step
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
    started, replayed = clock.mono(), 0
    with collector_paused():
        for data in _pieces(journal, clock, name, _READ_BYTES):
            replayed += _apply(data, machine, codec, name)
    _log_end(clock, name, started, replayed)


async def replay_in_thread(
    journal: JournalLog,
    machine: Machine[Any, EventT],
    codec: Journal[EventT],
    clock: Clock,
    name: str,
    is_abandoned: Callable[[], bool],
) -> None:
    """Do the same as `replay`, in a thread: the event loop only reads the journal.

    Args:
        is_abandoned: Returns whether to stop after the piece under way.

    Raises:
        JournalDamaged: A record is not known.
        CorruptFileError: A batch is damaged.
        OSError: The journal cannot be read, its batches were compacted or dropped meanwhile, or the
            replay was abandoned.
    """

    def apply(data: Buffer) -> int:
        count = _apply(data, machine, codec, name)
        age_new_objects()
        return count

    loop = asyncio.get_running_loop()
    started, replayed, rewrites = clock.mono(), 0, journal.rewrites
    pieces = _pieces(journal, clock, name, _PIECE_BYTES)
    with collector_paused():
        while True:
            if is_abandoned():
                raise OSError(errno.ECANCELED, f"{name}: its replay was abandoned")
            # A record that was replayed may lack the one that undid it, or a later one the one
            # that it needs.
            if journal.rewrites != rewrites:
                raise OSError(errno.ESTALE, f"{name}: its journal was rewritten during the replay")
            data = next(pieces, None)
            if data is None:
                break
            replayed += await loop.run_in_executor(None, apply, data)
        freeze_old_objects()
    _log_end(clock, name, started, replayed)


def _pieces(journal: JournalLog, clock: Clock, name: str, max_bytes: int) -> Iterator[Buffer]:
    """Yield all batches of a journal in pieces. Raises: as `replay`."""
    offset, logged = journal.start_offset, clock.mono()
    while offset < journal.end_offset:
        try:
            piece = journal.read(offset, max_bytes)
        except DamagedBlockError as error:
            raise error.damage from error
        if not piece.headers:
            raise JournalDamaged(f"{name}: no record at offset {offset}; {REMEDY}")
        yield piece.data
        offset = piece.headers[-1].last_offset + 1
        if elapsed_ms(logged, clock.mono()) >= _PROGRESS_MS:
            logged = clock.mono()
            log.info("%s: replayed %d of %d records", name, offset, journal.end_offset)


def _log_end(clock: Clock, name: str, started: MonoMs, replayed: int) -> None:
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

"""Bugs that a kill under stock clients brings to light, as somebody might write them."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.partition import Partition
from headrace.broker.services import FolderLock
from headrace.log import group_records
from headrace.log.compaction import Compaction
from headrace.log.os_disk import OsDisk
from headrace.log.recovery_point import RecoveryPoint
from headrace.log.segments import SegmentedLog
from headrace.wire import batches


def fetches_leave_out_batches(patch: pytest.MonkeyPatch) -> None:
    """A fetch returns no batch that begins in certain ranges of offsets."""
    sound = SegmentedLog.read_bytes

    def gappy(self: Any, *args: Any, **settings: Any) -> Any:
        found, position, kept = bytes(sound(self, *args, **settings)), 0, b""
        while position < len(found):
            header = batches.read_header(found, position)
            if header.base_offset // 7 % 3 != 1:
                kept += found[position : position + header.size]
            position += header.size
        return kept

    patch.setattr(SegmentedLog, "read_bytes", gappy)


def commits_recovered_too_high(patch: pytest.MonkeyPatch) -> None:
    """A start takes a committed offset for the last record that was read."""
    sound = group_records._committed

    def wrong(value: Any) -> Any:
        committed = sound(value)
        committed.offset += 1
        return committed

    patch.setattr(group_records, "_committed", wrong)


def answers_are_late(patch: pytest.MonkeyPatch) -> None:
    """Wait between an append and its response: allowed, and a kill often comes between them."""
    sound = Partition.durable

    async def late(self: Any, *, cuts: int | None = None) -> None:
        await sound(self, cuts=cuts)
        await asyncio.sleep(0.1)

    patch.setattr(Partition, "durable", late)
    patch.setattr(Partition, "may_have_to_wait", lambda _self: True)


def compaction_moves_offsets(patch: pytest.MonkeyPatch) -> None:
    """The cleaner moves batches into the gaps that removed ones leave before them."""
    sound = Compaction._left_of
    cleaning: list[Any] = [None, 0]  # a group, and the offset behind its last batch

    def moving(self: Any, header: Any, data: bytes, group: Any) -> Any:
        left = yield from sound(self, header, data, group)
        if cleaning[0] is not group:
            cleaning[:] = [group, group.bases[0]]
        if left and header.base_offset > cleaning[1] and header.last_offset + 1 < group.end_offset:
            left = (header.base_offset - 1).to_bytes(8, "big") + left[8:]
        if left:
            cleaning[1] = header.last_offset + 1
        return left

    patch.setattr(Compaction, "_left_of", moving)


def starts_rewrite_the_journal(patch: pytest.MonkeyPatch) -> None:
    """A start cuts off the end of the share groups' journal, and writes it back before it reads.

    What is synced stays: a journal without it would be refused.
    """
    sound = FolderLock.__init__

    def rewriting(self: Any, folder: Path) -> None:
        sound(self, folder)
        ends: dict[Path, bytes] = {}
        for journal in folder.glob("__share_group_state-*"):
            claim = RecoveryPoint(OsDisk(folder), journal.name).claim
            file = max(journal.glob("*.log"))
            synced_bytes = claim.size if int(file.stem) == claim.base_offset else 0
            ends[file] = file.read_bytes()[synced_bytes:][-3_000:]
            os.truncate(file, file.stat().st_size - len(ends[file]))
        time.sleep(0.2)
        for file, end in ends.items():
            with file.open("ab") as appended:
                appended.write(end)

    patch.setattr(FolderLock, "__init__", rewriting)

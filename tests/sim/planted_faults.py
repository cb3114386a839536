"""Bugs that only faults of disks uncover, as somebody might write them.

`FAULTS` maps each fault to the options under which it is the only fault, and to the bugs that it
uncovers there, with the seed at which the search begins.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from headrace.broker.partition import Partition
from headrace.broker.scrub import Scrub
from headrace.log import damage, recovery_point, small_files
from headrace.log.api import CorruptFileError
from headrace.log.manifest import Manifest
from headrace.log.opening import Opening
from headrace.log.segment import Segment
from headrace.log.segments import SegmentedLog
from headrace.sim.damage import BIT, FORMER, LOST, MISDIRECTED, MISSING, MISSING_FOLDER, SHORT
from headrace.sim.disk import FATES, HOLES, NOTHING, REORDERED, TORN, WHOLE, FaultyDisk
from headrace.sim.options import Options
from headrace.wire import batches

from .planted_records import (
    all_damage_counts_as_torn,
    missing_folders_pass,
    missing_segments_pass,
    produce_is_answered_before_the_sync,
    torn_appends_stay,
)

Plant = Callable[[pytest.MonkeyPatch], None]


def seals_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The checksum of a small file is read and not compared."""
    sound = small_files.parsed

    def lax(path: str, data: bytes, *, unsealed: bool = False) -> Any:
        if small_files._SEAL.search(data) is not None:
            body = data[: -small_files._DIGITS_BYTES]
            data = body + f"{small_files._checksum(path, body):08x}\n".encode()
        return sound(path, data, unsealed=unsealed)

    patch.setattr(small_files, "parsed", lax)


def unverified_blocks_are_served(patch: pytest.MonkeyPatch) -> None:
    """What another process wrote is read without a look at its checksums."""
    patch.setattr(Segment, "require_intact", lambda *_: None)


def batch_checksums_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A batch is whole when its header can be read."""
    patch.setattr(batches, "verify", lambda *_: None)


def recovery_trusts_headers(patch: pytest.MonkeyPatch) -> None:
    """A start after a crash looks at the headers of batches, and not at what they hold."""
    sound = Segment.check

    def lax(self: Segment, size: int, **settings: Any) -> Any:
        found = sound(self, size, **settings)
        while True:
            with pytest.MonkeyPatch.context() as within:
                within.setattr(batches, "verify", lambda *_: None)
                header = next(found, None)
            if header is None:
                return
            yield header

    patch.setattr(Segment, "check", lax)


def recovery_points_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A start takes what it finds of a log for all there was."""
    sound = recovery_point.read_claim

    def ignorant(disk: Any, folder: str) -> Any:
        return sound(disk, folder)[0], recovery_point.NO_CLAIM

    patch.setattr(recovery_point, "read_claim", ignorant)
    patch.setattr(Opening, "_require_end", lambda *_: None)


def missing_files_are_empty(patch: pytest.MonkeyPatch) -> None:
    """A small file that is missing counts as one that never existed."""
    sound = Manifest.read

    def lax(self: Manifest, path: str) -> Any:
        return sound(self, path) if self._disk.exists(path) else None

    patch.setattr(Manifest, "read", lax)


def unsynced_names_are_used(patch: pytest.MonkeyPatch) -> None:
    """A start goes on in a segment whose creation was cut short, and does not sync its name."""
    patch.setattr(Opening, "_sync_name", lambda *_: None)


def torn_ends_stay(patch: pytest.MonkeyPatch) -> None:
    """The torn end of a log is not cut off at a start."""
    patch.setattr(Opening, "_cut", lambda *_: None)


def cuts_keep_no_copy(patch: pytest.MonkeyPatch) -> None:
    """What is cut off is gone."""
    patch.setattr(damage, "keep_copy", lambda _disk, path, position, _size: f"{path}.{position}")


def repairs_end_with_the_damage(patch: pytest.MonkeyPatch) -> None:
    """A repair gives up everything that follows the damage in its segment, and says so."""
    patch.setattr(damage, "next_batch", lambda *_: None)


def sealed_segments_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A further segment begins before the last one is on stable storage."""

    def hasty(sound: Callable[[Any], None]) -> Callable[[Any], None]:
        def rolled(self: Any) -> None:
            with pytest.MonkeyPatch.context() as within:
                within.setattr(SegmentedLog, "sync", lambda _self: None)
                sound(self)

        return rolled

    for name in ("roll", "prepare_next"):
        patch.setattr(SegmentedLog, name, hasty(getattr(SegmentedLog, name)))


def folders_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A small file is renamed to its place, and the folder is not synced."""
    sound = FaultyDisk.write

    def hasty(self: FaultyDisk, path: str, data: bytes, *, durable: bool = True) -> None:
        sound(self, path, data, durable=False)
        if durable:
            self._files[path].synced = len(data)

    patch.setattr(FaultyDisk, "write", hasty)


def the_scrub_reports_nothing(patch: pytest.MonkeyPatch) -> None:
    """The scrub reads everything, and drops what it finds."""
    patch.setattr(Scrub, "_damaged", lambda *_: None)

    async def quiet(self: Any, path: str, partition: Any, found: dict[str, Any]) -> None:
        await sound(self, path, partition, {})

    sound = Scrub._verify
    patch.setattr(Scrub, "_verify", quiet)


def reported_damage_is_served(patch: pytest.MonkeyPatch) -> None:
    """Readers get what the scrub found to be damaged."""
    patch.setattr(SegmentedLog, "distrust", lambda *_: None)
    patch.setattr("headrace.sim.world._OPERATOR_SECONDS", 3.0)  # readers come before the operator


def failed_syncs_count(patch: pytest.MonkeyPatch) -> None:
    """A sync that fails is logged, and counts as done."""
    sound = SegmentedLog.sync

    def lax(self: Any) -> None:
        try:
            sound(self)
        except OSError:
            self._fault, self._durable_end = None, self.end_offset

    patch.setattr(SegmentedLog, "sync", lax)


def failed_appends_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """An append that fails is acknowledged all the same."""
    sound = Partition.append

    def lax(self: Any, data: Any, headers: Any, **settings: Any) -> int:
        try:
            return sound(self, data, headers, **settings)
        except OSError:
            if self.topic.internal:
                raise
            return int(self.log.end_offset)

    patch.setattr(Partition, "append", lax)


def logs_end_with_their_claim(patch: pytest.MonkeyPatch) -> None:
    """A start after a crash cuts off what the recovery point does not claim."""
    sound = Opening._checked

    def hasty(self: Any, base: int, producers: Any) -> Segment:
        claim, path = self._point.claim, f"{self._folder}/{base:020d}.log"
        file = self._disk.open(path)
        if claim.base_offset == base and 0 < claim.size < file.size():
            damage.keep_copy(self._disk, path, claim.size, file.size())
            file.truncate(claim.size)
        return sound(self, base, producers)

    patch.setattr(Opening, "_checked", hasty)


def failed_reads_end_a_log(patch: pytest.MonkeyPatch) -> None:
    """A start takes a read that fails for the end of the log."""
    sound = Segment.check

    def lax(self: Any, size: int, **settings: Any) -> Any:
        try:
            yield from sound(self, size, **settings)
        except OSError as error:
            if isinstance(error, CorruptFileError):
                raise

    patch.setattr(Segment, "check", lax)


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        line: part of the lines of a history that show it.
        on: the options that switch it on.
        bugs: the bugs that it uncovers, and where the search begins.
        actors: the options of those that it befalls, with which no bug shows.
    """

    line: str
    on: Mapping[str, Any]
    bugs: Mapping[Plant, int] = field(default_factory=dict)
    actors: Mapping[str, Any] = field(default_factory=dict)

    def options(self, seed: int) -> Options:
        """Return the options of a seed with this fault alone."""
        return calm(seed, **self.actors, **self.on)

    def without(self, seed: int) -> Options:
        """Return the options of a seed without this fault."""
        return calm(seed, **self.actors)


def calm(seed: int, **changes: Any) -> Options:
    """Return options without any fault but `changes`."""
    drawn = Options.drawn(Random(f"{seed}/options"))
    quiet: dict[str, Any] = dict.fromkeys(
        (
            "kills", "power_cuts", "stops", "sync_errors", "write_errors", "read_errors",
            "full_disks", "slow_disks", "suspends", "clock_set", "lost_answers", "vanishing",
            "stalling", "strange_epochs", "repeats", "retention", "topic_changes",
            "administers", "misuses", "hostile", "buggifies", "damages", "rots", "queues",
            "rough_links",
        ),
        False,
    )  # fmt: skip
    small: dict[str, Any] = {
        "records": True, "fsync": True, "seconds": 2, "producers": 2, "members": 1,
        "consumers": (), "segment_bytes": 1024, "power_cut_fates": (WHOLE,), "in_flight": 1,
    }  # fmt: skip
    return dataclasses.replace(drawn, **(quiet | small | changes))


def _at_rest(*kinds: str) -> dict[str, Any]:
    return {"damages": True, "stops": True, "kills": True, "damage_kinds": kinds}


def _cut(*fates: str) -> dict[str, Any]:
    return {"power_cuts": True, "power_cut_fates": fates}


FAULTS: dict[str, Fault] = {
    "bit rot": Fault(
        "the disk is damaged: bit",
        _at_rest(BIT),
        {
            seals_are_not_compared: 72,
            unverified_blocks_are_served: 1,
            repairs_end_with_the_damage: 7,
        },
    ),
    "lost write": Fault(
        "the disk is damaged: lost write", _at_rest(LOST), {all_damage_counts_as_torn: 1}
    ),
    "lost write, former bytes": Fault(
        "the disk is damaged: lost write, former bytes",
        _at_rest(FORMER),
        {logs_end_with_their_claim: 3},
    ),
    "misdirected write": Fault(
        "the disk is damaged: misdirected write",
        _at_rest(MISDIRECTED),
        {batch_checksums_are_not_compared: 6},
    ),
    "short file": Fault(
        "the disk is damaged: short", _at_rest(SHORT), {recovery_points_are_ignored: 14}
    ),
    "missing file": Fault(
        "the disk is damaged: missing: ",
        _at_rest(MISSING) | {"deletions": True},
        {missing_files_are_empty: 13, missing_segments_pass: 1},
        {"seconds": 6},
    ),
    "missing folder": Fault(
        "the disk is damaged: missing folder", _at_rest(MISSING_FOLDER), {missing_folders_pass: 1}
    ),
    "damage under the broker": Fault(
        "the disk is damaged under the broker",
        {"rots": True, "consumers": ("classic",)},
        {the_scrub_reports_nothing: 4, reported_damage_is_served: 1},
    ),
    "damaged offset under the broker": Fault(
        "the disk is damaged under the broker: offset",
        _at_rest(BIT) | {"damages": False, "rots": True, "consumers": ("classic",)},
        {unverified_blocks_are_served: 31},
    ),
    "damage before a power cut": Fault(
        "the disk is damaged under the broker",
        {"rots": True, "segment_bytes": 1 << 20} | _cut(NOTHING),
        {all_damage_counts_as_torn: 1},
        {"seconds": 6},
    ),
    "unsynced writes lost": Fault(
        "unsynced: nothing", _cut(NOTHING), {produce_is_answered_before_the_sync: 0}
    ),
    "torn write": Fault("unsynced: torn", _cut(TORN), {torn_ends_stay: 0, cuts_keep_no_copy: 0}),
    "holes": Fault("unsynced: holes", _cut(HOLES) | {"fsync": False}, {recovery_trusts_headers: 0}),
    "reordered writes": Fault(
        "unsynced: reordered",
        _cut(REORDERED) | {"producers": 6, "slow_disks": True},
        {sealed_segments_are_not_synced: 0},
    ),
    "lost creation": Fault(
        "lost creation",
        {"kills": True} | _cut(NOTHING),
        {unsynced_names_are_used: 64},
        {"seconds": 6},
    ),
    "lost rename": Fault("unsynced: lost ", _cut(NOTHING), {folders_are_not_synced: 2}),
    "failing syncs": Fault(
        "sync fails", {"sync_errors": True} | _cut(*FATES), {failed_syncs_count: 1}
    ),
    "failing writes": Fault(" fails", {"write_errors": True}, {failed_appends_are_acknowledged: 5}),
    "failing reads": Fault(
        "pread fails", {"read_errors": True, "kills": True}, {failed_reads_end_a_log: 3}
    ),
    "full disk": Fault("bytes are left on the disk", {"full_disks": True}, {torn_appends_stay: 14}),
}

"""Each fault happens, is survived, and uncovers the bugs that only it can."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

import headrace
from headrace.core.catalog import Resource, SetConfigs
from headrace.folder.repair import Action, Repair
from headrace.log import buggify
from headrace.log.api import CorruptFileError
from headrace.log.checkpoints import CLEAN_MARK
from headrace.log.checksums import MOVED
from headrace.log.clock_checkpoint import FILE as CLOCK_CHECKPOINT
from headrace.log.manifest import START_OFFSETS, Manifest
from headrace.log.recovery_point import UNKNOWN, Claim, encoded
from headrace.log.rewriting import without_records
from headrace.log.small_files import write_file
from headrace.sim.consumers import ConsumerReader
from headrace.sim.damage import BIT, FORMER, KINDS, MISDIRECTED
from headrace.sim.disk import FATES, WHOLE
from headrace.sim.ending import Ending
from headrace.sim.loop import OUTSIDE
from headrace.sim.operator import _is_being_deleted, _is_kept, _records
from headrace.sim.options import CONSUMER_SESSION_MS_MAX, Options
from headrace.sim.record_ending import RecordEnding
from headrace.sim.world import World
from headrace.wire import batches

from .focus import QUEUES, UNSYNCED, Focus, options
from .planted import Plant
from .planted_faults import FAULTS, calm
from .planted_links import FAULTS as OF_LINKS
from .whole_histories import PORTIONS

SEEDS_MAX = 400  # from the seed at which the search begins; most bugs show within ten
POINT_SEEDS_MAX = 100
_EVERY = FAULTS | OF_LINKS
_BUGS = [(name, plant, seed) for name, one in _EVERY.items() for plant, seed in one.bugs.items()]
_SWITCHES = {
    "kills", "power_cuts", "stops", "sync_errors", "write_errors", "read_errors", "full_disks",
    "damages", "rots", "suspends", "clock_set", "lost_answers", "vanishing", "rough_links",
    "repeats", "hostile",
}  # fmt: skip


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value).replace(" ", "_"))


def test_every_fault_has_a_bug_that_it_uncovers() -> None:
    assert all(one.bugs for one in _EVERY.values())
    kinds = {kind for one in FAULTS.values() for kind in one.on.get("damage_kinds", ())}
    assert kinds == {*KINDS, FORMER}
    fates = {fate for one in FAULTS.values() for fate in one.on.get("power_cut_fates", ())}
    assert fates | {WHOLE} == set(FATES)
    assert {one for fault in _EVERY.values() for one in fault.on} >= _SWITCHES
    assert {one.name for one in fields(Options)} >= _SWITCHES


@pytest.mark.parametrize(("fault", "plant", "begin"), _BUGS, ids=_name)
def test_it_happens_and_uncovers_a_bug(
    fault: str, plant: Plant, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, told = _EVERY[fault], list[str]()
    sound = World(begin, tell=told.append, options=one.options(begin)).run()
    assert not sound.failures
    assert any(one.line in line for line in told if " options: " not in line)
    plant(monkeypatch)
    assert not World(begin, options=one.without(begin)).run().failures, "it needs the fault"
    seeds = range(begin, begin + SEEDS_MAX)
    failing = (seed for seed in seeds if World(seed, options=one.options(seed)).run().failures)
    seed = next(failing, None)
    assert seed is not None, f"no history shows {plant.__name__}"
    monkeypatch.undo()
    sound = World(seed, options=one.options(seed)).run()
    assert not sound.failures, f"seed {seed} fails without the bug"


def test_every_rare_behaviour_is_chosen() -> None:
    sources = Path(headrace.__file__).parent.rglob("*.py")
    found = (re.findall(r'buggify\("([a-z_.]+)"\)', one.read_text()) for one in sources)
    left = {point for points in found for point in points}
    assert left
    everywhere: Focus = {
        "buggifies": True, "queues": True, "records": True, "prunes": True, "dead_letters": True,
        "share_off": False, "seconds": 1,
    }  # fmt: skip
    late: Focus = QUEUES | UNSYNCED | {"buggifies": True, "points": ("log_end_lost.portion",)}
    focuses = everywhere, PORTIONS | {"points": ("lease.portion",), "kills_at": ()}, late
    for seed in range(POINT_SEEDS_MAX):
        world = World(seed, options=options(seed, focuses[seed % len(focuses)]))
        assert not world.run().failures
        left -= {point for point, times in world.points.items() if times}
        if not left:
            return
    pytest.fail(f"never chosen: {sorted(left)}")


def test_no_rare_behaviour_is_chosen_in_production() -> None:
    assert buggify._chooser is None
    assert not buggify.buggify("log.roll")
    package = Path(headrace.__file__).parent
    installs = [
        one.relative_to(package)
        for one in package.rglob("*.py")
        if "buggify import install" in one.read_text()
    ]
    assert [one.parts[0] for one in installs] == ["sim"]


@pytest.mark.parametrize("is_deleting", [True, False])
def test_a_missing_folder_needs_no_repair_where_its_topic_may_be_deleted(is_deleting: bool) -> None:
    world = World(0, options=calm(0))
    assert world._is_set_up()
    world.end_life()
    world.disk.revive(power_cut=False)
    if is_deleting:
        manifest = Manifest(world.disk)
        ((topic_id, topic),) = [
            (id_, one) for id_, one in manifest.topics.items() if one.name == "ledger"
        ]
        manifest.begin_deletion(topic_id, topic)
    files = dict(world.disk.contents)
    damaged = [path for path in files if path.startswith("ledger-0/")]
    left = {path: data for path, data in files.items() if path not in damaged}
    assert damaged
    assert _is_being_deleted(damaged, left) == is_deleting
    assert not _is_being_deleted(damaged, files)  # rot in a file that is there
    assert not _is_being_deleted([*damaged, "table-0/00000000000000000000.log"], left)
    assert not _is_being_deleted([], left)
    world._clear_away()


def test_a_power_cut_explains_no_refusal_after_the_next_start() -> None:
    world = World(0, options=calm(0))
    error = CorruptFileError("ledger-0/00000000000000000000.log", "the batch is wrong")
    assert world._is_set_up()
    world.kill(power_cut=True)
    assert world.power_was_cut
    world.run_until(world.loop.now_us + 2_000_000)
    assert world.process is not None
    assert world.process.is_up
    world.operator.respond(world.process, [error])
    assert world.bugs == [f"the broker refuses what no fault damaged: {error!r}"]
    world._clear_away()


def test_a_log_that_a_full_disk_keeps_closed_after_a_power_cut_may_have_lost_its_end() -> None:
    """The next record may be that of a request whose client is gone before the response."""
    world, place = World(0, options=replace(calm(0), fsync=False)), ("ledger", 0)
    assert world._is_set_up()
    world.auditor.read(place, {0: b"lost"})
    world.kill(power_cut=True)
    world.disk.open("ledger-0/00000000000000000000.log").append(b"torn")
    world.disk.fail_after(0)
    world.run_until(world.loop.now_us + 2_000_000)
    assert world.process is not None
    partition = world.process.services.partition(*place)
    assert partition is not None
    assert not partition.is_open
    explains = [world.power_was_cut]  # why this log is refused, if it is
    world.disk.fail_after(None)
    assert world.finish(partition.open_ready(), 1.0, world.process.life)
    assert [*explains, world.power_was_cut] == [True, False]
    world.auditor.read(place, {0: b"new"})
    assert not world.failed
    world._clear_away()


def test_offsets_expire_also_behind_the_longest_session_of_a_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The member vanishes just before the quiet days, whose first stall extends its session."""
    world = World(0, options=replace(calm(0), consumers=("consumer",)))
    assert world._is_set_up()
    assert world.process is not None
    services, life = world.process.services, world.process.life
    longest = {"consumer.session.timeout.ms": str(CONSUMER_SESSION_MS_MAX)}
    setting = services.topics.set_configs(SetConfigs(Resource.GROUP, "consumer-group", longest))
    assert world.finish(setting, 1.0, life)
    reader = ConsumerReader(world, "consumer-0", "consumer-group", ["ledger"])
    reader.is_honest, reader.pause_seconds = True, 0.02
    monkeypatch.setattr(reader, "_commits", lambda: True)
    reading = world.loop.spawn(OUTSIDE, reader.run())
    world.run_until(world.loop.now_us + 2_000_000)
    world.run_until(round(services.clock._beat_at * 1e6) + 990_000)
    reading.cancel()
    RecordEnding(world)._expire()
    assert not world.failed, world.auditor.failures
    world._clear_away()


@pytest.mark.parametrize("dead_letters", [True, False])
def test_the_ending_waits_for_a_broker_that_the_operator_replaces(dead_letters: bool) -> None:
    """A repair may begin at any time, also just before the audit of share groups."""
    options = replace(calm(0), queues=True, dead_letters=dead_letters, share_off=False)
    world = World(0, options=options)
    assert world._is_set_up()
    world.end_life()
    world.disk.revive(power_cut=False)
    world.start_later()
    Ending(world, [])._audit()
    assert not world.failed
    assert world.process is not None
    assert world.process.is_up
    world._clear_away()


@pytest.mark.parametrize("is_gone_before", [False, True])
def test_retention_explains_a_report_of_damage_that_was_there_at_the_time(
    is_gone_before: bool,
) -> None:
    world, path = World(0, options=calm(0)), "ledger-0/00000000000000000007.log"
    assert world._is_set_up()
    world.disk.write(path, b"batch")
    world.disk.damage._damage_at(BIT, path, 0, {})
    if is_gone_before:
        world.disk.remove(path)
    world.operator.report("ledger-0: the checksum of a batch is wrong")
    if not is_gone_before:
        world.disk.remove(path)
    world.operator.look()
    assert bool(world.bugs) == is_gone_before
    world._clear_away()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_deleted_records_come_back_when_former_start_offsets_are_read(is_stopped: bool) -> None:
    """The broker under which the write is lost keeps the starts, and a stop writes them down."""
    world, place = World(0, options=calm(0)), ("ledger", 1)
    assert world._is_set_up()
    write_file(world.disk, START_OFFSETS, "0\n0\n")
    write_file(world.disk, START_OFFSETS, "0\n1\nledger 1 2\n")
    world.disk.damage._damage_at(FORMER, START_OFFSETS, 0, {})
    asked = world.auditor.asked()
    world.records.deleting(place, 2)

    def fetched(log_start: int) -> None:
        world.records.fetched(asked, place, 2, log_start=log_start, high_watermark=2, records={})

    fetched(2)
    if is_stopped:
        world._stop()
    else:
        world._bury()
    world.run_until(world.loop.now_us + 2_000_000)
    assert world.process is not None
    assert world.process.is_up
    asked = world.auditor.asked()
    fetched(0)
    assert world.auditor.failures == (
        ["the start of ledger-1 was 2 and is 0"] if is_stopped else []
    )
    world._clear_away()


def test_what_else_is_damaged_stays_so_when_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker may have reported it by then."""
    world, path = World(0, options=calm(0)), "ledger-0/00000000000000000007.log"
    assert world._is_set_up()
    damage, small = world.disk.damage, CLOCK_CHECKPOINT
    contents = {small: b"checkpoint", path: b"a batch"}
    for name, data in contents.items():
        world.disk.write(name, data)
    monkeypatch.setattr(damage, "_source", lambda _: (path, 0))
    damage._damage_at(MISDIRECTED, small, 0, {name: len(one) for name, one in contents.items()})
    assert damage.standing == [small, path]
    world.set_clock(1)
    assert damage.standing == [path]
    assert world.disk.read(small) == contents[small]
    assert damage.undo() == path
    world._clear_away()


@pytest.mark.parametrize(("topic", "is_restored"), [("table", True), ("ledger", False)])
def test_an_offset_that_may_fit_a_gap_is_restored(
    topic: str, is_restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = World(0, options=calm(0)), f"{topic}-0/00000000000000000007.log"
    assert world._is_set_up()
    world.disk.write(path, b"batch")
    world.disk.damage._damage_at(BIT, path, 0, {})
    repaired: list[bool] = []
    monkeypatch.setattr(world.operator, "_undo_damage", lambda: repaired.append(True))
    world.operator.respond(world.process, [CorruptFileError(path, MOVED)])
    assert (world.disk.read(path) == b"batch") == is_restored
    assert bool(repaired) != is_restored
    world._clear_away()


def test_a_repair_may_give_a_segment_of_compaction_its_name() -> None:
    path = "table-0/00000000000000000000.log"
    assert _is_kept(f"{path}.swap", b"batches", {path: b"batches"})
    assert _is_kept(f"{path}.swap", b"batches", {path: b"bat", f"{path}.torn.3": b"ches"})
    assert not _is_kept(f"{path}.swap", b"batches", {path: b"others"})
    assert not _is_kept(f"{path}.swap", b"batches", {})


@pytest.mark.parametrize(
    ("compacted", "is_in_place", "lost"),
    [([1, 2], True, []), ([1, 2], False, [0, 3]), ([2], True, [1])],
)
def test_a_repair_may_finish_a_compaction(
    compacted: list[int], is_in_place: bool, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that are superseded may go, and tombstones, but no last value of a key."""
    files = _compaction(compacted, horizon=True, is_in_place=is_in_place)
    assert _lost_by_repair(*files, monkeypatch) == lost


@pytest.mark.parametrize(("horizon", "lost"), [(True, []), (False, [3])])
def test_a_repair_takes_no_tombstone_before_its_time(
    horizon: bool, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _lost_by_repair(*_compaction([1, 2], horizon=horizon), monkeypatch) == lost


@pytest.mark.parametrize(("is_sealed", "lost"), [(True, []), (False, [1])])
def test_a_record_of_the_active_segment_supersedes_none(
    is_sealed: bool, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = _compaction([2], horizon=True)
    later = batches.build([batches.Record(0, 0, b"b", b"later")], base_offset=4)
    for files in (before, after):
        files["table-0/00000000000000000004.log"] = later
        if is_sealed:
            files["table-0/00000000000000000005.log"] = b""
    assert _lost_by_repair(before, after, monkeypatch) == lost


def test_a_repair_that_gives_a_record_another_offset_is_reported() -> None:
    """Also where the offset is one that compaction removed, and the record is reported as lost."""
    path = "table-0/00000000000000000000.log"
    former = batches.build([batches.Record(0, 0, b"a", b"former")], base_offset=0)
    record = batches.Record(0, 0, b"b", b"last")
    written = former + batches.build([record], base_offset=3)
    kept = former + batches.build([record], base_offset=2)
    before, after = {path: written}, {path: kept, f"{path}.torn.0": written}
    world = World(0, options=calm(0))
    done = Repair([Action(path, "rewrite the segment", ((1, 1), (3, 3)))])
    world.operator._account(done, before, before, before)
    assert not world.bugs
    world.operator._account(done, before, before, after)
    assert world.bugs == ["a repair moved record table-0@3 to 2"]


@pytest.mark.parametrize(
    ("folder", "lost", "bugs"),
    [
        ("__share_group_state-0", ((1, None),), []),  # a snapshot takes the offset
        ("__share_group_state-0", (), ["a repair changed record __share_group_state-0@1"]),
        ("table-0", ((1, None),), ["a repair changed record table-0@1"]),
    ],
)
def test_only_a_journal_of_share_groups_gets_records_by_a_repair(
    folder: str, lost: tuple[tuple[int, int | None], ...], bugs: list[str]
) -> None:
    path = f"{folder}/00000000000000000000.log"
    first, last, snapshot = (
        batches.build([batches.Record(0, 0, b"key", value)], base_offset=offset)
        for offset, value in ((0, b"first"), (1, b"last"), (1, b"snapshot"))
    )
    before = {path: first + last}
    after = {path: first + snapshot, f"{path}.torn.0": first + last}
    world = World(0, options=calm(0))
    done = Repair([Action(path, "rewrite the segment", lost)])
    world.operator._account(done, before, before, after)
    assert world.bugs == bugs


@pytest.mark.parametrize(
    ("kept", "lost", "changed"),
    [
        ((b"0", b"snapshot", b"2", b"3"), ((1, 1),), 1),  # amid records that are left
        ((b"0", b"3"), ((1, None),), 1),  # a former record at another offset
    ],
)
def test_a_repair_of_a_journal_only_appends(
    kept: tuple[bytes, ...], lost: tuple[tuple[int, int | None], ...], changed: int
) -> None:
    def files(values: tuple[bytes, ...]) -> bytes:
        return b"".join(
            batches.build([batches.Record(0, 0, b"key", value)], base_offset=offset)
            for offset, value in enumerate(values)
        )

    path = "__share_group_state-0/00000000000000000000.log"
    before = {path: files((b"0", b"1", b"2", b"3"))}
    after = {path: files(kept), f"{path}.torn.0": before[path]}
    world = World(0, options=calm(0))
    world.operator._account(Repair([Action(path, "rewrite", lost)]), before, before, after)
    assert world.bugs == [f"a repair changed record __share_group_state-0@{changed}"]


@pytest.mark.parametrize(("first", "is_lost"), [(UNKNOWN, True), (0, True), (2, False)])
def test_a_segment_that_was_given_up_needs_no_report_of_a_repair(first: int, is_lost: bool) -> None:
    """Its files are there where the disk refused to remove them."""
    former, last = (
        batches.build([batches.Record(0, 0, b"key", value)], base_offset=offset)
        for offset, value in ((0, b"former"), (2, b"last"))
    )
    point = "table-0/recovery-point"
    files = {
        "table-0/00000000000000000000.log": former,
        "table-0/00000000000000000002.log": last,
        point: encoded(point, 1, Claim(first, 2, len(last), 3)),
    }
    damaged = files | {"table-0/00000000000000000000.log": bytes(len(former))}
    world = World(0, options=calm(0))
    world.operator._account(Repair(), files, damaged, damaged)
    lost = "a repair lost record table-0@0 without a report: {}"
    assert world.bugs == [lost] * is_lost


def _compaction(
    compacted: list[int], *, horizon: bool, is_in_place: bool = True
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the files before and after a repair that gives a compacted segment its name.

    Args:
        compacted: offsets of the records that are left.
        horizon: whether the time of the tombstone, at offset 3, is over.
    """
    path = "table-0/00000000000000000000.log"
    records = [
        batches.Record(0, 0, b"a", b"former"), batches.Record(1, 0, b"b", b"last"),
        batches.Record(2, 0, b"a", b"last"), batches.Record(3, 0, b"c", None),
    ]  # fmt: skip
    attributes = batches.DELETE_HORIZON if horizon else 0
    last = batches.build([records[3]], base_offset=3, attributes=attributes)
    written = batches.build(records[:3]) + last
    made = [batches.build([records[one]], base_offset=one) for one in compacted]
    swap = b"".join([*made, without_records(batches.read_header(last))])
    before = {path: written, f"{path}.swap": swap}
    return before, {path: swap if is_in_place else b"".join(made), f"{path}.torn.0": written}


def _lost_by_repair(
    before: dict[str, bytes], after: dict[str, bytes], patch: pytest.MonkeyPatch
) -> list[int]:
    """Return the offsets that a repair lost without a report."""
    world = World(0, options=replace(calm(0), fsync=True))
    patch.setattr(world.records, "is_kept", lambda *_: True)
    world.operator._account(Repair(), before, before, after)
    reports = [one for one in world.bugs if "without a report" in one]
    lost = [int(one.partition("@")[2].partition(" ")[0]) for one in reports]
    assert len([one for one in world.bugs if "which is whole" in one]) == len(lost)
    return lost


def test_an_impossible_offset_under_a_right_checksum_is_damage() -> None:
    """No checksum covers the offset of a batch."""
    first = bytearray(batches.build([batches.Record(0, 0, None, b"one")]))
    first[0] = 0xFF
    second = batches.build([batches.Record(1, 0, None, b"two")], base_offset=1)
    files = {"ledger-0/00000000000000000000.log": bytes(first) + second}
    assert [*_records(files, past_damage=True)["ledger-0"]] == [1]
    assert not _records(files)["ledger-0"]


@pytest.mark.parametrize("damages_mark", [False, True])
def test_former_starts_are_allowed_where_no_start_can_find_them_out(*, damages_mark: bool) -> None:
    """A write meant for the start offsets can damage the mark that contains them, too."""
    place = "ledger", 0
    for seed in range(200):
        world = World(seed)
        disk = world.disk
        for text in ("former starts", "present starts"):
            disk.write(START_OFFSETS, text.encode())
        disk.write(CLEAN_MARK, b"the starts of all logs")
        disk.damage.kinds = (MISDIRECTED,)
        done = disk.damage.offline(in_order=True) or ""
        if disk.damage.turned_back != START_OFFSETS or (CLEAN_MARK in done) != damages_mark:
            continue
        world.records._of(place).start = 6
        world._look_at_starts()
        assert world.records._of(place).start == (0 if damages_mark else 6)
        return
    pytest.fail("no seed damages the files")

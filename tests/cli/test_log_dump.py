"""`headrace log dump` prints what Apache Kafka's DumpLogSegments prints, and tells of damage."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.wire.batches import Record, build

Command = Callable[..., Any]
Golden = Callable[[str], str]
HERE = Path(__file__).parent / "golden"
JOURNALS = Path(__file__).parents[1] / "golden"
SEGMENT = "00000000000000000000.log"
INDEXES = "00000000000000000000.index,00000000000000000000.timeindex"


@pytest.fixture
def dump(offline: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`headrace log dump --files ...` in the folder of the golden files."""
    monkeypatch.chdir(HERE)
    return lambda files, *arguments: offline("log", "dump", "--files", files, *arguments)


@pytest.mark.parametrize(
    ("name", "files", "arguments"),
    [
        ("dump_shallow", SEGMENT, ()),
        ("dump_print_data_log", SEGMENT, ("--print-data-log",)),
        (
            "dump_skip_record_metadata",
            SEGMENT,
            ("--print-data-log", "--skip-record-metadata"),
        ),
        ("dump_indexes", f"{INDEXES},00000000000000000100.snapshot", ()),
        ("dump_sanity", INDEXES, ("--index-sanity-check",)),
    ],
)
def test_text_is_that_of_kafkas_tool(
    dump: Command, golden: Golden, name: str, files: str, arguments: tuple[str, ...]
) -> None:
    ended = dump(files, *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.text == golden(name)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("consumer_offsets", "--offsets-decoder"),
        ("consumer_groups", "--offsets-decoder"),
        ("share_group_state", "--share-group-state-decoder"),
        ("cluster_metadata", "--cluster-metadata-decoder"),
    ],
)
def test_journals_read_as_kafka_reads_them(dump: Command, name: str, option: str) -> None:
    ended = dump(str(JOURNALS / f"{name}.log"), option)
    assert (ended.code, ended.err) == (0, "")
    ours = [
        line.partition("headerKeys: [] ")[2]
        for line in ended.text.splitlines()
        if line.startswith("|")
    ]
    kafkas = (JOURNALS / f"{name}.txt").read_text().splitlines()
    # A lease is a record of ours: Kafka's tool passes over it, this one shows whose it is.
    assert [line for line in ours if "20900" not in line] == [
        line for line in kafkas if "20900" not in line
    ]
    assert len(ours) == len(kafkas)


def test_json_is_one_object_a_line(dump: Command) -> None:
    lines = dump(SEGMENT, "--print-data-log", "--json").text.splitlines()
    found = [json.loads(line) for line in lines]
    assert {one["file"] for one in found} == {SEGMENT}
    first, record = found[:2]
    assert (first["type"], first["count"], first["deleteHorizonMs"]) == ("batch", 4, None)
    assert first["isvalid"] is True
    assert (record["type"], record["key"], record["payload"]) == ("record", "k1", "v1")
    assert record["headers"] == [["h1", "v1"], ["h2", None]]
    assert [one["endTxnMarker"] for one in found if one["type"] == "marker"] == ["COMMIT"]


def test_decoders_by_kafkas_names(dump: Command, tmp_path: Path) -> None:
    file = tmp_path / SEGMENT
    file.write_bytes(build([Record(0, 0, b"k", (7).to_bytes(8, "big"))]))
    kafkas = "org.apache.kafka.common.serialization.LongDeserializer"
    assert "key: k payload: 7" in dump(str(file), "--value-decoder-class", kafkas).text
    wrong = dump(str(file), "--key-decoder-class", "Long")
    assert (wrong.code, "offset 0 cannot be decoded: 1 bytes, not 8" in wrong.err) == (1, True)
    unknown = dump(str(file), "--key-decoder-class", "Avro")
    assert (unknown.code, "Avro is not known; one of String" in unknown.err) == (1, True)


def test_a_flipped_bit_is_told_and_the_rest_is_read(dump: Command, tmp_path: Path) -> None:
    data = bytearray((HERE / SEGMENT).read_bytes())
    data[100] ^= 1
    file = tmp_path / SEGMENT
    file.write_bytes(data)
    ended = dump(str(file), "--print-data-log")
    assert ended.code == 1
    lines = ended.text.splitlines()
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert [line.endswith("isvalid: true") for line in batches].count(False) == 1
    assert batches[0].endswith("isvalid: false")
    assert any("offset: 4 " in line for line in lines)
    first, last = ended.err.splitlines()
    assert first.startswith(f"headrace log dump: {file}: at byte 0: checksum")
    assert last == "headrace log dump: 1 damage was found; see the lines above"


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_torn_end_is_told(dump: Command, tmp_path: Path, cut: int) -> None:
    data = (HERE / SEGMENT).read_bytes()[: 105 + cut]
    file = tmp_path / SEGMENT
    file.write_bytes(data)
    ended = dump(str(file))
    assert ended.code == 1
    assert f"Found {cut} invalid bytes at the end of {SEGMENT}\n" in ended.text
    assert f"{file}: no whole batch at byte 105" in ended.err


def test_a_batch_that_repeats_offsets_is_told(dump: Command, tmp_path: Path) -> None:
    batch = build([Record(0, 0, None, b"v")], base_offset=5)
    file = tmp_path / SEGMENT
    file.write_bytes(batch + batch)
    ended = dump(str(file))
    assert (ended.code, "offset 5 follows 5" in ended.err) == (1, True)


def test_an_index_is_checked_against_its_segment(dump: Command, tmp_path: Path) -> None:
    index = "00000000000000000000.index"
    for name in (SEGMENT, index):
        (tmp_path / name).write_bytes((HERE / name).read_bytes())
    file = tmp_path / index
    sound = dump(str(file), "--verify-index-only")
    assert (sound.code, sound.text.splitlines()[1]) == (0, f"{file} passed sanity check.")
    file.write_bytes(file.read_bytes().replace((392).to_bytes(4, "big"), (391).to_bytes(4, "big")))
    wrong = dump(str(file), "--verify-index-only")
    assert wrong.code == 1
    assert "offset 24 is not in a batch at byte 391" in wrong.err


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("0.index", bytes(9), "1 bytes at the end are no entry"),
        ("0.index", bytes([0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 4, 0, 0, 0, 20]), "4, 20 follows 5, 9"),
        ("0.snapshot", bytes(3), "3 bytes are no snapshot"),
        ("0.snapshot", b"\0\1" + bytes(8), "its checksum is wrong"),
        ("0.snapshot", b"\0\2" + bytes(8), "version 2 is not known"),
        ("0.txt", None, "no such file; give files of a partition's folder"),
        ("0.txt", b"", "is none of .log, .index, .timeindex, .snapshot files"),
    ],
)
def test_other_damage(
    dump: Command, tmp_path: Path, name: str, data: bytes | None, told: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    ended = dump(str(tmp_path / name))
    assert (ended.code, told in ended.err) == (1, True)


def test_a_file_that_is_not_there_does_not_end_the_others(dump: Command) -> None:
    ended = dump(f"absent.log,{SEGMENT}")
    assert ended.code == 1
    assert ended.err == "headrace log dump: absent.log: No such file or directory\n"
    assert f"Dumping {SEGMENT}\nLog starting offset: 0\nbaseOffset: 0 " in ended.text


def test_a_large_segment_takes_the_memory_of_a_batch(offline: Command, tmp_path: Path) -> None:
    from headrace.cli.log_files import segment

    value = bytes(100_000)
    file = tmp_path / SEGMENT
    with file.open("wb") as out:
        for offset in range(0, 2000, 10):
            records = [Record(0, 0, None, value) for _ in range(10)]
            out.write(build(records, base_offset=offset))
    assert file.stat().st_size > 190_000_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in segment(file, 1 << 31)) == 200
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000

"""`headrace check`, `repair`, `backup` and `restore`: text, JSON, exit codes."""

import contextlib
import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.campaign.data import Folder, build

import headrace
from headrace.cli import main
from headrace.cli.check import check

SEGMENT = "orders-0/00000000000000000010.log"


@pytest.fixture(scope="module")
def built() -> Folder:
    return build(durability="os", clean=True)


@pytest.fixture
def root(built: Folder, tmp_path: Path) -> Path:
    """A sound data folder."""
    for path, content in built.files.items():
        target = tmp_path / "data" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return tmp_path / "data"


@pytest.fixture
def command(offline: Any) -> Any:
    """Runs `headrace ...` with paths among its arguments."""
    return lambda *arguments: offline(*map(str, arguments))


def damage(root: Path) -> None:
    content = bytearray((root / SEGMENT).read_bytes())
    content[300] ^= 1
    (root / SEGMENT).write_bytes(content)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_check_shows_its_progress_on_a_terminal(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.cli.data_tools._QUIET_S", 0.0)
    reader, terminal = os.openpty()
    with os.fdopen(terminal, "w", encoding="utf-8") as screen:
        monkeypatch.setattr("sys.stderr", screen)
        check(root)
    shown = ""
    with contextlib.suppress(OSError):  # as Linux ends the output of a closed terminal
        while data := os.read(reader, 4096):
            shown += data.decode()
    os.close(reader)
    assert re.fullmatch(r"(\r\x1b\[Kchecking: \d+ MiB)+(\r\x1b\[K)+", shown), shown
    assert ": sound; " in capsys.readouterr().out


def test_check_tells_a_sound_folder_from_a_damaged_one(command: Any, root: Path) -> None:
    sound = command("check", "--data-dir", root)
    assert (sound.code, sound.err) == (0, "")
    assert sound.text.endswith("KiB verified\n")
    assert ": sound; " in sound.text
    damage(root)
    damaged = command("check", "--data-dir", root)
    assert damaged.code == 1
    first, last = damaged.text.splitlines()
    assert first.startswith(f"error: {SEGMENT} at byte 0: ")
    assert ": damaged; " in last
    report = json.loads(command("check", "--data-dir", root, "--json").text)
    assert report["clean"] is False
    assert [(one["grade"], one["path"]) for one in report["findings"]] == [("error", SEGMENT)]


def test_repair_prints_a_plan_and_carries_it_out_when_told_to(command: Any, root: Path) -> None:
    damage(root)
    plan = command("repair", "--data-dir", root)
    assert plan.code == 0
    assert plan.text.startswith(f"{SEGMENT}: rewrite the segment")
    assert "--execute" in plan.text
    assert command("check", "--data-dir", root).code == 1
    done = json.loads(command("repair", "--data-dir", root, "--execute", "--json").text)
    assert (done["executed"], done["left"]) == (True, [])
    assert command("check", root).code == 0, "the folder can be named without the option"
    again = command("repair", "--data-dir", root, "--execute")
    assert again.text == f"{root}: nothing to repair\n"


@pytest.mark.parametrize("execute", [(), ("--execute",)])
def test_damage_without_a_repair_names_the_backup(
    command: Any, root: Path, execute: tuple[str, ...]
) -> None:
    shutil.rmtree(root / "__cluster_metadata-0")
    ended = command("repair", "--data-dir", root, *execute)
    assert ended.code == 1
    first, last = ended.text.splitlines()
    assert first == (
        "not repaired: error: __cluster_metadata-0: the journal is missing; "
        "the broker does not start; restore a backup"
    )
    assert last == f"{root}: no repair is possible"
    (left,) = json.loads(command("repair", "--data-dir", root, "--json", *execute).text)["left"]
    assert left.endswith("; restore a backup")


def test_a_folder_that_a_broker_uses_is_left_alone(command: Any, tmp_path: Path) -> None:
    with headrace.Broker(data_dir=tmp_path / "data"):
        for name in ("check", "repair"):
            ended = command(name, "--data-dir", tmp_path / "data")
            assert ended.code == 2
            assert "a broker runs on" in ended.err
    for name in ("check", "repair"):
        assert command(name, "--data-dir", tmp_path / "none").code == 2


@pytest.mark.parametrize("name", ["check", "repair"])
def test_the_exit_code_of_the_program_tells_damage_from_a_folder_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], root: Path, name: str
) -> None:
    def code(*arguments: object) -> object:
        monkeypatch.setattr(sys, "argv", ["headrace", name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.run()
        return ended.value.code

    assert code(root) == 0
    assert code(root / "none") == 2
    assert "there is no folder" in capsys.readouterr().err
    assert code("--nonsense") == 1, "usage errors end with 1, as with Kafka's tools"
    (root / "meta.properties").write_bytes(b"\0")
    assert code(root) == (1 if name == "check" else 0), "a plan that is whole is no error"

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "data/.lock")

    monkeypatch.setattr(f"headrace.folder.{name}.unused", fail)
    capsys.readouterr()
    assert code(root) == 2
    assert capsys.readouterr().err == f"headrace {name}: data/.lock: Permission denied\n"


def test_backup_and_restore(command: Any, root: Path, tmp_path: Path) -> None:
    store, target = tmp_path / "backups", tmp_path / "restored"
    made = json.loads(command("backup", store, "--data-dir", root, "--json").text)
    assert made["new_bytes"] == made["bytes"]
    again = command("backup", store, "--data-dir", root)
    assert "0 bytes of them new" in again.text
    assert len(command("backup", store, "--list").text.splitlines()) == 2
    assert "is intact" in command("backup", store, "--verify", "latest").text
    assert "deleted" in command("backup", store, "--delete", made["id"]).text
    restored = command("restore", store, "--data-dir", target)
    assert restored.text.startswith("restored backup ")
    assert command("check", "--data-dir", target).code == 0
    refused = command("restore", store, "--data-dir", target)
    assert refused.code == 1
    assert refused.err.count("\n") == 1
    assert "is not empty" in refused.err


def test_a_backup_of_damage_is_one_line_and_no_backup(
    command: Any, root: Path, tmp_path: Path
) -> None:
    damage(root)
    ended = command("backup", tmp_path / "backups", "--data-dir", root)
    assert ended.code == 1
    assert ended.err.startswith(f"headrace backup: {SEGMENT} at byte 0: ")
    assert command("backup", tmp_path / "backups", "--list").text == ""


def test_a_backup_needs_the_address_of_the_broker_that_uses_the_folder(
    command: Any, tmp_path: Path
) -> None:
    with (
        headrace.Broker(data_dir=tmp_path / "data") as broker,
        headrace.Broker(data_dir=tmp_path / "other") as other,
    ):
        arguments = ("backup", tmp_path / "backups", "--data-dir", tmp_path / "data")
        wrong = command(*arguments, "--bootstrap-server", other.bootstrap_servers)
        assert wrong.code == 1
        assert "the address and the data folder of the same broker" in wrong.err
        right = command(*arguments, "--bootstrap-server", broker.bootstrap_servers)
        assert right.code == 0, right.err
    both = command("backup", tmp_path / "backups", "--list", "--verify", "x")
    assert "give one of" in both.err


def test_a_backup_names_the_address_at_which_no_broker_answers(
    command: Any, tmp_path: Path
) -> None:
    settings = {"headrace.metrics.port": "0"}
    with headrace.Broker(data_dir=tmp_path / "data", settings=settings) as broker:
        for port, reason in (
            (broker.metrics_port, f"127.0.0.1:{broker.metrics_port} answers in HTTP, not in the"),
            (1, "(Connection refused); "),
        ):
            address = f"127.0.0.1:{port}"
            ended = command(
                "backup", tmp_path / "backups", "--data-dir", tmp_path / "data",
                "--bootstrap-server", address,
            )  # fmt: skip
            assert ended.code == 1
            assert ended.err.startswith(
                f"headrace backup: {tmp_path}/data is in use, and no broker responds at {address} ("
            )
            assert reason in ended.err
            assert ended.err.endswith(
                "; give the address of the Kafka listener of the broker with --bootstrap-server\n"
            )
            assert ended.err.count("\n") == 1


def test_a_full_disk_is_one_line_with_a_remedy(
    command: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.folder.backup.make", fail)
    ended = command("backup", "--data-dir", root, tmp_path / "backups")
    assert ended.code == 1
    assert ended.err == (
        "headrace backup: No space left on device; free space, then run it again\n"
    )

"""The command line as a whole: every command is found, whichever way it is asked for."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli import main


def test_help_lists_every_command() -> None:
    told = CliRunner().invoke(main.app, ["--help"]).stdout
    assert set(main.COMMANDS) <= set(re.findall(r"[a-z][a-z-]+", told))


@pytest.mark.parametrize("command", main.COMMANDS)
def test_a_command_is_built_alone(command: str) -> None:
    result = CliRunner().invoke(main.build([command]), [command, "--help"])
    assert result.exit_code == 0
    assert result.stdout


def test_the_version_and_a_command_that_is_none() -> None:
    run = [sys.executable, "-m", "headrace"]
    told = subprocess.run([*run, "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"headrace {headrace.__version__}\n"
    told = subprocess.run([*run, "swerve"], capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "No such command" in told.stderr


@pytest.mark.parametrize("command", ["backup", "log dump", "serve", ""])
def test_flags_take_no_value_in_the_help(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", *command.split(), "--help"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "bool" not in told.lower()
    assert re.search(r"--help +Show this message", told)
    if "--version" in told:
        assert re.search(r"--version +Show the version", told)


KAFKAS = ["configs", "consume", "consumer-groups", "log dump", "produce", "share-groups", "topics"]


@pytest.mark.parametrize("command", KAFKAS)
def test_commands_of_kafka_have_their_version(command: str) -> None:
    told = CliRunner().invoke(main.app, [*command.split(), "--version"])
    assert (told.exit_code, told.stdout) == (0, f"headrace {headrace.__version__}\n")


def test_no_other_attribute_is_made_up() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'apps'"):
        _ = main.apps

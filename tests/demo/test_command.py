"""The command `headrace demo`: what it says when something is missing or wrong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import demo as command
from headrace.cli.main import app


def test_a_missing_extra_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("no_such_module", "other"))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 1
    assert result.stderr == (
        "headrace demo: no module no_such_module, other; install it: "
        "pip install no-such-module other\n"
    )


def test_a_folder_in_use_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    result = CliRunner().invoke(app, ["demo", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.startswith("headrace demo: ")
    assert "is not empty; choose another folder" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "precious"]


@pytest.mark.parametrize("flights", ["0", "336777"])
def test_the_number_of_flights_has_bounds(flights: str) -> None:
    assert CliRunner().invoke(app, ["demo", "--flights", flights]).exit_code == 2

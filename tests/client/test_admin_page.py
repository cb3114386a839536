"""docs/admin.md does what it says: its programs run, and print what stands below them."""

import re
from pathlib import Path

import pytest

import headrace

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_on_administration_is_true(
    running: headrace.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(examples) == 5
    for program, printed in examples:
        program = program.replace("localhost:9092", running.bootstrap_servers)
        exec(compile(program, str(PAGE), "exec"), {"__name__": "example"})
        assert capsys.readouterr().out == printed

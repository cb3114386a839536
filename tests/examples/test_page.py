"""docs/spark-cookbook.md shows what the examples are: its Python stands in them, line by line."""

import re

import pytest

from .conftest import EXAMPLES

PAGE = EXAMPLES.parent / "docs" / "spark-cookbook.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = {path.name: path.read_text() for path in EXAMPLES.rglob("*.py")}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("(")[0])
def test_what_the_page_shows_stands_in_a_program(block: str) -> None:
    assert any(block.strip() in text for text in PROGRAMS.values()), block


def test_the_page_shows_every_pipeline() -> None:
    shown = {name for name, text in PROGRAMS.items() for block in BLOCKS if block.strip() in text}
    assert shown == set(PROGRAMS) - {"fill.py"}

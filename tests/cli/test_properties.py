"""Properties files are read as Java reads them, and pairs as they stand."""

from pathlib import Path

import pytest

from headrace.cli.ending import Trouble
from headrace.cli.properties import load, pairs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a = b c \n", {"a": "b c "}),
        ("a: b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a", {"a": ""}),
        ("# no=thing\n! no=thing\n\na=b", {"a": "b"}),
        ("a=b\\\n    c\nd=e", {"a": "bc", "d": "e"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\=b=c\\tA\\u0042", {"a=b": "c\tAB"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_a_file_of_properties(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    file = tmp_path / "file.properties"
    file.write_text(text)
    assert load(file) == expected


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "absent"
    with pytest.raises(Trouble) as refused:
        load(file)
    reason = "No such file or directory; give a properties file"
    assert str(refused.value) == f"{file} cannot be read: {reason}"


def test_pairs() -> None:
    assert pairs("--config", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    assert pairs("--config", None) == {}
    with pytest.raises(Trouble, match="--config x: write it as name=value"):
        pairs("--config", ["x"])

"""Check the rules that no linter knows: function length, docstrings, clocks, leftovers, pins.

Lint, types and import contracts are `make check`, which `make test` runs first.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 60
SELF = Path(__file__).resolve()


def _python(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


SOURCES = _python("src")
ALL_PYTHON = _python("src", "tests", "bench", "examples")
OTHERS = [path for path in ALL_PYTHON if path != SELF]
TIMELESS = [
    path
    for path in _python("src/headrace/core", "src/headrace/wire", "src/headrace/log")
    if path.name != "os_disk.py"
]
CLOCKS_AND_DICE = re.compile(
    r"^(time\.(time|monotonic|perf_counter)(_ns)?|datetime(\.datetime)?\.(now|utcnow|today)"
    r"|(uuid\.)?uuid[14]|random\..*|secrets\..*|os\.urandom)$"
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _violations(paths: list[Path], check: Callable[[Path], Iterator[str]]) -> dict[str, list[str]]:
    """Return the violations that `check` yields, by the name of the file.

    One test checks all files: a test per file and rule costs more than the rules do.
    """
    return {_name(path): lines for path in paths if (lines := list(check(path)))}


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


def _dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=base, attr=attribute):
            return f"{_dotted(base)}.{attribute}"
        case _:
            return ""


def _long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{node.name} ({length} lines)"


def _missing_docstring(path: Path) -> Iterator[str]:
    if not re.match(r'(#.*\n|\s)*r?"""\s*[^\s"]', _text(path)):
        yield "no module docstring"


def _clocks_and_dice(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Name | ast.Attribute):
            name = _dotted(node)
            if CLOCKS_AND_DICE.match(name):
                yield f"line {node.lineno}: {name}"


def _leftovers(path: Path) -> Iterator[str]:
    yield from re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", _text(path))


def _unexplained_ignores(path: Path) -> Iterator[str]:
    comment = re.compile(r"# (?:type: ignore(\[[\w-]+\])?|noqa(: [A-Z]+\d+)?)(.*)")
    for number, line in enumerate(_text(path).splitlines(), 1):
        match = comment.search(line)
        if match and not ((match[1] or match[2]) and len(match[3].strip(" #:-")) >= 10):
            yield f"line {number}: {line.strip()}"


def test_functions_are_short() -> None:
    assert _violations(ALL_PYTHON, _long_functions) == {}


def test_a_file_says_what_it_is() -> None:
    assert _violations(ALL_PYTHON, _missing_docstring) == {}


def test_time_and_chance_are_parameters_below_the_broker() -> None:
    assert _violations(TIMELESS, _clocks_and_dice) == {}


def test_nothing_is_left_for_later() -> None:
    assert _violations(OTHERS, _leftovers) == {}


def test_an_ignored_finding_is_named_and_explained() -> None:
    found = _violations(OTHERS, _unexplained_ignores)
    assert found == {}, "write `# type: ignore[code]  # the reason`"


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    texts = [*ALL_PYTHON, *ROOT.glob("*.*"), *ROOT.glob("docs/**/*.md"), ROOT / "Makefile"]
    home = re.compile(r"(?<![\w.~}])/(?:home|root|Users|work)/\w")
    found = {
        _name(path): match[0]
        for path in texts
        if path.is_file()
        and path.name != ".git"  # a file in a linked work tree
        and path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ""}
        and (match := home.search(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_every_pin_is_one_exact_version_of_one_package() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin)] == []
    names = [re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins]
    assert sorted(set(names)) == sorted(names)


def test_the_rules_can_be_broken(tmp_path: Path) -> None:
    """The checks above see what they look for: a clean result is not an empty search."""
    assert SOURCES
    assert TIMELESS
    bad = tmp_path / "bad.py"
    body = "    pass\n" * FUNCTION_LINES_MAX
    bad.write_text(f"def long():\n{body}# {'TO' + 'DO'}: {'no' + 'qa'}\n# {'no' + 'qa'}: S311\n")
    for check in (_long_functions, _missing_docstring, _leftovers):
        assert len(list(check(bad))) == 1, check
    assert len(list(_unexplained_ignores(bad))) == 1
    for call in ("time.time", "time.monotonic_ns", "datetime.now", "uuid4", "random.random"):
        timed = tmp_path / f"{call}.py"
        timed.write_text(f"def function():\n    return {call}()\n")
        assert list(_clocks_and_dice(timed)), call
    assert not CLOCKS_AND_DICE.match("self.clock.now")

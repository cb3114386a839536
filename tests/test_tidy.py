"""Check the rules that no linter knows: function length, docstrings, clocks, leftovers, pins.

Lint, types and import contracts are `make check`, which `make test` runs first.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 60
SELF = Path(__file__).resolve()


def _python(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


SOURCES = _python("src")
ALL_PYTHON = _python("src", "tests", "bench", "examples")
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


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=_name)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=base, attr=attribute):
            return f"{_dotted(base)}.{attribute}"
        case _:
            return ""


@each(ALL_PYTHON)
def test_functions_are_short(path: Path) -> None:
    long = [
        f"{one.name} ({length} lines)"
        for one in _functions(_tree(path))
        if (length := (one.end_lineno or one.lineno) - one.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == []


@each(ALL_PYTHON)
def test_a_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(_tree(path)), "no module docstring"


@each(TIMELESS)
def test_time_and_chance_are_parameters_below_the_broker(path: Path) -> None:
    asked = [
        f"line {node.lineno}: {name}"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Name | ast.Attribute)
        and CLOCKS_AND_DICE.match(name := _dotted(node))
    ]
    assert asked == []


@each([path for path in ALL_PYTHON if path != SELF])
def test_nothing_is_left_for_later(path: Path) -> None:
    found = re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text(encoding="utf-8"))
    assert found == []


@each([path for path in ALL_PYTHON if path != SELF])
def test_an_ignored_finding_is_named_and_explained(path: Path) -> None:
    bare = [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := re.search(r"# (?:type: ignore(\[[\w-]+\])?|noqa(: [A-Z]+\d+)?)(.*)", line))
        and not ((found[1] or found[2]) and len(found[3].strip(" #:-")) >= 10)
    ]
    assert bare == [], "write `# type: ignore[code]  # the reason`"


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
    for call in ("time.time", "time.monotonic_ns", "datetime.now", "uuid4", "random.random"):
        node = ast.parse(f"{call}()").body[0]
        assert any(CLOCKS_AND_DICE.match(_dotted(one)) for one in ast.walk(node)), call
    assert not CLOCKS_AND_DICE.match("self.clock.now")

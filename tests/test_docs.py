"""The pages stay true: links lead somewhere, and Python in them is Python.

A fenced block that opens with ```` ```python ```` must compile; one that is a fragment on purpose
says ```` ```python fragment ````.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchors(page: Path) -> set[str]:
    """The anchors that a forge makes of the headings of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and anchor not in _anchors(there)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_python_in_pages_compiles(page: Path) -> None:
    for language, words, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python" and "fragment" not in words:
            compile(code, _name(page), "exec")


def test_the_readme_opens_with_purpose_and_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# Headrace\n")
    assert text.index("make demo") < text.index("make test") < text.index("## ")


SAMPLES = [
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "src" / "headrace" / "demo").rglob("*.py"),
    *(page for page in PAGES if page.name != "CHANGELOG.md"),
]
FILES = {"csv", "json", "orc", "parquet", "text"}


def _programs(sample: Path) -> list[ast.Module]:
    text = sample.read_text(encoding="utf-8")
    if sample.suffix == ".py":
        return [ast.parse(text)]
    blocks = FENCE.findall(text)
    return [ast.parse(code) for kind, words, code in blocks if (kind, words) == ("python", "")]


def _unnamed_writes(program: ast.Module) -> list[str]:
    """Return the writes of a program to files that the `path` of a `Batch` does not name."""
    values = {
        target.id: node.value
        for node in ast.walk(program)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def is_named(node: ast.AST) -> bool:
        inner = list(ast.walk(node))
        if any(isinstance(one, ast.Attribute) and one.attr == "path" for one in inner):
            return True
        names = [one.id for one in inner if isinstance(one, ast.Name)]
        return any(name in values and is_named(values[name]) for name in names)

    calls = [node for node in ast.walk(program) if isinstance(node, ast.Call)]
    return [
        text
        for call in calls
        if isinstance(call.func, ast.Attribute)
        for text in [ast.unparse(call)]
        if (call.func.attr in FILES and ".write." in text and not is_named(call.args[0]))
        or (call.func.attr == "format" and "writeStream" in text and "headrace" not in text)
    ]


def test_samples_write_files_into_the_folder_of_their_checkpoint_and_batch() -> None:
    """A new checkpoint numbers its batches from 0: a folder named for the number is overwritten."""
    programs = [(sample, program) for sample in SAMPLES for program in _programs(sample)]
    assert sum(".write." in ast.unparse(program) for _, program in programs) >= 9
    unnamed = [(_name(sample), _unnamed_writes(program)) for sample, program in programs]
    assert [entry for entry in unnamed if entry[1]] == []
    wrong = 'def sink(rows, batch):\n    rows.write.mode("overwrite").parquet(f"out/batch={batch}")'
    assert _unnamed_writes(ast.parse(wrong)) != []

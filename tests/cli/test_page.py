"""`docs/cli.md` names every command and every option, in the words of `--help`, with examples."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def _commands() -> dict[str, Any]:
    """Every command by its words, e.g. `log dump`."""
    found: dict[str, Any] = {}
    waiting = [("", typer.main.get_command(app))]
    while waiting:
        words, command = waiting.pop()
        inner: dict[str, Any] = getattr(command, "commands", {})
        waiting += [(f"{words} {name}".strip(), one) for name, one in inner.items()]
        if not inner:
            found[words] = command
    return dict(sorted(found.items()))


COMMANDS = _commands()


def _names(option: Any) -> list[str]:
    """Return the names of an option, with those that switch it off; of an argument its own."""
    if option.param_type_name == "argument":
        return [option.metavar or option.name]
    return [*option.opts, *option.secondary_opts]


def table(command: Any) -> str:
    """The options of a command as the page has them."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in _names(option))} | {option.help} |"
        for option in command.params
        if option.opts != ["--help"]
    ]
    return "\n".join(("| option | |", "| --- | --- |", *rows))


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_in_the_page(name: str) -> None:
    _, found, section = PAGE.read_text(encoding="utf-8").partition(f"\n## headrace {name}\n")
    assert found, f"docs/cli.md has no section 'headrace {name}'"
    section = section.partition("\n## ")[0]
    assert table(COMMANDS[name]) in section, f"put this table there:\n{table(COMMANDS[name])}"
    assert f"headrace {name} --" in section, "an example shows the command"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_no_brackets(name: str) -> None:
    """They are taken for a style, and not shown."""
    told = [COMMANDS[name].help, *(option.help for option in COMMANDS[name].params)]
    assert [one for one in told if "[" in (one or "")] == []


def test_examples_use_options_that_exist() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    text = "\n".join(blocks).replace("\\\n", " ")
    shown = 0
    for line in re.findall(r"headrace [^|\n>]*", text):
        words = shlex.split(line, comments=True)[1:]
        name = next((one for one in COMMANDS if words[: len(one.split())] == one.split()), None)
        assert name is not None, line
        known = {opt for option in COMMANDS[name].params for opt in _names(option)}
        assert {word for word in words if word.startswith("--")} <= known, line
        shown += 1
    assert shown >= len(COMMANDS)

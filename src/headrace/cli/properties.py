"""Properties as Kafka's tools take them: `name=value` on the command line, or a file of them.

A file is a Java properties file: `#` and `!` begin comments, `=`, `:` or a blank ends a name, a
backslash at the end of a line continues it. Source: java.util.Properties.load.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.ending import Trouble

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NAME = re.compile(r"(?:\\.|[^\\=:\s])*")
_BETWEEN = re.compile(r"\s*[=:]?\s*")
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """The pairs given to a repeatable option. Raises: Trouble on one without `=`."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Trouble(f"{option} {text}: write it as name=value")
        found[name.strip()] = value
    return found


def load(path: Path) -> dict[str, str]:
    """The properties in a file. Raises: Trouble when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise Trouble(f"{path} cannot be read: {reason}; give a properties file") from error
    except UnicodeDecodeError as error:
        raise Trouble(f"{path} cannot be read: {error}; give a properties file") from error
    found = {}
    for line in _lines(text):
        name = _NAME.match(line)
        assert name is not None, "it matches nothing at all too"
        between = _BETWEEN.match(line, name.end())
        assert between is not None, "as above"
        found[_plain(name[0])] = _plain(line[between.end() :])
    return found


def _lines(text: str) -> list[str]:
    """Logical lines: comments and blanks left out, continued ones joined."""
    found: list[str] = []
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            continue
        found.append(pending + line)
        pending = ""
    return [*found, pending] if pending else found


def _plain(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return _ESCAPED.sub(plain, text)

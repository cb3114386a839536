"""Log lines of the server: text for people or JSON for collectors, and none a thousand times.

Both formats tell time in UTC to the millisecond. What a call gives as `extra` becomes fields of a
JSON line. Lines of one kind are limited to a few a minute; the last of those left out follows
when the minute ends, with the number of the others.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

REPEATS_MAX = 10
REPEATS_SECONDS = 60.0
_KINDS_MAX = 1000
_MESSAGE_CHARS_MAX = 2000
# Clients choose the names that stand in messages: none begins a line, or moves a terminal's cursor.
# Nor does one change the direction of text, or hide in it.
_DIRECTIONS = (
    0x061C,
    0x200B,
    *range(0x200E, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
)
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0xFEFF, *_DIRECTIONS)
_ESCAPED = {code: ascii(chr(code))[1:-1] for code in _CONTROLS}
_ESCAPED_DIRECTIONS = {code: _ESCAPED[code] for code in (0xFEFF, *_DIRECTIONS)}  # JSON has the rest
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "left_out", "always"}


class Text(logging.Formatter):
    """`2026-11-21T13:17:45.120Z INFO headrace.broker: message`."""

    def format(self, record: logging.LogRecord) -> str:
        message = _message(record).translate(_ESCAPED)
        text = f"{_time(record)} {record.levelname} {record.name}: {message}"
        trace = _trace(self, record)
        return f"{text}\n{trace}" if trace else text


class Json(logging.Formatter):
    """One object a line: time, level, logger, message, the fields of `extra`, exception."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record).translate(_ESCAPED_DIRECTIONS),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN}
        trace = _trace(self, record)
        if trace:
            line["exception"] = trace
        return json.dumps(line, default=str, ensure_ascii=False)


class Repeats(logging.Filter):
    """Lets at most REPEATS_MAX lines of one kind pass in a window of `seconds`.

    A kind is a logger with a message before its arguments are put in. Debug lines and those with
    `extra={"always": True}` always pass.

    Args:
        emit: Writes a record. Called in a thread at the end of a window that left lines out, with
            the last of them.
    """

    def __init__(
        self, emit: Callable[[logging.LogRecord], object], seconds: float = REPEATS_SECONDS
    ) -> None:
        super().__init__()
        self._emit = emit
        self._seconds = seconds
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG or getattr(record, "always", False):
            return True
        kind = (record.name, str(record.msg))
        with self._lock:
            if len(self._seen) >= _KINDS_MAX and kind not in self._seen:
                self._seen.clear()  # what they left out is reported all the same
            window = self._seen.get(kind)
            age = 0.0 if window is None else record.created - window.began
            if window is None or (age >= self._seconds and not window.left_out):
                window = self._seen[kind] = _Window(record.created)
            window.count += 1
            if window.count <= REPEATS_MAX:
                return True
            window.left_out += 1
            window.last = record
            if window.left_out == 1:
                timer = threading.Timer(self._seconds - age, self._report, (kind, window))
                timer.daemon = True
                timer.start()
        return False

    def _report(self, kind: tuple[str, str], window: "_Window") -> None:
        with self._lock:
            if self._seen.get(kind) is window:
                del self._seen[kind]
            record = window.last
        if record is not None:
            record.left_out = window.left_out - 1
            self._emit(record)


class _Window:
    """Lines of one kind since `began`, wall seconds."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.count = self.left_out = 0
        self.last: logging.LogRecord | None = None


def set_up(level: str, chosen: str) -> None:
    """Write log lines from `level` on to standard error, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if chosen == "json" else Text())
    quiet = logging.StreamHandler(sys.stderr)  # without the filter
    quiet.setFormatter(handler.formatter)
    handler.addFilter(Repeats(quiet.handle))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _time(record: logging.LogRecord) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{moment}.{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    left_out = getattr(record, "left_out", 0)
    more = f" ({left_out} more lines like this were left out before it)" if left_out else ""
    text = record.getMessage()
    if len(text) > _MESSAGE_CHARS_MAX:
        text = f"{text[:_MESSAGE_CHARS_MAX]}... ({len(text)} characters)"
    return text + more


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""

"""Log lines whose words come from clients."""

import json
import logging

import pytest

from headrace.cli import logs


def line(formatter: logging.Formatter, name: str) -> str:
    record = logging.LogRecord("headrace.broker", logging.INFO, "", 1, "group %s", (name,), None)
    return formatter.format(record)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("orders\n2026-11-21T13:17:45.120Z ERROR x: y", "orders\\n2026-11-21T13:17:45.120Z ERROR"),
        ("\x1b[2J\r\u2028\x85", "\\x1b[2J\\r\\u2028\\x85"),
        ("größe \\n", "größe \\n"),
    ],
)
def test_a_name_makes_no_line_of_its_own(name: str, shown: str) -> None:
    told = line(logs.Text(), name)
    assert f"INFO headrace.broker: group {shown}" in told
    assert len(told.splitlines()) == 1
    assert json.loads(line(logs.Json(), name))["message"] == f"group {name}"


def test_a_name_makes_no_line_of_32_kilobytes() -> None:
    for formatter in (logs.Text(), logs.Json()):
        told = line(formatter, "g" * 32_000)
        assert len(told) < 2200
        assert "ggg... (32006 characters)" in told


def test_a_trace_keeps_its_lines() -> None:
    try:
        raise OSError("full")
    except OSError as error:
        exc_info = type(error), error, error.__traceback__
        record = logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), exc_info)
    assert len(logs.Text().format(record).splitlines()) > 2

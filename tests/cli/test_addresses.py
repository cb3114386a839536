"""Commands that destroy something name the cluster; the default address is for looking."""

from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.cli.ending import Trouble
from headrace.cli.moments import moment_ms

Command = Callable[..., Any]
VARIABLE = "HEADRACE_BOOTSTRAP_SERVERS"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        (("consumer-groups", "--delete", "--group", "g"), "--delete"),
        (("consumer-groups", "--delete-offsets", "--group", "g", "--topic", "t"),
         "--delete-offsets"),
        (("consumer-groups", "--reset-offsets", "--group", "g", "--all-topics", "--to-earliest",
          "--execute"), "--reset-offsets --execute"),
        (("share-groups", "--delete", "--group", "g"), "--delete"),
        (("share-groups", "--delete-offsets", "--group", "g", "--topic", "t"), "--delete-offsets"),
        (("share-groups", "--reset-offsets", "--group", "g", "--all-topics", "--to-earliest",
          "--execute"), "--reset-offsets --execute"),
        (("share", "archived", "g", "--clear"), "--clear"),
        (("topics", "--delete", "--topic", "t"), "--delete"),
        (("configs", "--alter", "--topic", "t", "--add-config", "retention.ms=1"), "--alter"),
        (("configs", "--alter", "--group", "g", "--delete-config", "group.type"), "--alter"),
    ],
)  # fmt: skip
def test_without_an_address_nothing_is_destroyed(
    offline: Command, arguments: tuple[str, ...], action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    ended = offline(*arguments)
    assert (ended.code, ended.out) == (1, b"")
    assert f": {action} needs the address of the cluster: add --bootstrap-server" in ended.err
    assert f"set {VARIABLE}" in ended.err
    assert ended.err.count("\n") == 1


def test_the_environment_names_the_cluster(
    broker: headrace.Broker, offline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, broker.bootstrap_servers)
    assert offline("topics", "--create", "--topic", "orders").code == 0
    assert offline("topics", "--delete", "--topic", "orders").code == 0
    assert "orders" not in offline("topics", "--list").text


def test_names_are_completed_before_they_are_imported() -> None:
    assert set(headrace.__all__) <= set(dir(headrace))


def test_a_date_without_a_time_is_told_the_form() -> None:
    with pytest.raises(Trouble, match=r"without a time.*write 2026-11-24T00:00:00 for the begin"):
        moment_ms("2026-11-24")

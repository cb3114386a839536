"""Bugs of the console consumer, which tests/cli/test_consume_group.py finds (KIP-211).

No history has the console in it: it is a program over librdkafka, which has threads of its own.
"""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli import consume

Plant = Callable[[pytest.MonkeyPatch], None]


def consoles_without_a_group_commit(patch: pytest.MonkeyPatch) -> None:
    """The default of librdkafka counts, whoever named the group."""
    sound = consume._identity

    def wrong(group: str | None, given: dict[str, str]) -> dict[str, Any]:
        return sound(group, given) | {"enable.auto.commit": "true"}

    patch.setattr(consume, "_identity", wrong)


CONSOLE: tuple[Plant, ...] = (consoles_without_a_group_commit,)

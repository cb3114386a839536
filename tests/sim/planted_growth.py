"""Bugs in what decides where readers of new partitions begin (KIP-842)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from headrace.client.consumer import Consumer
from headrace.client.marking import MarkingConsumer
from headrace.client.positions import with_metadata
from headrace.core import reset, seeding

Plant = Callable[[pytest.MonkeyPatch], None]


def comparison_turned_round(patch: pytest.MonkeyPatch) -> None:
    """What is newer than the group is taken for older, and the other way round."""
    from headrace.client import consumer, positions

    sound = positions.were_added
    turned = lambda *args: [not one for one in sound(*args)]  # noqa: E731  # as short as the bug
    patch.setattr(consumer, "were_added", turned)


def start_of_each_process(patch: pytest.MonkeyPatch) -> None:
    """A group starts with each of its members."""
    patch.setattr(Consumer, "_started", lambda self: self._since)


def start_of_each_assignment(patch: pytest.MonkeyPatch) -> None:
    """A group starts whenever a member is given something new."""

    def started(self: Any) -> None:
        self._since = None

    patch.setattr(Consumer, "_started", started)


def commits_without_the_mark(patch: pytest.MonkeyPatch) -> None:
    """When the group started is known only to the member that was there."""
    patch.setattr(
        MarkingConsumer, "_marked", lambda _, offsets: [with_metadata(one, "") for one in offsets]
    )


def the_mark_is_looked_for_in_one_place(patch: pytest.MonkeyPatch) -> None:
    """One of all offsets of the group is requested."""
    from headrace.client import consumer

    first = [TopicPartition("meters-0", 0)]
    patch.setattr(consumer, "all_partitions", lambda *_: first)


def lookups_leave_the_callback(patch: pytest.MonkeyPatch) -> None:
    """A lookup that fails raises out of the assignment callback, before anything is assigned."""

    def raising(_: Any, error: Exception, *__: Any) -> None:
        raise error

    patch.setattr(Consumer, "_failed", raising)


def held_partitions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A lookup that failed is not repeated."""
    patch.setattr(Consumer, "_decided_held", lambda _: [])


BUGS_OF_THE_CLIENT: list[Plant] = [
    comparison_turned_round,
    start_of_each_process,
    start_of_each_assignment,
    commits_without_the_mark,
    the_mark_is_looked_for_in_one_place,
    lookups_leave_the_callback,
    held_partitions_are_forgotten,
]


def new_partitions_from_their_end(patch: pytest.MonkeyPatch) -> None:
    """The policy seeds nothing when partitions are added, and takes them for old ones later."""
    sound = seeding.seed

    def late(command: Any, *args: Any) -> Any:
        return sound(replace(command, extents=()) if command.added else command, *args)

    patch.setattr(seeding, "seed", late)
    patch.setattr(seeding, "was_added", lambda first, since: False)


def every_topic_is_old(patch: pytest.MonkeyPatch) -> None:
    """The policy knows new partitions when they are added, and no topics that come later."""
    patch.setattr(seeding, "was_added", lambda first, since: False)


def policy_turned_round(patch: pytest.MonkeyPatch) -> None:
    """As the first, in the coordinator: topics that come later are taken for old ones."""
    patch.setattr(seeding, "was_added", lambda *args: not reset.was_added(*args))


BUGS_OF_THE_POLICY: list[Plant] = [
    policy_turned_round,
    new_partitions_from_their_end,
    every_topic_is_old,
]

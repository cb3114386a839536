"""Committed offsets: who may commit, what is kept of it, and what goes with a topic."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from headrace.core.errors import Why
from headrace.core.group_words import Committed, Phase
from headrace.core.types import WallMs

Groups = Callable[..., Any]
TOPIC, OTHER = UUID(int=1), UUID(int=2)
NOW = WallMs(1_700_000_000_000)
LONG = "x" * 32_768


def test_anybody_may_commit_for_a_group_that_is_not_there(drive_groups: Groups) -> None:
    groups = drive_groups()
    assert groups.commit("simple", 5) == [None]
    assert groups.group("simple").phase is Phase.EMPTY
    found = groups.shard.offsets["simple"].find("topic", 0, TOPIC)
    assert found == Committed(5, -1, "", NOW, None, TOPIC)
    assert groups.commit("", 5) == [None]
    assert groups.commit("late", 5, "m", 1) is Why.UNKNOWN_GROUP
    assert groups.commit(LONG, 5) is Why.INVALID_GROUP
    groups.share_groups.add("shared")
    assert groups.commit("shared", 5) is Why.WRONG_GROUP_TYPE


@pytest.mark.parametrize(
    ("member", "generation", "instance", "why"),
    [
        ("m1", 2, None, None),
        ("", -1, None, Why.UNKNOWN_MEMBER),
        ("m1", 1, None, Why.ILLEGAL_GENERATION),
        ("m1", -1, None, Why.ILLEGAL_GENERATION),
        ("stranger", 2, None, Why.UNKNOWN_MEMBER),
        ("m1", 2, "unknown", Why.UNKNOWN_MEMBER),
    ],
)
def test_commits_to_a_group_with_members(
    drive_groups: Groups, member: str, generation: int, instance: str | None, why: Why | None
) -> None:
    groups = drive_groups()
    groups.stable(2)
    answer = groups.commit("g", 5, member, generation, instance)
    assert answer == ([None] if why is None else why)
    assert ("g" in groups.shard.offsets) == (why is None)


def test_commits_amid_a_rebalance(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(2)
    groups.join("m1")
    assert groups.group().phase is Phase.PREPARING
    assert groups.commit("g", 5, "m2", 2) == [None]  # what a member does before it rejoins
    groups.join("m2")
    assert groups.group().phase is Phase.COMPLETING
    assert groups.commit("g", 6, "m2", 3) is Why.REBALANCE_IN_PROGRESS


def test_commits_to_an_empty_group(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.stable(1)
    groups.leave(("m1", None))
    assert groups.commit("g", 5, "whoever", -1) == [None]
    assert groups.commit("g", 5, "m1", 1) is Why.UNKNOWN_MEMBER


@pytest.mark.parametrize(
    ("metadata", "fits"),
    [("x" * 4096, True), ("x" * 4097, False), ("é" * 4096, True), ("\U0001f600" * 2049, False)],
)
def test_metadata_is_measured_as_kafka_does(
    drive_groups: Groups, metadata: str, fits: bool
) -> None:
    groups = drive_groups()
    assert groups.commit("g", 5, metadata=metadata) == [None if fits else Why.METADATA_TOO_LARGE]
    assert groups.rebuilt().offsets.keys() == ({"g"} if fits else set())


@pytest.mark.parametrize("offset", [-5, 0, 10**12, 2**63 - 1])
def test_any_offset_is_kept(drive_groups: Groups, offset: int) -> None:
    groups = drive_groups()
    groups.commit("g", offset)
    assert groups.rebuilt().offsets["g"].find("topic", 0, TOPIC).offset == offset


@pytest.mark.parametrize(
    ("retention_ms", "expires_at"),
    [(5_000, NOW + 5_000), (0, NOW), (-2, NOW - 2), (2**63 - 1, 2**63 - 1)],
)
def test_retention_of_its_own_is_kept(
    drive_groups: Groups, retention_ms: int, expires_at: int
) -> None:
    groups = drive_groups()
    groups.commit("g", 5, leader_epoch=3, retention_ms=retention_ms)
    expected = Committed(5, -1, "", NOW, WallMs(expires_at))
    for shard in (groups.shard, groups.rebuilt()):
        assert shard.offsets["g"].find("topic", 0, TOPIC) == expected


def test_offsets_of_a_deleted_topic_go(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.commit("old", 1, retention_ms=5_000)  # its record does not say which topic
    groups.commit("g", 1)
    groups.commit("g", 2, topic="other", topic_id=OTHER)
    groups.forget("topic", TOPIC, until=NOW - 1)
    assert list(groups.shard.offsets) == ["old", "g"]
    groups.forget("topic", TOPIC)
    assert list(groups.shard.offsets) == ["g"]
    assert [topic for topic, _, _ in groups.shard.offsets["g"]] == ["other"]
    assert groups.rebuilt().offsets["g"].by_topic == groups.shard.offsets["g"].by_topic
    assert list(groups.rebuilt().groups) == ["g"]


def test_offsets_of_another_topic_of_that_name_are_no_offsets(drive_groups: Groups) -> None:
    groups = drive_groups()
    groups.commit("g", 1, topic_id=OTHER)
    offsets = groups.shard.offsets["g"]
    assert offsets.find("topic", 0, TOPIC) is None
    groups.forget("topic", TOPIC)
    assert offsets.find("topic", 0, OTHER).offset == 1

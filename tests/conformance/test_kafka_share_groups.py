"""Apache Kafka's kafka-share-groups: the same commands to Apache Kafka and to Headrace.

One story, told to both brokers at the same time: after each command the tool must have printed the
same. What is meant to differ is listed here, one by one, with the reason.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.client.errors import BrokerError
from headrace.client.share_groups import alter_share_group_offsets, delete_share_groups

from .groups_story import SUBSCRIPTION
from .share_groups_story import CHAPTERS, FIRST_MS, RECORDS, TOOL, ShareStory
from .side_by_side import Intended, Outcome, Side, Sides, printed_the_same

KNOWN_SECONDS_MAX = 60
OFFSETS = ("", "GROUP           TOPIC           PARTITION  START-OFFSET  LAG")


def offsets(group: str, *rows: tuple[str, int, int, int]) -> tuple[str, ...]:
    """The table of topic, partition, start offset and lag."""
    lines = (
        f"{group:<15} {topic:<15} {partition:<10} {start:<13} {lag}"
        for topic, partition, start, lag in rows
    )
    return (*OFFSETS, *lines)


AFTER_THE_MOVE = """
The start offset is told as it is after the last acknowledgement; Kafka stores it one write late.
"""
SINCE_THE_SUBSCRIPTION = (
    AFTER_THE_MOVE
    + """
Where a new subscription begins is decided when it is added, so that nothing is passed over; Kafka
decides when a leader first loads the partition, and knows nothing (a dash) until then.
"""
)
WHOLE_TOPICS = """
A group that comes to know a topic begins in all of its partitions then, for the same reason.
"""
FIRST_ANSWER = """
The first answer to a member has its assignment, so its epoch is 1; with Kafka it is the second.
"""
LEFT = [("sa", at, 10, 0) for at in range(3)] + [("sb", at, 10, 0) for at in range(2)]
MADE = [("sa", at, 10, 0) for at in range(3)] + [("sb", at, 5, 5) for at in range(2)]
INTENDED = {
    "--describe --group partly": Intended(
        WHOLE_TOPICS, offsets("partly", ("sa", 0, 0, 10), ("sa", 1, 10, 0), ("sa", 2, 10, 0))
    ),
    "--describe --group busy --offsets": Intended(AFTER_THE_MOVE, offsets("busy", *LEFT[:3])),
    "--describe --group busy --members --verbose": Intended(
        FIRST_ANSWER,
        (
            "",
            "GROUP           CONSUMER-ID            HOST            CLIENT-ID       #PARTITIONS  "
            "MEMBER-EPOCH  ASSIGNMENT",
            "busy            <member> /127.0.0.1      b1              3            1             "
            "sa:0,1,2",
        ),
    ),
    "--describe --group busy (left)": Intended(SINCE_THE_SUBSCRIPTION, offsets("busy", *LEFT)),
    "--describe --all-groups (again)": Intended(
        SINCE_THE_SUBSCRIPTION, offsets("busy", *LEFT) + offsets("made", *MADE)
    ),
    "--describe --group busy (without sa)": Intended(
        SINCE_THE_SUBSCRIPTION, offsets("busy", *LEFT[3:])
    ),
}


def test_the_tool_prints_the_same_of_both(sides: Sides) -> None:
    def tell(side: Side) -> dict[str, Outcome]:
        story = ShareStory(side)
        for chapter in CHAPTERS:
            chapter(story)
        return story.told

    printed_the_same(sides, tell, INTENDED)


OURS = (
    "--reset-offsets --group ours --topic cli --to-earliest --dry-run",
    "--reset-offsets --group ours --topic cli --to-earliest --execute",
    "--describe --group ours",
    "--describe --group ours --verbose",
    "--describe --group ours --state",
    "--describe --group ours --members",
    "--list --state",
    "--reset-offsets --group ours --all-topics --to-datetime 2023-11-14T22:13:25.000 --execute",
    "--reset-offsets --group ours --topic cli:1 --to-latest --execute",
    "--describe --group ours",
    "--delete-offsets --group ours --topic cli",
    "--reset-offsets --group ours --topic cli --to-latest --execute",
    "--delete --group ours",
    "--list",
)


def test_our_tool_prints_of_both_what_kafkas_prints_of_kafka(sides: Sides) -> None:
    def prepare(side: Side) -> None:
        side.order("create", "cli", partitions=2)
        side.order("produce", "cli", partitions=2, count=RECORDS, time=FIRST_MS)

    sides.both(prepare)
    for command in OURS:
        ours = [_ours(side, command) for side in (sides.headrace, sides.kafka)]
        assert ours[0] == ours[1], command
        if "--execute" not in command and "--delete" not in command:  # not a second time
            assert ours[1] == sides.kafka.run(TOOL, *command.split()).out, command


def _ours(side: Side, command: str) -> tuple[str, ...]:
    """What `headrace share-groups` prints, as `Side.run` has it; it must end well."""
    servers = ("--bootstrap-server", side.servers)
    ended = CliRunner().invoke(app, ["share-groups", *servers, *command.split()])
    assert ended.exit_code == 0, ended.stderr
    return side.normal(ended.stdout)


def prepare(side: Side) -> None:
    """Return once there is a coordinator that knows the topic, which Kafka's takes a while to."""
    until = time.monotonic() + KNOWN_SECONDS_MAX
    while error := alter_share_group_offsets(side.cluster, "first", {("edge", 0): 0}).all():
        assert time.monotonic() < until, error
        time.sleep(0.1)


def test_requests_that_no_tool_sends_are_answered_alike(sides: Sides) -> None:
    """The codes of administration at its edges, on one broker after the other."""

    def tell(side: Side) -> dict[str, Any]:
        side.order("create", "edge", partitions=1)
        prepare(side)
        codes = Codes(side)
        told = {
            "alter, no name": codes.alter("", ("edge", 0, 0)),
            "alter, new group": codes.alter("edges", ("edge", 0, 0)),
            "alter, unknown places": codes.alter("edges", ("edge", 3, 0), ("nowhere", 0, 0)),
            "alter, to the policy": codes.alter("edges", ("edge", 0, -1)),
            "alter, nothing": codes.alter("edges"),
            "describe": codes.described("edges", "", "absent"),
            "offsets, no name": codes.offsets("", None),
            "offsets, unknown group": codes.offsets("absent", ("edge", "nowhere")),
            "offsets, unknown group, all": codes.offsets("absent", None),
            "offsets, unknown topic": codes.offsets("edges", ("nowhere",)),
            "forget, no name": codes.forget("", "edge"),
            "forget, unknown group": codes.forget("absent", "edge"),
            "forget, unknown topic": codes.forget("edges", "nowhere"),
            "list, by type": codes.listed(types=("SHARE",)),
            "list, by state": codes.listed(types=("share",), states=("EMPTY",)),
            "list, by a type that is none": codes.listed(types=("nonsense",)),
            "other protocols": codes.other_protocols("edges"),
            "delete": codes.delete("edges", "absent"),
            "delete again": codes.delete("edges"),
        }
        assert delete_share_groups(side.cluster, ["first"]) == {"first": None}
        side.beat("edge-consumers", "edge")
        return told | {
            "alter, consumers": codes.alter("edge-consumers", ("edge", 0, 0)),
            "describe, consumers": codes.described("edge-consumers"),
            "offsets, consumers": codes.offsets("edge-consumers", ("edge",)),
            "forget, consumers": codes.forget("edge-consumers", "edge"),
            "join, consumers": codes.share("edge-consumers"),
        }

    kafka, headrace = sides.both(tell)
    assert headrace == kafka
    assert headrace["other protocols"] == [23, 69, 69, "Dead", 69]


@dataclass(frozen=True, slots=True)
class Codes:
    """What one side answers to bare requests: codes, and little else."""

    side: Side

    def ask(self, key: int, version: int, **request: Any) -> Any:
        return self.side.cluster.ask(key, version, request)

    def alter(self, group: str, *starts: tuple[str, int, int]) -> Any:
        topics = [
            {"topic_name": name, "partitions": [{"partition_index": at, "start_offset": start}]}
            for name, at, start in starts
        ]
        answer = self.ask(91, 0, group_id=group, topics=topics)
        found = [
            (topic.topic_name, one.partition_index, one.error_code)
            for topic in answer.responses
            for one in topic.partitions
        ]
        return answer.error_code or sorted(found)

    def offsets(self, group: str, topics: tuple[str, ...] | None) -> Any:
        asked = topics and [{"topic_name": name, "partitions": [0]} for name in topics]
        (found,) = self.ask(90, 1, groups=[{"group_id": group, "topics": asked}]).groups
        return found.error_code or [
            (topic.topic_name, one.error_code, one.start_offset, one.lag)
            for topic in found.topics
            for one in topic.partitions
        ]

    def forget(self, group: str, topic: str) -> Any:
        answer = self.ask(92, 0, group_id=group, topics=[{"topic_name": topic}])
        return answer.error_code or [one.error_code for one in answer.responses]

    def described(self, *groups: str) -> Any:
        answer = self.ask(77, 1, group_ids=groups, include_authorized_operations=True)
        return sorted(
            (one.group_id, one.error_code, one.group_state, one.assignor_name, len(one.members))
            for one in answer.groups
        )

    def listed(self, types: tuple[str, ...], states: tuple[str, ...] = ()) -> Any:
        answer = self.ask(16, 5, states_filter=states, types_filter=types)
        found = [one for one in answer.groups if one.group_id == "edges"]
        return [(one.protocol_type, one.group_state, one.group_type) for one in found]

    def delete(self, *groups: str) -> Any:
        answer = self.ask(42, 2, groups_names=groups)
        return sorted((one.group_id, one.error_code) for one in answer.results)

    def share(self, group: str) -> Any:
        return self.ask(
            76, 1, group_id=group, member_id="edge", member_epoch=0, rack_id=None,
            subscribed_topic_names=["edge"],
        ).error_code  # fmt: skip

    def other_protocols(self, group: str) -> Any:
        """What members of consumer groups and their administrators hear of a share group."""
        codes = [
            _code(lambda: self.side.join(group, "consumer", SUBSCRIPTION)),
            _code(lambda: self.side.beat(group, "edge")),
        ]
        (old,) = self.ask(15, 6, groups=[group], include_authorized_operations=False).groups
        (new,) = self.ask(69, 1, group_ids=[group], include_authorized_operations=False).groups
        return [*codes, old.error_code, old.group_state, new.error_code]


def _code(beat: Callable[[], object]) -> int:
    """What a request is refused with; 0 when it is not."""
    try:
        beat()
    except BrokerError as refused:
        return refused.code
    return 0

"""Apache Kafka's kafka-share-groups: the same commands to Apache Kafka and to Headrace.

One story, told to both brokers at the same time: after each command the tool must have printed the
same. What is meant to differ is listed here, one by one, with the reason.
"""

from dataclasses import dataclass

from .share_groups_story import CHAPTERS, ShareStory
from .side_by_side import Outcome, Side, Sides

OFFSETS = ("", "GROUP           TOPIC           PARTITION  START-OFFSET  LAG")


@dataclass(frozen=True, slots=True)
class Intended:
    """Why Headrace answers a command otherwise than Apache Kafka, and what the tool prints then."""

    why: str
    out: tuple[str, ...]


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
NOTHING_LEFT = """
A share group is its members and where it begins; no record says that one without either exists.
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
    "--describe --group busy (without any)": Intended(
        NOTHING_LEFT,
        (
            "",
            "Error: Executing share group command failed due to "
            "org.apache.kafka.common.errors.GroupIdNotFoundException: Group busy not found.",
        ),
    ),
    "--list --state (with one that knows nothing)": Intended(
        NOTHING_LEFT, ("GROUP           STATE", "made            Empty")
    ),
}


def test_the_tool_prints_the_same_of_both(sides: Sides) -> None:
    def tell(side: Side) -> dict[str, Outcome]:
        story = ShareStory(side)
        for chapter in CHAPTERS:
            chapter(story)
        return story.told

    kafka, headrace = sides.both(tell)
    differing = {
        command: {"kafka": kafka[command], "headrace": headrace[command]}
        for command in kafka
        if kafka[command] != headrace[command]
    }
    assert {command: headrace[command].out for command in differing} == {
        command: intended.out for command, intended in INTENDED.items()
    }, differing

"""Apache Kafka's kafka-consumer-groups: the same commands to Apache Kafka and to Headrace.

One story, told to both brokers at the same time: after each command the tool must have printed the
same. What is meant to differ is listed here, one by one, with the reason.
"""

from pathlib import Path

import pytest

from headrace.client.errors import BrokerError

from .groups_story import CHAPTERS, SUBSCRIPTION, Story
from .side_by_side import Intended, Outcome, Side, Sides, printed_the_same

PARTITION_LEVEL = (
    "",
    "Error: Encountered some partition-level error, see the follow-up details.",
    "",
    "TOPIC           PARTITION  STATUS",
)
SUBSCRIBED = (
    "Error: org.apache.kafka.common.errors.GroupSubscribedToTopicException: Deleting offsets of a"
    " topic is forbidden while the consumer group is actively subscribed to it."
)
GONE = "org.apache.kafka.common.errors.GroupIdNotFoundException: "


OWN_WORDS = "What is wrong is said in words of our own."
TOPICS_SUFFICE = """
A subscription that ends before its user data is malformed to Kafka, and such a group counts as
subscribed to everything. KIP-496 asks for the topics alone, so those are known.
"""
NOTHING_LEFT = """
A simple group is its offsets: no record says that it exists. Kafka keeps it in memory until the
next check or restart, whichever comes first; here what is live is what the journal says.
"""
INTENDED = {
    "--describe --group ''": Intended(
        OWN_WORDS,
        (
            "",
            "Error: Executing consumer group command failed due to"
            " org.apache.kafka.common.errors.InvalidGroupIdException: The group id is empty.",
        ),
    ),
    "--delete-offsets --group short --topic a:0 --topic b:0": Intended(
        TOPICS_SUFFICE,
        (
            *PARTITION_LEVEL,
            f"a               0          {SUBSCRIBED}",
            "b               0          Successful",
        ),
    ),
    "--delete-offsets --group single --topic a:0 --topic a:1": Intended(
        NOTHING_LEFT,
        (
            "",
            "Error: The group id does not exist.",
            "",
            "TOPIC           PARTITION  STATUS",
            f"a               0          Error: {GONE}The group id does not exist.",
            f"a               1          Error: {GONE}The group id does not exist.",
        ),
    ),
    "--describe --group single": Intended(
        NOTHING_LEFT,
        (
            "",
            f"Error: Executing consumer group command failed due to {GONE}Group single not found.",
        ),
    ),
}


def test_the_tool_prints_the_same_of_both(sides: Sides, tmp_path: Path) -> None:
    def tell(side: Side) -> dict[str, Outcome]:
        story = Story(side, tmp_path)
        for chapter in CHAPTERS:
            chapter(story)
        return story.told

    printed_the_same(sides, tell, INTENDED)


def test_protocols_do_not_mix(sides: Sides) -> None:
    """A group has members of one protocol at a time; the next ones may speak the other."""

    def story(side: Side) -> dict[str, str]:
        side.order("create", "mixed", partitions=1)
        codes = {}
        for group, protocol in (("old", "classic"), ("young", "consumer")):
            settings = {"group.protocol": protocol}
            side.order("join", protocol, group=group, topics=["mixed"], settings=settings)
            side.order("own", counts={protocol: 1})
        for group, join in (
            ("old", lambda: side.beat("old", "mixed")),
            ("young", lambda: side.join("young", "consumer", SUBSCRIPTION)),
        ):
            with pytest.raises(BrokerError) as refused:
                join()
            codes[group] = refused.value.name
        for protocol in ("classic", "consumer"):
            side.order("leave", protocol)
        side.beat("old", "mixed")
        side.join("young", "consumer", SUBSCRIPTION)
        return codes

    kafka, headrace = sides.both(story)
    assert headrace == kafka
    assert headrace == {
        "old": "GROUP_ID_NOT_FOUND",
        "young": "INCONSISTENT_GROUP_PROTOCOL",
    }

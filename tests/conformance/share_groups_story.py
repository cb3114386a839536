"""A story about share groups: what happens, and which commands of kafka-share-groups look.

Its chapters follow one another: each begins with the groups that the last one left.
"""

from collections.abc import Callable

from .side_by_side import ToolStory

TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
RECORDS, FIRST_MS = 10, 1_700_000_000_000  # 2023-11-14T22:13:20Z, then one a second
TO_EARLIEST = "--reset-offsets --group {} --topic {} --to-earliest --execute"


class ShareStory(ToolStory):
    """Share groups, and what their tool says of them."""

    program = TOOL

    def member(self, name: str, group: str, *topics: str) -> None:
        self.side.order("share", name, group=group, topics=topics)

    def shared(self, group: str, *, members: int, partitions: int) -> None:
        self.side.order("shared", group, members=members, partitions=partitions)


def no_groups(story: ShareStory) -> None:
    for topic, partitions in (("sa", 3), ("sb", 2), ("sc", 1)):
        story.side.order("create", topic, partitions=partitions)
        story.side.order("produce", topic, partitions=partitions, count=RECORDS, time=FIRST_MS)
    story.tool(
        "--list",
        "--list --state",
        "--list --state nonsense",
        "--describe --all-groups",
        "--describe --group absent",
        "--describe --group absent --members",
        "--describe --group absent --state",
        "--delete --group absent",
        "--delete-offsets --group absent --topic sa",
        "--reset-offsets --group absent --all-topics --to-earliest --execute",
    )


def unusable_commands(story: ShareStory) -> None:
    story.tool(
        "--list --describe",
        "--describe",
        "--describe --group g --members --state",
        "--describe --group g --state Empty",
        "--reset-offsets --group g --topic sa --to-latest",
        "--reset-offsets --group g --topic sa --execute",
        "--reset-offsets --group g --to-latest --execute",
        "--reset-offsets --group g --topic sa --to-latest --to-earliest --execute",
        "--reset-offsets --group g --topic sa --to-latest --dry-run --execute",
        "--delete-offsets --group g",
        "--delete",
    )


def resets(story: ShareStory) -> None:
    story.tool(
        "--reset-offsets --group made --topic sa --topic sb:0,1 --to-earliest --dry-run",
        "--list (still none)",
        "--reset-offsets --group made --topic sa --topic sb:0,1 --to-earliest --execute",
        "--list",
        "--list --state",
        "--list --state empty,stable",
        "--list --state Stable",
        "--describe --group made",
        "--describe --group made --offsets --verbose",
        "--describe --group made --members",
        "--describe --group made --state",
        "--reset-offsets --group made --all-topics --to-latest --execute",
        "--describe --group made (at the end)",
        "--reset-offsets --group made --topic sb --to-datetime 2023-11-14T22:13:25.000 --execute",
        "--reset-offsets --group made --topic sa:1 --to-datetime 2033-11-14T22:13:25.000 --execute",
        "--describe --group made (at a time)",
        "--reset-offsets --group made --topic absent --to-earliest --execute",
        "--reset-offsets --group made --topic sa:9 --to-earliest --execute",
        "--reset-offsets --group made --topic sa:x --to-earliest --execute",
        "--reset-offsets --group partly --topic sa:0 --to-earliest --execute",
        "--describe --group partly",
    )


def an_active_group(story: ShareStory) -> None:
    story.tool(TO_EARLIEST.format("busy", "sa"))
    story.member("b1", "busy", "sa")
    story.shared("busy", members=1, partitions=3)
    story.side.order("accepted", "b1", count=3 * RECORDS)
    story.tool(
        "--list --state (busy)",
        "--describe --group busy --offsets",
        "--describe --group busy --members",
        "--describe --group busy --members --verbose",
        "--describe --group busy --state",
        "--reset-offsets --group busy --topic sa --to-earliest --execute",
        "--reset-offsets --group busy --topic sa --to-earliest --dry-run",
        "--delete-offsets --group busy --topic sa",
        "--delete --group busy",
        "--delete --group busy --group partly",
    )
    story.member("b2", "busy", "sa", "sb")
    story.shared("busy", members=2, partitions=5)
    story.tool("--describe --group busy --group made --state")
    story.side.order("unshare", "b1")
    story.shared("busy", members=1, partitions=5)
    story.side.order("unshare", "b2")
    story.shared("busy", members=0, partitions=0)
    story.tool(
        "--describe --group busy (left)",
        "--describe --group busy --members (left)",
        "--describe --group busy --state (left)",
        "--describe --all-groups",
    )


def an_end(story: ShareStory) -> None:
    story.tool(
        "--delete-offsets --group busy --topic sa --topic sc --topic absent",
        "--describe --group busy (without sa)",
        "--delete-offsets --group busy --topic sb",
        "--describe --group busy (without any)",
        "--list --state (with one that knows nothing)",
        "--reset-offsets --group busy --topic sa:0 --to-earliest --execute",
        "--delete --group busy --group absent",
        "--delete --group made",
        "--delete --all-groups",
        "--list (at the end)",
    )


def a_group_of_consumers(story: ShareStory) -> None:
    settings = {"group.protocol": "consumer"}
    story.side.order("join", "c1", group="consumers", topics=["sa"], settings=settings)
    story.side.order("own", counts={"c1": 3})
    story.tool(
        "--list (beside consumers)",
        "--describe --group consumers",
        "--reset-offsets --group consumers --topic sa --to-earliest --execute",
        "--delete-offsets --group consumers --topic sa",
        "--delete --group consumers",
    )
    story.side.order("leave", "c1")


CHAPTERS: list[Callable[[ShareStory], None]] = [
    no_groups,
    unusable_commands,
    resets,
    an_active_group,
    an_end,
    a_group_of_consumers,
]

"""A story about consumer groups: what happens, and which commands of kafka-consumer-groups look.

Its chapters follow one another: each begins with the groups that the last one left.
"""

import shlex
import struct
import time
from collections.abc import Callable
from pathlib import Path

from .side_by_side import Side, ToolStory

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_SETTLED_SECONDS_MAX, _LOOK_SECONDS = 60, 0.02
RECORDS, FIRST_MS = 10, 1_700_000_000_000  # 2023-11-14T22:13:20Z, then one a second

# A subscription of version 0 to "a": the topics, and user data of no bytes.
TOPICS_ONLY = struct.pack(">hih1s", 0, 1, 1, b"a")
SUBSCRIPTION = TOPICS_ONLY + struct.pack(">i", 0)


class Story(ToolStory):
    """Consumer groups, and what their tool says of them; files for it are in `folder`."""

    program = TOOL

    def __init__(self, side: Side, folder: Path) -> None:
        super().__init__(side)
        self.folder = folder

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def member(self, name: str, group: str, *topics: str, **settings: str) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.side.order("join", name, group=group, topics=topics, settings=given)

    def own(self, group: str = "", **counts: int) -> None:
        """Wait until members own so many partitions; members of the new protocol said so too."""
        self.side.order("own", counts=counts)
        deadline = time.monotonic() + _SETTLED_SECONDS_MAX
        while group and self.side.state(group) != "Stable":
            assert time.monotonic() < deadline, f"{group} is {self.side.state(group)}"
            time.sleep(_LOOK_SECONDS)

    def commit(self, name: str, **offsets: int) -> None:
        given = {place.replace("_", "-"): offset for place, offset in offsets.items()}
        self.side.order("commit", name, offsets=given)


def no_groups(story: Story) -> None:
    for topic, partitions in (("a", 3), ("b", 2), ("unread", 1)):
        story.side.order("create", topic, partitions=partitions)
    for topic, partitions in (("a", 3), ("b", 2)):
        story.side.order("produce", topic, partitions=partitions, count=RECORDS, time=FIRST_MS)
    story.tool(
        "--list",
        "--list --state",
        "--describe --all-groups",
        "--describe --all-groups --members",
        "--describe --group nobody",
        "--describe --group nobody --members",
        "--describe --group nobody --state",
        "--describe --group ''",
        "--delete --group nobody",
        "--delete --group ''",
        "--delete-offsets --group nobody --topic a:0,1 --topic nowhere",
        "--delete-offsets --group '' --topic a:0",
        "--delete --all-groups",
    )


def simple_group(story: Story) -> None:
    story.tool(
        "--reset-offsets --group simple --topic a --to-earliest --dry-run",
        "--list",
        "--reset-offsets --group simple --topic a:0,1 --to-offset 4 --execute",
        "--list --state",
        "--list --type",
        "--describe --group simple",
        "--describe --group simple --verbose",
        "--describe --group simple --members",
        "--describe --group simple --members --verbose",
        "--describe --group simple --state",
        "--describe --group simple --state --verbose",
        "--describe --group simple --offsets --group nobody",
    )


def resets(story: Story) -> None:
    reset = "--reset-offsets --group simple"
    csv = story.file("plan.csv", "a,0,2\na,1,99\nb,1,7\n")
    grouped = story.file("groups.csv", "simple,a,0,3\nother,b,0,1\n")
    absent = story.folder / "absent.csv"
    story.tool(
        f"{reset} --topic a --to-latest --dry-run",
        f"{reset} --topic a --to-earliest",
        f"{reset} --topic a:1 --to-offset 99 --dry-run",
        f"{reset} --topic a:1 --to-offset 0 --dry-run",
        f"{reset} --topic a:0,1 --shift-by 3 --dry-run",
        f"{reset} --topic a:0,1 --shift-by -7 --dry-run",
        f"{reset} --topic a --shift-by 1 --dry-run",
        f"{reset} --topic a --to-current --dry-run",
        f"{reset} --topic a --topic b:1 --to-datetime 2023-11-14T22:13:25.000Z --dry-run",
        f"{reset} --topic a --topic unread --to-datetime 2030-01-01T00:00:00.000 --dry-run",
        f"{reset} --topic a --to-datetime yesterday --dry-run",
        f"{reset} --topic a --by-duration P36500D --dry-run",
        f"{reset} --topic a --by-duration PT1H --dry-run",
        f"{reset} --topic a --by-duration long --dry-run",
        f"{reset} --all-topics --to-earliest --dry-run",
        f"{reset} --topic a --to-earliest --export --dry-run",
        f"{reset} --group other --topic b --to-latest --export --dry-run",
        f"{reset} --from-file {shlex.quote(csv)} --dry-run",
        f"{reset} --from-file {shlex.quote(csv)} --execute",
        "--describe --group simple",
        f"{reset} --group other --from-file {shlex.quote(grouped)} --execute",
        "--describe --group simple --group other --offsets --verbose",
        f"{reset} --from-file {shlex.quote(str(absent))} --dry-run",
        f"{reset} --topic nowhere --to-earliest --dry-run",
        f"{reset} --topic a:7 --to-earliest --dry-run",
        f"{reset} --topic a --to-earliest --execute --export",
        f"{reset} --to-earliest --dry-run",
        f"{reset} --topic a --dry-run",
        f"{reset} --topic a --to-earliest --to-latest --dry-run",
        f"{reset} --topic a --to-earliest --dry-run --execute",
        "--reset-offsets --topic a --to-earliest",
        "--reset-offsets --all-groups --all-topics --to-current --dry-run",
    )


def active_group(story: Story) -> None:
    story.member("one", "active", "a", "b")
    story.own(one=5)
    story.commit("one", a_0=5, a_1=10, b_0=3)
    story.side.order("subscribe", "one", topics=["a"])
    story.own(one=3)
    story.tool(
        "--list --state",
        "--describe --group active",
        "--describe --group active --offsets --verbose",
        "--describe --group active --members",
        "--describe --group active --members --verbose",
        "--describe --group active --state",
        "--describe --group active --state --verbose",
        "--delete-offsets --group active --topic a",
        "--delete-offsets --group active --topic a:0 --topic b:0",
        "--delete-offsets --group active --topic b --topic nowhere --topic a:9",
        "--describe --group active",
        "--reset-offsets --group active --topic a --to-earliest --execute",
        "--delete --group active",
        "--delete --group active --group nobody --group other",
    )


def a_reader_at_the_end(story: Story) -> None:
    """What it commits carries the epochs of the leaders that it read from."""
    story.member("reader", "readers", "a", auto_offset_reset="earliest")
    story.side.order("read", "reader", count=3 * RECORDS)
    story.tool("--describe --group readers --verbose")
    story.side.order("leave", "reader")
    story.tool("--describe --group readers --offsets --verbose", "--delete --group readers")


def several_members(story: Story) -> None:
    cooperative = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    story.member("c1", "shared", "a", partition_assignment_strategy=cooperative)
    story.own(c1=3)
    story.member("c2", "shared", "a", partition_assignment_strategy=cooperative)
    story.own(c1=2, c2=1)
    fixed = {"session_timeout_ms": "300000"}  # s2 goes, and is to be a member to the end
    story.member("s1", "static", "a", group_instance_id="i1", **fixed)
    story.own(s1=3)
    story.member("s2", "static", "a", "b", group_instance_id="i2", **fixed)
    story.own(s1=2, s2=3)
    for group in ("shared", "static"):
        story.tool(
            f"--describe --group {group}",
            f"--describe --group {group} --members",
            f"--describe --group {group} --members --verbose",
            f"--describe --group {group} --state",
        )
    story.side.order("leave", "s2")  # a static member does not leave its group
    story.tool("--describe --group static --members --verbose", "--describe --all-groups --state")


def groups_of_other_clients(story: Story) -> None:
    connect = story.side.join("workers", "connect", b"any bytes")
    story.side.sync("workers", *connect)
    story.side.join("assigning", "consumer", SUBSCRIPTION)  # it never hands out the assignment
    story.side.sync("short", *story.side.join("short", "consumer", TOPICS_ONLY))
    story.side.sync("empty", *story.side.join("empty", "consumer", b""))
    story.tool(
        "--list --state",
        "--list --type consumer",
        "--list --type Classic",
        "--list --type bogus",
        "--list --state stable,empty",
        "--list --state CompletingRebalance",
        "--list --state bogus",
        "--describe --group workers",
        "--delete-offsets --group workers --topic a:0",
        "--describe --group assigning",
        "--describe --group assigning --members",
        "--describe --group assigning --state",
        "--reset-offsets --group assigning --topic a --to-earliest --execute",
        "--delete-offsets --group assigning --topic a:0 --topic b:0",
        "--delete-offsets --group short --topic a:0 --topic b:0",
        "--delete-offsets --group empty --topic a:0 --topic b:0",
        "--describe --group short --members --verbose",
    )


def empty_group(story: Story) -> None:
    story.side.order("leave", "one")
    story.tool(
        "--list --state",
        "--describe --group active",
        "--describe --group active --members",
        "--describe --group active --state",
        "--delete-offsets --group active --topic nowhere",
        "--delete-offsets --group active --topic a:0,9 --topic b --topic nowhere",
        "--delete-offsets --group active --topic 'bad topic'",
        "--delete-offsets --group active --topic a:x",
        "--delete-offsets --group active --topic a:",
        "--delete-offsets --group active",
        "--describe --group active",
        "--reset-offsets --group active --topic b --to-latest --execute",
        "--describe --group active",
        "--delete --group active --group simple",
        "--delete --group active",
        "--describe --group active",
        "--delete --group simple --topic a",
        "--list --state",
    )


def new_protocol(story: Story) -> None:
    new = {"group_protocol": "consumer"}
    story.member("n1", "new", "a", "b", **new)
    story.own("new", n1=5)
    story.commit("n1", a_0=5, b_0=3)
    story.side.order("subscribe", "n1", topics=["a"])
    story.own("new", n1=3)
    story.tool(
        "--list --state --type",
        "--list --type Consumer",
        "--describe --group new",
        "--describe --group new --offsets --verbose",
        "--describe --group new --members",
        "--describe --group new --members --verbose",
        "--describe --group new --state",
        "--describe --group new --state --verbose",
        "--delete-offsets --group new --topic a:0 --topic b:0",
        "--reset-offsets --group new --topic a --to-earliest --execute",
        "--delete --group new",
    )
    story.member("n2", "new", "a", "unread", **new)
    story.own("new", n1=2, n2=2)
    story.tool("--describe --group new --members", "--describe --group new --state")
    for number in (1, 2):
        name, fixed = f"r{number}", {"group_instance_id": f"i{number}"}
        story.member(name, "ranged", "a", group_remote_assignor="range", **fixed, **new)
        story.own("ranged", **{"r1": 3} if number == 1 else {"r1": 2, "r2": 1})
    story.side.order(
        "join", "p", group="matched", pattern="^(a|u.*)$", settings={"group.protocol": "consumer"}
    )
    story.own("matched", p=4)
    story.tool(
        "--describe --group ranged",
        "--describe --group ranged --members --verbose",
        "--describe --group ranged --state --verbose",
        "--describe --group matched --members --verbose",
        "--describe --group matched --state",
        "--delete-offsets --group matched --topic unread --topic b",
    )


def new_protocol_left(story: Story) -> None:
    story.side.order("leave", "n1")
    story.own("new", n2=4)
    story.side.order("leave", "n2")
    story.tool(
        "--describe --group new (left)",
        "--describe --group new --members (left)",
        "--describe --group new --members --verbose (left)",
        "--describe --group new --state (left)",
        "--describe --group new --state --verbose (left)",
        "--reset-offsets --group new --topic a:0 --to-latest --execute",
        "--reset-offsets --group new --topic a:0 --topic b:0 --shift-by -1 --dry-run",
        "--delete-offsets --group new --topic a:0",
        "--list --type consumer --state empty",
        "--delete --group new (left)",
    )


def a_name_changes_its_kind(story: Story) -> None:
    story.member("then", "moving", "a")
    story.own(then=3)
    story.commit("then", a_0=4)
    story.side.order("leave", "then")
    story.member("now", "moving", "a", group_protocol="consumer")
    story.own("moving", now=3)
    story.tool("--describe --group moving", "--list --type --state")
    story.side.order("leave", "now")
    story.member("again", "moving", "a")
    story.own(again=3)
    story.tool("--describe --group moving (again)", "--describe --group moving --state")


def a_topic_is_deleted(story: Story) -> None:
    story.side.order("create", "brief", partitions=1)
    story.tool(
        "--reset-offsets --group bereaved --topic brief --topic a:0 --to-earliest --execute",
        "--describe --group bereaved",
    )
    story.side.order("delete", "brief", group="bereaved")
    story.tool(
        "--describe --group bereaved (again)",
        "--delete-offsets --group bereaved --topic brief",
        "--delete-offsets --group bereaved --topic brief:0",
        "--reset-offsets --group bereaved --all-topics --to-latest --execute",
        "--describe --group bereaved (reset)",
    )


def last_offset_of_a_simple_group(story: Story) -> None:
    story.tool(
        "--reset-offsets --group single --topic a:0 --to-earliest --execute",
        "--delete-offsets --group single --topic a:0",
        "--delete-offsets --group single --topic a:0 --topic a:1",
        "--describe --group single",
    )


CHAPTERS: list[Callable[[Story], None]] = [
    no_groups,
    simple_group,
    resets,
    active_group,
    a_reader_at_the_end,
    several_members,
    groups_of_other_clients,
    empty_group,
    new_protocol,
    new_protocol_left,
    a_name_changes_its_kind,
    a_topic_is_deleted,
    last_offset_of_a_simple_group,
]

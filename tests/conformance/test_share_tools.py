"""Apache Kafka's programs for share groups, besides the story of kafka-share-groups.

kafka-console-share-consumer with its options; kafka-share-groups, kafka-groups and kafka-configs
while records are held, released, rejected and accepted; the state topic as its formatter prints it.
"""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.client.admin import log_end
from headrace.wire.batches import Record

from .share_asking import ACCEPT, FINAL, REJECT, RELEASE, Asking
from .share_groups_story import TOOL
from .side_by_side import Intended, Outcome, Side, Sides

CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
FORMATTERS = "org.apache.kafka.tools.consumer"
STRINGS = "org.apache.kafka.common.serialization"
STATE_TOPIC = "__share_group_state"
RECORDS = [
    Record(0, 1_700_000_000_000, b"k0", b"zero", (("a", b"1"), ("b", None))),
    Record(0, 1_700_000_001_000, None, b"one"),
    Record(0, 1_700_000_002_000, b"k2", None),
    Record(0, 1_700_000_003_000, b"", "drei é".encode()),
    *(Record(0, 1_700_000_004_000, b"k", b"%d" % number) for number in range(4, 16)),
]
Told = dict[str, Outcome]
EVERYTHING = " ".join(
    f"--formatter-property print.{what}=true"
    for what in ("timestamp", "key", "offset", "delivery", "epoch", "partition", "headers", "value")
)
# In this order, in one group; each leaves records for the next.
RELEASES = [
    f"--release --max-messages 4 {EVERYTHING}",
    f"--release --max-messages 2 {EVERYTHING}",
    f"--accept --max-messages 4 {EVERYTHING}",
]
CONSOLE_RUNS = [
    "--accept --max-messages 2 --formatter-property print.delivery=true",
    "--reject --max-messages 1 --property print.offset=true --property print.key=true",
    "--max-messages 1 --formatter-property null.literal=NIL --formatter-property print.key=true",
    "--max-messages 2 --formatter-property print.offset=true "
    "--formatter-property print.value=false",
    "--max-messages 2 --formatter-property print.key=true --formatter-property key.separator=| "
    "--formatter-property line.separator=;",
    f"--max-messages 1 --formatter {FORMATTERS}.NoOpMessageFormatter",
    f"--max-messages 1 --formatter {FORMATTERS}.LoggingMessageFormatter",
    f"--max-messages 1 --formatter-property value.deserializer={STRINGS}.StringDeserializer",
    f"--max-messages 1 --value-deserializer {STRINGS}.LongDeserializer --timeout-ms 15000",
    f"--max-messages 2 --reject-message-on-error --value-deserializer {STRINGS}.LongDeserializer",
    "--max-messages 1 --enable-systest-events",
    "--max-messages 1 --command-property client.id=mine",
    "--timeout-ms 6000",
]
AT_LAST = "--timeout-ms 500"  # ends one that is not refused
UNUSABLE = [
    "",
    "--group g",
    "--topic t --accept --release",
    "--topic t --release --reject",
    "--topic t --accept --reject",
    "--topic t --max-messages many",
    "--topic t --max-messages -2",
    "--topic t --timeout-ms 600",
    "--topic t --formatter no.such.Formatter",
    "--topic t --formatter-property print.key",
    "--topic t --group g --command-property group.id=other",
    "--topic t --command-property group.id=g --consumer-property client.id=c",
    "--topic t --formatter-property print.key=true --property print.value=true",
    "--topic t --nonsense",
    "--topic t extra",
]


def run(side: Side, program: str, commands: list[str], common: str = "") -> Told:
    return {
        one: side.run(program, *shlex.split(f"{common} {one.partition(' (')[0]}"))
        for one in commands
    }


def agreed(
    sides: Sides, story: Callable[[Side], Told], intended: dict[str, Intended] | None = None
) -> None:
    """Both sides print the same, but for the output that is listed."""
    kafka, headrace = sides.both(story)
    differing = {
        command: {"kafka": kafka[command], "headrace": headrace[command]}
        for command in kafka
        if kafka[command] != headrace[command]
    }
    expected = {command: one.out for command, one in (intended or {}).items()}
    assert {one: headrace[one].out for one in differing} == expected, differing


def test_the_console_share_consumer_releases(sides: Sides) -> None:
    def tell(side: Side) -> Told:
        with Asking(side, name="released") as asking:
            asking.append(RECORDS[:4])
            return run(side, CONSOLE, RELEASES, "--topic released --group released")

    agreed(sides, tell)


def test_the_console_share_consumer_accepts_and_rejects(sides: Sides) -> None:
    def tell(side: Side) -> Told:
        with Asking(side, name="console") as asking:
            for record in RECORDS:
                asking.append([record])
            # One by one, so that no run has records that it leaves, and that count as delivered.
            common = "--topic console --group console --command-property max.poll.records=1"
            told = run(side, CONSOLE, CONSOLE_RUNS, common)
            return told | run(side, TOOL, ["--describe --group console --state"])

    agreed(sides, tell)


def test_the_console_share_consumer_refuses_what_it_cannot_use(sides: Sides) -> None:
    agreed(sides, lambda side: run(side, CONSOLE, UNUSABLE, AT_LAST))


LOOKS = [
    "--describe --group held",
    "--describe --group held --verbose",
    "--describe --group held --members",
    "--describe --group held --members --verbose",
    "--describe --group held --state",
    "--describe --group held --state --verbose",
    "--describe --all-groups --members",
    "--list --state stable",
]


EPOCHS = "the first answer brings the assignment, so there are fewer epochs"
AFTER = "the stored start offset is the one after the move"


def members(*rows: tuple[str, int]) -> tuple[str, ...]:
    """The verbose table of members: name and epoch."""
    head = f"{'#PARTITIONS':<12} {'MEMBER-EPOCH':<13} ASSIGNMENT"
    place = f"{'held':<15} {{:<15}} {'/127.0.0.1':<15} {'headrace':<15}"
    return (
        "",
        f"{'GROUP':<15} {'CONSUMER-ID':<15} {'HOST':<15} {'CLIENT-ID':<15} {head}",
        *(f"{place.format(name)} {1:<12} {epoch:<13} held:0" for name, epoch in rows),
    )


def state(state: str, epoch: int, assigned: int, members: int) -> tuple[str, ...]:
    """The verbose table of states."""
    head = f"{'GROUP-EPOCH':<12} {'ASSIGNMENT-EPOCH':<17} #MEMBERS"
    row = f"{epoch:<12} {assigned:<17} {members}"
    coordinator = f"{'127.0.0.1:12345  (1)':<25}".replace("12345", "<port>")
    return (
        "",
        f"{'GROUP':<15} {'COORDINATOR (ID)':<25} {'STATE':<15} {head}",
        f"{'held':<15} {coordinator} {state:<15} {row}",
    )


INTENDED = {
    "--describe --group held --members --verbose (held)": Intended(
        EPOCHS, members(("first", 1), ("second", 2))
    ),
    "--describe --group held --state --verbose (held)": Intended(EPOCHS, state("Stable", 2, 2, 2)),
    "--describe --group held (rejected)": Intended(
        AFTER,
        (
            "",
            "GROUP           TOPIC           PARTITION  START-OFFSET  LAG",
            "held            held            0          11            9",
        ),
    ),
    "--describe --group held --members --verbose (one left)": Intended(
        EPOCHS, members(("second", 2))
    ),
    "--describe --group held --state --verbose (one left)": Intended(
        EPOCHS, state("Stable", 3, 3, 1)
    ),
    "--describe --group held --state --verbose (empty)": Intended(EPOCHS, state("Empty", 4, 4, 0)),
}


def test_the_tools_while_records_are_held(sides: Sides) -> None:
    def tell(side: Side) -> Told:
        told: Told = {}

        def look(when: str, *commands: str) -> None:
            found = run(side, TOOL, list(commands))
            told.update({f"{one} ({when})": outcome for one, outcome in found.items()})

        with Asking(side, name="held") as asking:
            asking.produce(10, 10)
            first = asking.member("first")
            second = asking.member("second")
            first.take(max_records=10)
            second.take()
            first.acknowledge((0, 0, ACCEPT))
            second.acknowledge((10, 10, ACCEPT))
            look("held", *LOOKS)
            first.acknowledge((1, 9, RELEASE))
            look("released", LOOKS[0])
            first.take()
            first.acknowledge((1, 4, REJECT), (5, 9, ACCEPT))
            look(
                "rejected",
                LOOKS[0],
                "--delete --group held",
                "--delete-offsets --group held --topic held",
            )
            first.acknowledge(epoch=FINAL)
            second.acknowledge(epoch=FINAL)
            first.leave()
            look("one left", *LOOKS[2:6])
            second.leave()
            look("empty", *LOOKS)
            told.update(run(side, GROUPS, [
                "--list", "--list --share", "--list --consumer", "--list --group-type share",
                "--list --group-type nonsense", "--list --protocol share", "--list --streams",
                "--list --share --consumer", "--share",
            ]))  # fmt: skip
            look(
                "reset",
                "--reset-offsets --group held --topic held --to-earliest --execute",
                LOOKS[0],
            )
            look("gone", "--delete --group held", "--list")
            told.update(run(side, GROUPS, ["--list --protocol share --group-type share"]))
            return told

    agreed(sides, tell, INTENDED)


SET = "--alter --entity-type groups --entity-name set"
CONFIGURE = [
    "--describe --entity-type groups --entity-name set",
    f"{SET} --add-config share.record.lock.duration.ms=20000",
    f"{SET} --add-config share.delivery.count.limit=7,share.auto.offset.reset=earliest,"
    "share.isolation.level=read_committed,share.renew.acknowledge.enable=false,"
    "share.partition.max.record.locks=300,share.heartbeat.interval.ms=200",
    "--describe --entity-type groups --entity-name set (set)",
    f"{SET} --delete-config share.delivery.count.limit",
    "--describe --entity-type groups",
    "--describe --group set",
    f"{SET} --add-config share.delivery.count.limit=1",
    f"{SET} --add-config share.delivery.count.limit=x",
    f"{SET} --add-config share.auto.offset.reset=none",
    f"{SET} --add-config no.such.setting=1",
    f"{SET} --delete-config share.delivery.count.limit (again)",
    "--describe --entity-type groups --entity-name nobody",
    "--alter --entity-type groups --add-config share.delivery.count.limit=5",
]


def test_kafka_configs_of_a_group(sides: Sides) -> None:
    """Why a value is refused is said in words of our own."""

    def without_reason(outcome: Outcome) -> Outcome:
        error = (
            re.sub(r"(InvalidConfigurationException): .*", r"\1", one) for one in outcome.error
        )
        return replace(outcome, error=tuple(error))

    def tell(side: Side) -> Told:
        told = run(side, CONFIGS, CONFIGURE)
        return {command: without_reason(outcome) for command, outcome in told.items()}

    agreed(sides, tell)


def test_the_formatter_of_the_state_topic(sides: Sides) -> None:
    """Both journals, replayed as the formatter prints them, end in the same state."""

    def tell(side: Side) -> Any:
        with Asking(side, name="journal") as asking:
            asking.produce(10)
            member = asking.member()
            member.take()
            for ack in ((0, 3, ACCEPT), (6, 6, REJECT), (9, 9, RELEASE), (5, 5, ACCEPT)):
                assert member.acknowledge(ack) == 0
            told = printed(side)
        records = [one for one in told if one["key"]["data"]["groupId"] == "journal"]
        state: dict[int, tuple[int, int]] = {}
        for record in records:
            for batch in record["value"]["data"]["stateBatches"]:
                for offset in range(batch["firstOffset"], batch["lastOffset"] + 1):
                    state[offset] = batch["deliveryState"], batch["deliveryCount"]
        last = records[-1]["value"]["data"]
        assert last["startOffset"] in (-1, 4)  # -1: as it was
        ahead = {offset: found for offset, found in state.items() if offset >= 4}
        return ahead, last["deliveryCompleteCount"]

    kafka, headrace = sides.both(tell)
    assert headrace == kafka
    assert headrace == ({5: (2, 1), 6: (4, 1), 9: (0, 1)}, 2)


def printed(side: Side) -> list[Any]:
    """The records of the state topic, in the words of Kafka's formatter."""
    count = log_end(side.cluster, STATE_TOPIC, 0)
    reading = f"--topic {STATE_TOPIC} --partition 0 --offset earliest --max-messages {count}"
    formatter = f"--formatter {FORMATTERS}.group.share.ShareGroupStateMessageFormatter"
    outcome = side.run(f"{FORMATTERS}.ConsoleConsumer", *f"{reading} {formatter}".split())
    assert outcome.code == 0, outcome.error
    text, found = "".join(outcome.out), []
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        one, position = decoder.raw_decode(text, position)
        found.append(one)
    return found

"""Reset policies of groups, as clients that know nothing of them see what comes of it."""

import time
from typing import Any

import pytest

from headrace.core.reset import Strategy

from .share_wire_rig import add_partitions, configure, cut, produce

CONFIGS, DESCRIBE_CONFIGS, BEAT, FETCH, LEAVE = 44, 32, 68, 9, 13
OTHER = "offset.reset.strategy.offset-out-of-range"
BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
OLD_MS = 5  # the time of a record that was there before any group
START, END = 4, 10

NOTHING_COMMITTED = {  # (of an old partition, of one whose first record is newer than the group)
    "none": (-1, -1),
    "earliest": (START, START),
    "latest": (END, END),
    "earliest_on_start": (START, START),
    "latest_on_start": (END, END),
    "safe_latest": (END, START),
}
OUTSIDE = (  # strategy, the other setting, and where an offset under and over the log goes
    ("none", "none", None, None),
    ("earliest", "none", START, START),
    ("latest", "none", END, END),
    ("earliest_on_start", "none", None, None),
    ("latest_on_start", "none", None, None),
    ("safe_latest", "none", END, END),
    ("", "nearest", START, END),
    ("earliest", "nearest", START, END),
)


class Classic:
    """A member of the classic protocol, as of librdkafka: old versions, and no member id."""

    def __init__(self, client: Any, subscribed: bytes) -> None:
        self.client = client
        told = {"protocols": ({"name": "range", "metadata": subscribed},)}
        self.id = client.stable(**told)

    def fetch(self, *indexes: int) -> list[int]:
        return [one[2] for one in self.client.fetch(*(("orders", n) for n in indexes), version=7)]

    def commit(self, partition: int, offset: int) -> None:
        place = ("orders", partition, offset)
        ((_, _, code),) = self.client.commit(place, generation=1, member=self.id)
        assert code == 0

    def leave(self) -> None:
        gone = {"member_id": self.id, "group_instance_id": None, "reason": None}
        self.client.wire.call(LEAVE, 5, group_id="g", members=(gone,))


class Modern:
    """A member of KIP-848, as of Java: by topic id, with its id and epoch."""

    def __init__(self, client: Any, **asked: Any) -> None:
        self.client = client
        self.id, self.epoch = "m", 0
        self._asked: dict[str, Any] = {"topic_partitions": (), "rebalance_timeout": 60_000}
        self._asked |= {"subscribed_topic_names": ("orders",), "subscribed_topic_regex": None}
        self._asked |= asked
        self.beat()

    def beat(self, epoch: int | None = None) -> None:
        wanted = self.epoch if epoch is None else epoch
        answer = self.client.wire.call(
            BEAT, 1, group_id="g", member_id=self.id, member_epoch=wanted, instance_id=None,
            rack_id=None, server_assignor=None, **self._asked,
        )  # fmt: skip
        assert answer.error_code == 0, answer.error_message
        self.epoch = answer.member_epoch

    def ask(self, *indexes: int, member: str | None, epoch: int, stable: bool = True) -> list[int]:
        topic = {"topic_id": self.client.topic_id, "partition_indexes": indexes}
        one = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": (topic,)}
        (told,) = self.client.wire.call(FETCH, 10, groups=(one,), require_stable=stable).groups
        return [one.committed_offset for topic in told.topics for one in topic.partitions]

    def fetch(self, *indexes: int) -> list[int]:
        return self.ask(*indexes, member=self.id, epoch=self.epoch)

    def commit(self, partition: int, offset: int) -> None:
        ((_, _, code),) = self.client.commit(
            (self.client.topic_id, partition, offset), version=10, generation=self.epoch,
            member=self.id,
        )  # fmt: skip
        assert code == 0

    def leave(self) -> None:
        self.beat(-1)


@pytest.fixture
def orders(client: Any) -> Any:
    """Two partitions of "orders"; the first has records 4 to 9, all of them old."""
    client.topic_id = client.create_topic("orders", 2)
    produce(client.wire, END, at=OLD_MS)
    cut(client.wire, START)
    return client


@pytest.fixture(params=["classic", "modern"])
def member(request: pytest.FixtureRequest, orders: Any) -> Any:
    if request.param == "classic":
        return Classic(orders, _subscribed("orders", "absent"))
    return Modern(orders)


def committed(client: Any) -> dict[tuple[str, int], int]:
    """What an administrator sees."""
    return {one[:2]: one[2] for one in client.fetch(everything=True)}


def _subscribed(*topics: str) -> bytes:
    names = b"".join(len(one).to_bytes(2) + one.encode() for one in topics)
    return bytes(2) + len(topics).to_bytes(4) + names + b"\xff\xff\xff\xff"


def later() -> int:
    """A time that is later than when any group of the test began, in ms."""
    return time.time_ns() // 1_000_000 + 60_000


# ---- settings


def altered(wire: Any, name: str, value: str) -> tuple[int, str]:
    entry = {"name": name, "config_operation": 0, "value": value}
    one = {"resource_type": 32, "resource_name": "g", "configs": (entry,)}
    (told,) = wire.call(CONFIGS, 1, resources=(one,), validate_only=False).responses
    return told.error_code, told.error_message or ""


def test_settings_are_off_and_can_be_described(wire: Any) -> None:
    def described() -> dict[str, str]:
        one = {"resource_type": 32, "resource_name": "g", "configuration_keys": None}
        (told,) = wire.call(DESCRIBE_CONFIGS, 4, resources=(one,)).results
        found = {one.name: one.value for one in told.configs}
        return {name: found[name] for name in ("auto.offset.reset", OTHER)}

    assert described() == {"auto.offset.reset": "", OTHER: "none"}
    for strategy in Strategy:
        assert altered(wire, "auto.offset.reset", strategy) == (0, "")
    assert altered(wire, OTHER, "nearest") == (0, "")
    assert described() == {"auto.offset.reset": "safe_latest", OTHER: "nearest"}


@pytest.mark.parametrize("wrong", ["nearest", "safe-latest", "LATEST", "by_duration:P1D"])
def test_wrong_values_are_refused_with_those_that_are_allowed(wire: Any, wrong: str) -> None:
    allowed = "none, earliest, latest, earliest_on_start, latest_on_start, safe_latest"
    told = f"auto.offset.reset: {wrong!r} is none of {allowed}"
    assert altered(wire, "auto.offset.reset", wrong) == (40, told)
    assert altered(wire, OTHER, wrong)[0] == (0 if wrong == "nearest" else 40)
    assert altered(wire, OTHER, "latest") == (40, f"{OTHER}: 'latest' is none of none, nearest")


# ---- partitions that were added


def test_new_partitions_of_a_topic_are_seeded_before_anybody_produces(member: Any) -> None:
    wire = member.client.wire
    configure(wire, auto_offset_reset="latest")
    add_partitions(wire, 4)
    assert committed(member.client) == {("orders", 2): 0, ("orders", 3): 0}
    produce(wire, 3, partition=2)
    assert member.fetch(2, 3) == [0, 0]


def test_without_a_policy_the_client_decides(member: Any) -> None:
    wire = member.client.wire
    add_partitions(wire, 4)
    produce(wire, 3, partition=2)
    assert member.fetch(0, 2) == [-1, -1]
    assert committed(member.client) == {}


def test_a_group_that_is_away_has_new_partitions_of_what_it_read(member: Any) -> None:
    wire = member.client.wire
    configure(wire, auto_offset_reset="safe_latest")
    member.commit(0, 7)
    member.leave()
    add_partitions(wire, 3)
    produce(wire, 3, partition=2)
    assert committed(member.client) == {("orders", 0): 7, ("orders", 2): 0}


def test_a_topic_that_comes_later_is_seeded(orders: Any) -> None:
    configure(orders.wire, auto_offset_reset="latest")
    Classic(orders, _subscribed("orders", "bills"))
    orders.create_topic("bills", 2)
    orders.create_topic("others", 2)
    assert committed(orders) == {("bills", 0): 0, ("bills", 1): 0}


def test_a_topic_that_a_regular_expression_brings_is_seeded(orders: Any) -> None:
    configure(orders.wire, auto_offset_reset="latest")
    Modern(orders, subscribed_topic_names=None, subscribed_topic_regex="order.*")
    orders.create_topic("orders-eu", 1)
    orders.create_topic("bills", 1)
    assert committed(orders) == {("orders-eu", 0): 0}


def test_a_topic_that_a_client_finds_by_its_own_pattern_loses_nothing(orders: Any) -> None:
    """Patterns of classic members stay with the client, which rejoins once it saw the topic."""
    configure(orders.wire, auto_offset_reset="safe_latest")
    told = {"protocols": ({"name": "range", "metadata": _subscribed("orders")},)}
    member = orders.stable(**told)
    orders.create_topic("orders-eu", 1)
    produce(orders.wire, 3, topic="orders-eu", at=later())
    told = {"protocols": ({"name": "range", "metadata": _subscribed("orders", "orders-eu")},)}
    assert orders.join(member=member, **told).error_code == 0
    assert orders.sync(member, 2).error_code == 0
    assert orders.fetch(("orders-eu", 0)) == [("orders-eu", 0, 0, 0)]


# ---- what a member asks for


@pytest.mark.parametrize("member", ["classic"], indirect=True)
@pytest.mark.parametrize("is_newer", [False, True])
@pytest.mark.parametrize("strategy", NOTHING_COMMITTED)
def test_nothing_is_committed(member: Any, strategy: str, is_newer: bool) -> None:
    wire, wanted = member.client.wire, NOTHING_COMMITTED[strategy][is_newer]
    configure(wire, auto_offset_reset=strategy)
    if is_newer:  # what was there is gone, and what is first now is newer than the group
        cut(wire, END)
        produce(wire, 2, at=later())
        wanted = {START: END, END: END + 2}.get(wanted, wanted)
    assert member.fetch(0) == [wanted]
    assert committed(member.client) == ({} if wanted == -1 else {("orders", 0): wanted})


def test_a_partition_without_records_is_read_from_its_start(member: Any) -> None:
    configure(member.client.wire, auto_offset_reset="safe_latest")
    assert member.fetch(1) == [0]
    produce(member.client.wire, 3, partition=1)
    assert member.fetch(1) == [0]


def test_an_offset_outside_the_log(member: Any) -> None:
    for strategy, nearest, under, over in OUTSIDE:
        assert altered(member.client.wire, "auto.offset.reset", strategy) == (0, "")
        assert altered(member.client.wire, OTHER, nearest) == (0, "")
        for position, wanted in ((START - 1, under), (END + 1, over), (START, START), (END, END)):
            member.commit(0, position)
            found = member.fetch(0)
            assert found == [position if wanted is None else wanted], (strategy, nearest, position)


def test_nearest_alone_leaves_what_is_missing_to_the_client(member: Any) -> None:
    assert altered(member.client.wire, OTHER, "nearest") == (0, "")
    assert member.fetch(0, 1) == [-1, -1]


# ---- who only looks


def test_an_administrator_changes_nothing(member: Any) -> None:
    configure(member.client.wire, auto_offset_reset="earliest")
    assert committed(member.client) == {}
    if isinstance(member, Modern):
        assert member.ask(0, member=None, epoch=-1, stable=False) == [-1]
    member.commit(0, START - 1)
    member.leave()
    assert member.client.fetch(("orders", 0), ("orders", 1), version=9) == [
        ("orders", 0, START - 1, 0),
        ("orders", 1, -1, 0),
    ]


def test_a_member_that_does_not_say_so_asks_for_what_is_stable(orders: Any) -> None:
    """librdkafka's, of the new protocol."""
    configure(orders.wire, auto_offset_reset="earliest")
    assert Modern(orders).ask(0, member=None, epoch=-1) == [START]


def test_who_is_no_member_any_more_changes_nothing(orders: Any) -> None:
    configure(orders.wire, auto_offset_reset="earliest")
    member = Modern(orders)
    assert member.ask(0, member="stranger", epoch=member.epoch) == []
    assert member.ask(0, member=member.id, epoch=member.epoch + 1) == []
    assert committed(orders) == {}


def test_what_nobody_has_is_no_partition(member: Any) -> None:
    configure(member.client.wire, auto_offset_reset="earliest")
    assert member.fetch(0, 7, -1) == [START, -1, -1]
    assert committed(member.client) == {("orders", 0): START}
    told = member.client.fetch(("absent", 0), version=5)
    assert told == [("absent", 0, -1, 0)]


def test_a_topic_that_is_not_subscribed_to_is_left_alone(member: Any) -> None:
    configure(member.client.wire, auto_offset_reset="earliest")
    member.client.create_topic("others")
    assert member.client.fetch(("others", 0), version=7) == [("others", 0, -1, 0)]
    assert committed(member.client) == {}


def test_the_policy_is_turned_off_again(member: Any) -> None:
    configure(member.client.wire, auto_offset_reset="earliest")
    assert member.fetch(0) == [START]
    configure(member.client.wire, auto_offset_reset="")
    assert member.fetch(0, 1) == [START, -1]

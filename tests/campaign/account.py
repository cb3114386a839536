"""Everything that clients can read of a broker, as plain data that compares.

An account maps a key (a section and a name) to a value. `ERROR` values say that the broker refuses
to serve a key. Keys of partitions are `("log", "orders-0")` and alike.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from tests.campaign.life import WALL_MS, Client, Life

from headrace.broker import metrics_families
from headrace.wire import batches
from headrace.wire import leases as lease
from headrace.wire.lease_sessions import (
    KEY as LEASE_SESSIONS,
)
from headrace.wire.lease_sessions import (
    ListLeaseSessionsRequest,
    ListLeaseSessionsResponse,
)
from headrace.wire.share_archived import ArchivedApi, ListArchivedRequest, ListArchivedResponse
from headrace.wire.share_records import KEY as SHARE_RECORDS
from headrace.wire.share_records import (
    DescribeShareRecordsRequest,
    DescribeShareRecordsResponse,
)

Key = tuple[str, str]
Account = dict[Key, Any]
Batch = tuple[int, int, str, int]
"""First and last offset, a digest of the bytes, their number."""

STORAGE_ERROR, CORRUPT_MESSAGE = 56, 2
REFUSALS = {STORAGE_ERROR, CORRUPT_MESSAGE}
_TOPIC, _BROKER, _GROUP = 2, 4, 32
_SETTINGS = {  # those that `data` sets
    _TOPIC: ["segment.bytes", "retention.ms", "cleanup.policy"],
    _BROKER: ["log.retention.ms"],
    _GROUP: [
        "errors.deadletterqueue.topic.name", "share.auto.offset.reset",
        "consumer.session.timeout.ms",
    ],
}  # fmt: skip
_FETCH_BYTES = 1 << 20
_ROUNDS_MAX = 1000


class StuckError(Exception):
    """A reader does not get on: the broker responds without an error and without records."""


class Refused:
    """The value of what the broker does not serve, with the error code of its response."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __repr__(self) -> str:
        return f"refused with {self.code}"


async def take(life: Life, *, probes: int = 3) -> Account:
    """The account of a broker.

    Args:
        probes: reads of single batches for each partition, in an order that no reader has; -1
            for one read of each batch.

    Raises: StuckError; HungUpError.
    """
    client = life.client()
    try:
        account: Account = {}
        partitions = await _topics(client, account)
        await _logs(client, account, partitions, probes)
        await _producers(client, account, partitions)
        await _groups(client, account)
        await _share_groups(client, account)
        await _others(life, client, partitions)
        answer = await client.call(
            22, 4, transactional_id=None, transaction_timeout=0, producer_id=-1, producer_epoch=-1
        )
        account["next producer id", ""] = answer.producer_id if not answer.error_code else -1
        return account
    finally:
        client.close()


async def _topics(client: Client, account: Account) -> list[tuple[str, int]]:
    metadata = await client.call(
        3, 12, topics=None, allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    account["cluster", ""] = metadata.cluster_id
    found = []
    for topic in metadata.topics:
        account["topic", topic.name] = str(topic.topic_id), len(topic.partitions)
        found += [(topic.name, one.partition_index) for one in topic.partitions]
    resources = [(_TOPIC, topic.name) for topic in metadata.topics]
    resources += [(_GROUP, name) for name in ("payments", "workers", "readers")]
    answer = await client.call(
        32, 4, include_synonyms=False, include_documentation=False,
        resources=[
            {"resource_type": kind, "resource_name": name, "configuration_keys": _SETTINGS[kind]}
            for kind, name in [*resources, (_BROKER, "1"), (_BROKER, "")]
        ],
    )  # fmt: skip
    for one in answer.results:
        account["settings", f"{one.resource_type} {one.resource_name}"] = sorted(
            (entry.name, entry.value) for entry in one.configs
        )
    return sorted(found)


# ---- logs


async def _logs(
    client: Client, account: Account, partitions: Sequence[tuple[str, int]], probes: int
) -> None:
    starts = await _list_offsets(client, partitions, dict.fromkeys(partitions, -2))
    ends = await _list_offsets(client, partitions, dict.fromkeys(partitions, -1))
    wanted = {}
    for place in partitions:
        start, end = starts[place], ends[place]
        if isinstance(start, Refused) or isinstance(end, Refused):
            account["log", _name(place)] = start if isinstance(start, Refused) else end
            continue
        account["bounds", _name(place)] = start[0], end[0]
        account["log", _name(place)] = []
        if start[0] < end[0]:
            wanted[place] = start[0], end[0]
    for _ in range(_ROUNDS_MAX):
        if not wanted:
            break
        await _read_on(client, account, wanted)
    else:
        raise StuckError(f"no end after {_ROUNDS_MAX} fetches of {wanted}")
    await _probe(client, account, probes)
    await _probe_times(client, account, partitions)


async def _read_on(
    client: Client, account: Account, wanted: dict[tuple[str, int], tuple[int, int]]
) -> None:
    """Read on in each of the logs; `wanted` are the next offset and the end of those not read."""
    offsets = {place: offset for place, (offset, _) in wanted.items()}
    for place, answer in (await _fetch(client, offsets, _FETCH_BYTES)).items():
        offset, end = wanted[place]
        if isinstance(answer, Refused):
            account["log", _name(place)] = answer
            del wanted[place]
            continue
        found = [batch for batch in _digests(answer) if batch[1] >= offset]
        if not found:
            raise StuckError(f"{_name(place)} at {offset} of {end}: no error, no record")
        account["log", _name(place)] += found
        if found[-1][1] + 1 < end:
            wanted[place] = found[-1][1] + 1, end
        else:
            del wanted[place]


async def _probe(client: Client, account: Account, probes: int) -> None:
    """Read single batches out of order: so each read is found by an index, not by the last."""
    rng = Random(1)
    rounds: list[dict[tuple[str, int], Batch]] = []
    for (section, name), value in list(account.items()):
        if section != "log" or isinstance(value, Refused) or not value:
            continue
        topic, _, index = name.rpartition("-")
        some = list(value) if probes < 0 else rng.sample(value, min(probes, len(value)))
        rng.shuffle(some)
        for number, batch in enumerate(some):
            if number == len(rounds):
                rounds.append({})
            rounds[number][topic, int(index)] = batch
    for wanted in rounds:
        # A batch can begin below the log start, where records of it were deleted.
        offsets = {place: batch[1] for place, batch in wanted.items()}
        # In one response only the first partition may exceed its bytes.
        answers = await _fetch(client, offsets, max(batch[3] for batch in wanted.values()))
        for place, batch in wanted.items():
            answer = answers[place]
            key = "log", _name(place)
            if isinstance(answer, Refused):
                account[key] = answer
            elif not answer:
                raise StuckError(f"{_name(place)} at {batch[1]}: no error, no record")
            elif next(_digests(answer)) != batch:
                account[key] = f"offset {batch[1]} is read as {next(_digests(answer))}, not {batch}"


async def _probe_times(
    client: Client, account: Account, partitions: Sequence[tuple[str, int]]
) -> None:
    partitions = [place for place in partitions if not place[0].startswith("__")]
    times = [-3, *(WALL_MS - 1_000_000 + 500 * step for step in (3, 11, 17))]
    found: dict[str, list[Any]] = {_name(place): [] for place in partitions}
    for timestamp in times:
        answers = await _list_offsets(client, partitions, dict.fromkeys(partitions, timestamp))
        for place, answer in answers.items():
            found[_name(place)].append(answer)
    for name, listed in found.items():
        refused = next((one for one in listed if isinstance(one, Refused)), None)
        account["times", name] = listed if refused is None else refused


def _digests(data: bytes) -> Iterator[Batch]:
    position = 0
    for header in batches.headers(data):
        piece = bytes(data[position : position + header.size])
        batches.verify(data, position, header)
        position += header.size
        yield (
            header.base_offset,
            header.last_offset,
            hashlib.blake2b(piece, digest_size=8).hexdigest(),
            len(piece),
        )


async def _fetch(
    client: Client, offsets: Mapping[tuple[str, int], int], bytes_max: int
) -> dict[tuple[str, int], Any]:
    answer = await client.call(
        1, 12, cluster_id=None, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1 << 30,
        isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
        topics=[
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": index, "current_leader_epoch": -1, "fetch_offset": offset,
                        "last_fetched_epoch": -1, "log_start_offset": -1,
                        "partition_max_bytes": bytes_max,
                    }
                ],
            }
            for (topic, index), offset in offsets.items()
        ],
    )  # fmt: skip
    return {
        (topic.topic, one.partition_index): (
            Refused(int(one.error_code)) if one.error_code else bytes(one.records or b"")
        )
        for topic in answer.responses
        for one in topic.partitions
    }


async def _list_offsets(
    client: Client, partitions: Sequence[tuple[str, int]], times: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], Any]:
    answer = await client.call(
        2, 8, replica_id=-1, isolation_level=0,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": index, "current_leader_epoch": -1,
                        "timestamp": times[topic, index],
                    }
                ],
            }
            for topic, index in partitions
        ],
    )  # fmt: skip
    return {
        (topic.name, one.partition_index): (
            Refused(int(one.error_code)) if one.error_code else (one.offset, one.timestamp)
        )
        for topic in answer.topics
        for one in topic.partitions
    }


async def _producers(
    client: Client, account: Account, partitions: Sequence[tuple[str, int]]
) -> None:
    answer = await client.call(
        61, 0, topics=[{"name": topic, "partition_indexes": [index]} for topic, index in partitions]
    )
    for topic in answer.topics:
        for one in topic.partitions:
            key = "producers", f"{topic.name}-{one.partition_index}"
            if one.error_code:
                account[key] = Refused(int(one.error_code))
                continue
            account[key] = sorted(
                (p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp)
                for p in one.active_producers
            )


# ---- groups


async def _groups(client: Client, account: Account) -> None:
    answer = await client.call(16, 5, states_filter=[], types_filter=[])
    account["groups", ""] = sorted((one.group_id, one.group_type) for one in answer.groups)
    kinds = [one for one in account["groups", ""] if one[1] != "share"]
    for group, kind in kinds:
        answer = await client.call(
            9, 8, groups=[{"group_id": group, "topics": None}], require_stable=False
        )
        (found,) = answer.groups
        account["offsets", group] = int(found.error_code) or sorted(
            (topic.name, one.partition_index, one.committed_offset, one.metadata)
            for topic in found.topics
            for one in topic.partitions
        )
        if kind == "consumer":
            answer = await client.call(
                69, 1, group_ids=[group], include_authorized_operations=False
            )
            (described,) = answer.groups
            account["group", group] = (
                described.group_state, described.group_epoch, described.assignment_epoch,
                sorted(
                    (m.member_id, m.member_epoch, m.subscribed_topic_names, str(m.assignment))
                    for m in described.members
                ),
            )  # fmt: skip
        else:
            answer = await client.call(15, 5, groups=[group], include_authorized_operations=False)
            (described,) = answer.groups
            account["group", group] = (
                described.group_state, described.protocol_type, described.protocol_data,
                sorted((m.member_id, m.member_assignment) for m in described.members),
            )  # fmt: skip


async def _share_groups(client: Client, account: Account) -> None:
    for group, kind in account["groups", ""]:
        if kind != "share":
            continue
        answer = await client.call(90, 1, groups=[{"group_id": group, "topics": None}])
        (found,) = answer.groups
        for topic in found.topics:
            for one in topic.partitions:
                key = "share start", f"{group} {topic.topic_name}-{one.partition_index}"
                code = int(one.error_code)
                account[key] = Refused(code) if code else one.start_offset
        records = await client.own(
            SHARE_RECORDS, DescribeShareRecordsRequest(group), DescribeShareRecordsResponse
        )
        for part in records.partitions:
            key = "share records", f"{group} {part.topic}-{part.partition}"
            account[key] = (
                part.error_code, part.start, part.end, part.records,
                [(run.first, run.last, run.state, run.delivery_count) for run in part.runs],
            )  # fmt: skip
            if part.error_code in REFUSALS:
                account[key] = Refused(part.error_code)
        listed = await client.own(
            ArchivedApi.LIST, ListArchivedRequest(group), ListArchivedResponse
        )
        for kept in listed.partitions:
            account["archived", f"{group} {kept.topic}-{kept.partition}"] = (
                kept.dropped, [str(run) for run in kept.runs],
            )  # fmt: skip
        sessions = await client.own(
            LEASE_SESSIONS, ListLeaseSessionsRequest(group), ListLeaseSessionsResponse
        )
        account["leases", group] = [
            (one.session, one.epoch, one.committed, one.topics, str(one.outstanding))
            for one in sessions.sessions
        ]


async def _others(life: Life, client: Client, partitions: Sequence[tuple[str, int]]) -> None:
    """Requests whose responses do not count, but which a damaged partition must not break."""
    for family, samples, _ in metrics_families.pieces(life.server, "partition"):
        assert family.name
        assert samples is not None
    topics = [{"topic": topic, "partitions": [index]} for topic, index in partitions]
    await client.call(35, 4, topics=topics)
    await client.call(
        23, 4, replica_id=-1,
        topics=[
            {
                "topic": topic,
                "partitions": [
                    {"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}
                ],
            }
            for topic, index in partitions
        ],
    )  # fmt: skip
    await client.own(
        lease.LeaseApi.DESCRIBE, lease.DescribeRequest("spark", "", -1), lease.DescribeResponse
    )
    life.services.trouble()


async def settled(life: Life) -> None:
    """Let what the broker begins by itself at its start come to its end."""
    for _ in range(20):
        await asyncio.sleep(0)
    del life


def _name(place: tuple[str, int]) -> str:
    return f"{place[0]}-{place[1]}"


def differences(before: Account, after: Account) -> list[tuple[Key, Any, Any]]:
    """What is not equal, by key; a next producer id may only be higher."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if key[0] == "next producer id":
            if new is None or new < old:
                found.append((key, old, new))
        elif old != new:
            found.append((key, old, new))
    return found

"""DescribeShareRecords (20906): what is in flight in a share group; it changes nothing.

Messages are those of `wire/share_records.py`. It asks no more than DESCRIBE of the group, as
DescribeShareGroupOffsets does. A partition is shown as it is at one instant, and others have their
turn between partitions. The answer leaves once what it rests on is durable: nobody is told of an
acknowledgement that a crash would take back.
"""

from collections.abc import Iterable

from headrace.broker.errors import Code, error_code
from headrace.broker.partitions import Partition
from headrace.broker.request import Answer, Request
from headrace.broker.services import Services
from headrace.core.browsing import Budget, page
from headrace.core.catalog import Topic
from headrace.core.errors import Refused, Why
from headrace.core.leases import told_holder
from headrace.core.runs import Piece, State, Status
from headrace.core.share_admin import Queue
from headrace.core.share_words import ShareKey, within_group
from headrace.core.types import MemberId, Now, elapsed_ms, later
from headrace.wire import share_records as wire
from headrace.wire.primitives import Reader

_FROM_START = 0
_UNKNOWN = -1
_NO_PARTITION = "This server does not host this topic-partition."
Place = tuple[str, int, int]  # topic, partition, first offset of interest


def decode(request: Request) -> wire.DescribeShareRecordsRequest:
    """Decode a request. Raises: Malformed."""
    return wire.DescribeShareRecordsRequest.read(Reader(request.body, 0, request.elements_max))


async def handle(request: Request, services: Services) -> Answer:
    answer = await _described(request.decoded or decode(request), services)
    if isinstance(answer, Refused):
        answer = wire.DescribeShareRecordsResponse(error_code(answer), answer.message)
    return await services.budgets.written(answer, len(answer.partitions))


async def _described(
    call: wire.DescribeShareRecordsRequest, services: Services
) -> wire.DescribeShareRecordsResponse | Refused:
    named = set(call.states)  # once each, as places: a short request could name one very often
    states = {state for state in State if state in named}
    if not call.group:
        return Refused(Why.INVALID_GROUP, "The group id is empty.")
    if call.runs_max < 0 or states != named:
        told = "runs_max begins at 0, states are 0 to 4"
        return Refused(Why.INVALID_REQUEST, told)
    machine = services.shares.machine(call.group)
    queue = services.shares.find(call.group)
    if queue.exists:
        places = list(_places(call, queue, services))
        for name, index, _ in places:
            await services.opened(name, index)
        answer: wire.DescribeShareRecordsResponse | Refused = await _shown(
            call, places, states or set(State), services
        )
    elif services.groups.find(call.group) is not None:
        told = f"Group {call.group} is not a share group."
        answer = Refused(Why.WRONG_GROUP_TYPE, told)
    else:
        answer = Refused(Why.UNKNOWN_GROUP, f"Group {call.group} not found.")
    faulty = await services.shares.durable_of(call.group, machine)
    return answer if faulty is None else faulty


async def _shown(
    call: wire.DescribeShareRecordsRequest,
    places: Iterable[Place],
    states: set[State],
    services: Services,
) -> wire.DescribeShareRecordsResponse:
    """Describe partitions whose logs are open, with pauses."""
    shares, budget = services.shares, Budget(min(call.runs_max, wire.RUNS_MAX), wire.BYTES_MAX)
    async with services.budgets.one_large():
        telling = _Telling(shares.find(call.group), services.clock.now())
        partitions = [
            _partition(place, states, budget, telling, services)
            async for place in services.budgets.portions(places)
        ]
    return wire.DescribeShareRecordsResponse(
        Code.NONE,
        None,
        tuple(telling.holders.values()),
        tuple(telling.reasons.values()),
        tuple(partitions),
    )


def _places(
    call: wire.DescribeShareRecordsRequest, queue: Queue, services: Services
) -> Iterable[Place]:
    """What is asked for, once each: a short request could ask for one partition very often."""
    if call.topics is None:
        known = _known(queue, services)
        return [(name, index, _FROM_START) for name in sorted(known) for index in known[name]]
    whole = any(cursor.partitions is None for cursor in call.topics)
    known = _known(queue, services) if whole else {}
    places: dict[tuple[str, int], Place] = {}
    # Equal ones once: a short request could ask for all of a topic very often.
    for cursor in dict.fromkeys(call.topics):
        cursors = cursor.partitions
        if cursors is None:
            indexes = known.get(cursor.topic) or _partitions(cursor.topic, services)
            cursors = tuple(wire.PartitionCursor(index, _FROM_START) for index in indexes)
        for one in cursors:
            place = (cursor.topic, one.partition, one.offset)
            places.setdefault(place[:2], place)
    return places.values()


def _known(queue: Queue, services: Services) -> dict[str, list[int]]:
    """The partitions that the group reads, by topic."""
    found: dict[str, list[int]] = {}
    for key in sorted(queue.partitions, key=within_group):
        topic = services.catalog.topics_by_id.get(key.topic_id)
        if topic is not None:
            found.setdefault(topic.name, []).append(key.partition)
    return found


def _partitions(topic: str, services: Services) -> Iterable[int]:
    """All partitions of a topic; one of a topic that is not there, to be told so."""
    known = services.catalog.topics.get(topic)
    return range(1 if known is None else known.partitions)


def _partition(
    place: Place, states: set[State], budget: Budget, telling: "_Telling", services: Services
) -> wire.Partition:
    name, index, offset = place
    topic = services.catalog.topics.get(name)
    if topic is None or not 0 <= index < topic.partitions:
        return wire.Partition(name, index, Code.UNKNOWN_TOPIC_OR_PARTITION, _NO_PARTITION)
    share = telling.queue.partitions.get(ShareKey(telling.queue.name, topic.id, index))
    if share is None:
        return wire.Partition(name, index, Code.NONE, None)
    code, message, log_start, high_watermark = _log_ends(topic, index, services)
    found = page(share, offset, states, budget, telling.size)
    return wire.Partition(
        name,
        index,
        code,
        message,
        share.start,
        share.end,
        log_start,
        high_watermark,
        tuple(share.runs.records[state] for state in State),
        found.next,
        tuple(map(telling.run, found.runs)),
    )


def _log_ends(topic: Topic, index: int, services: Services) -> tuple[Code, str | None, int, int]:
    partition: Partition | None = services.partitions.get(topic.id, index)
    if partition is None:  # it was added a moment ago, and is served once it is open
        return Code.UNKNOWN_TOPIC_OR_PARTITION, _NO_PARTITION, _UNKNOWN, _UNKNOWN
    try:
        return Code.NONE, None, partition.start_offset, partition.high_watermark
    except OSError as error:
        return Code.STORAGE_ERROR, str(error), _UNKNOWN, _UNKNOWN


class _Telling:
    """Runs as the answer has them; holders and reasons, which many runs share, once each."""

    def __init__(self, queue: Queue, now: Now) -> None:
        self.queue = queue
        self.holders: dict[MemberId, wire.Holder] = {}
        self.reasons: dict[str, str] = {}  # as they are, and cut to what is told
        self._now = now
        self._holder_at: dict[MemberId, int] = {}
        self._reason_at: dict[str, int] = {}
        self._sessions = {lease.holder: lease.key[1] for lease in queue.leases}

    def size(self, status: Status) -> int:
        """How many bytes a run takes, with what it is the first to name."""
        found = wire.Run.BYTES
        if status.holder is not None and status.holder not in self.holders:
            self._holder_at[status.holder] = len(self.holders)
            self.holders[status.holder] = holder = self._holder(status.holder)
            texts = (holder.member, holder.client_id, holder.client_host, holder.session)
            found += sum(len(text.encode()) for text in texts if text)
        if status.reason is not None and status.reason not in self.reasons:
            self._reason_at[status.reason] = len(self.reasons)
            self.reasons[status.reason] = _cut(status.reason)
            found += len(self.reasons[status.reason].encode())
        return found

    def run(self, piece: Piece) -> wire.Run:
        """A run that `size` was asked about."""
        first, last, status = piece
        left_ms = until = _UNKNOWN
        if status.deadline is not None:
            # One that has just ended is released with the next tick.
            left_ms = max(elapsed_ms(self._now.mono, status.deadline), 0)
            until = later(self._now.wall, left_ms)
        holder = _UNKNOWN if status.holder is None else self._holder_at[status.holder]
        reason = _UNKNOWN if status.reason is None else self._reason_at[status.reason]
        since = _UNKNOWN if status.since is None else status.since
        state, deliveries = status.state, status.deliveries
        return wire.Run(first, last, state, deliveries, holder, left_ms, until, since, reason)

    def _holder(self, name: MemberId) -> wire.Holder:
        session = self._sessions.get(name)
        if session is not None:
            return wire.Holder(_cut(name), session=_cut(session))
        members = {} if self.queue.group is None else self.queue.group.members
        member = members.get(name)
        if member is None:
            return wire.Holder(_cut(told_holder(name)))
        return wire.Holder(_cut(name), _cut(member.client_id), f"/{member.client_host}")


def _cut(text: str) -> str:
    return text[: wire.TEXT_CHARS_MAX]

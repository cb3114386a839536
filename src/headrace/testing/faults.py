"""Faults to order: answers that come late, are errors, or never come.

Which requests a fault hits is decided by what it asks for, by its count, and, with a probability,
by dice that the seed makes fall the same in every run. Each client.id has dice of its own for each
API, as the order in which the requests of several clients come is not the same in every run.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import TracebackType
from typing import Self, TypedDict, Unpack

from headrace.broker.apis import SERVED, SERVED_FOR_SHARE_GROUPS, Api
from headrace.wire import codec
from headrace.wire.error_codes import ErrorCode
from headrace.wire.message_items import Kind, Named, kinds_named
from headrace.wire.refusals import Place, Whole, places_of

APIS = {api.name: api for api in (*SERVED, *SERVED_FOR_SHARE_GROUPS)}
# Their answers have a code for the whole, but for errors of sessions alone; others are in topics.
_IN_TOPICS = frozenset({"Fetch", "Metadata", "ShareAcknowledge"})
_OF_SESSIONS = frozenset(
    {
        "FETCH_SESSION_ID_NOT_FOUND",
        "FETCH_SESSION_TOPIC_ID_ERROR",
        "INVALID_FETCH_SESSION_EPOCH",
        "INVALID_SHARE_SESSION_EPOCH",
        "SHARE_SESSION_LIMIT_REACHED",
        "SHARE_SESSION_NOT_FOUND",
    }
)
# A refusal of one of its topics would have to acquire from the others: it is refused whole.
_WHOLE = frozenset({"ShareFetch"})


class Effect(Enum):
    """What a fault does."""

    ERROR = "error"
    DELAY = "delay"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Hit:
    """A request that was hit: its API, what it named, and who sent it."""

    api: str
    topics: frozenset[str]
    groups: frozenset[str]
    client_id: str | None


class Which(TypedDict, total=False):
    """The words of `Faults` for which requests are meant."""

    api: str | None
    topic: str | None
    group: str | None
    member: str | None
    client_id: str | None
    times: int | None
    probability: float
    after: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Which requests a fault is meant for."""

    api: str | None = None
    topic: str | None = None
    group: str | None = None
    member: str | None = None
    client_id: str | None = None
    times: int | None = None
    probability: float = 1.0
    after: bool = False

    def fits(self, api: Api, named: Named, client_id: str | None) -> bool:
        """Whether a request is meant, count and dice apart."""
        return (
            self.api in (None, api.name)
            and (self.topic is None or self.topic in named.topics)
            and (self.group is None or self.group in named.groups)
            and (self.member is None or self.member in named.members)
            and self.client_id in (None, client_id)
        )


@dataclass(eq=False, slots=True)
class Fault:
    """One fault; made by `Faults`. As a context manager it is removed at the end of the block.

    `hit` has the requests that it hit, in their order.
    """

    effect: Effect
    aim: Aim
    error: str | None = None
    seconds: float = 0
    hit: list[Hit] = field(default_factory=list)
    _seed: str = field(default="", repr=False)
    _dice: dict[str, random.Random] = field(default_factory=dict, repr=False)
    _remove: "Callable[[Fault], None]" = field(default=lambda _: None, repr=False)

    @property
    def hits(self) -> int:
        """How many requests it hit."""
        return len(self.hit)

    @property
    def code(self) -> int:
        """The error code that it answers with."""
        assert self.error is not None
        return int(ErrorCode[self.error.lower()])

    def place(self, api: Api, version: int) -> Place | None:
        """Where the answer in `version` has room for the error; None where it has not."""
        places = places_of(codec.schemas(api.key, version)[1])
        whole = Whole.WHOLE if Whole.WHOLE in places else None
        if api.name in _WHOLE or self.error in _OF_SESSIONS:
            return whole
        if self.aim.topic is not None:
            return next((one for one in (Kind.TOPIC, Kind.RESOURCE) if one in places), None)
        if self.aim.member is not None and Kind.MEMBER in places:
            return Kind.MEMBER
        if api.name in _IN_TOPICS:
            return Kind.TOPIC
        return whole or next(iter(places), None)

    def strikes(self, api: Api, named: Named, client_id: str | None) -> bool:
        """Whether it hits this request; counts it if so."""
        times = self.aim.times
        used_up = times is not None and self.hits >= times
        if used_up or not self.aim.fits(api, named, client_id):
            return False
        if self._throw(api, client_id) >= self.aim.probability:
            return False
        topics, groups = frozenset(named.topics), frozenset(named.groups)
        self.hit.append(Hit(api.name, topics, groups, client_id))
        return True

    def _throw(self, api: Api, client_id: str | None) -> float:
        seed = f"{self._seed}/{api.name}/{client_id or ''}"
        if seed not in self._dice:
            self._dice[seed] = random.Random(seed)  # noqa: S311  # thrown again by its seed
        return self._dice[seed].random()

    def remove(self) -> None:
        """Hit no further request."""
        self._remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


class Faults:
    """The faults of one broker; iterating gives those that are in force, in the order they came.

    All methods take the same words for which requests are meant, each of which has to fit:
        api: the request's name as Kafka has it, any when not given.
        topic, group: named by the request, or by its fetch session.
        member: a member id, or a group.instance.id, that the request names.
        client_id: the client's setting `client.id`.
        times: how many requests are hit at most.
        probability: of being hit, for each of the others. By the seed the n-th request of a
            client.id with an API is hit in every run, or in none.
        after: the request takes effect first, and its answer alone is hit.

    Raises: ValueError, whose message is one line, for what cannot be.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._made = 0
        self._faults: tuple[Fault, ...] = ()

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, *, error: str, **which: Unpack[Which]) -> Fault:
        """Answer with an error, by Kafka's name of it; `api` has to be given."""
        return self._new(Fault(Effect.ERROR, _aim(which), error=error.upper()))

    def delay(self, seconds: float, **which: Unpack[Which]) -> Fault:
        """Take the request up that much later, by the broker's clock: an advance ends it."""
        return self._new(Fault(Effect.DELAY, _aim(which), seconds=seconds))

    def drop(self, **which: Unpack[Which]) -> Fault:
        """Close the connection instead of an answer."""
        return self._new(Fault(Effect.DROP, _aim(which)))

    def clear(self) -> None:
        """Remove all faults; the dice of later ones fall as if these had never been."""
        self._faults = ()
        self._made = 0

    def _new(self, fault: Fault) -> Fault:
        _check(fault)
        self._made += 1
        fault._seed = f"{self.seed}/{self._made}"
        fault._remove = self._remove
        self._faults = (*self._faults, fault)
        return fault

    def _remove(self, fault: Fault) -> None:
        self._faults = tuple(one for one in self._faults if one is not fault)


def _aim(which: Which) -> Aim:
    """Raises: ValueError for a word that is none."""
    known = list(Aim.__dataclass_fields__)
    for word in which:
        if word not in known:
            raise ValueError(f"faults know no word {word!r}{_perhaps(word, known)}")
    return Aim(**which)


def _check(fault: Fault) -> None:
    """Raises: ValueError."""
    aim = fault.aim
    if aim.api is not None and aim.api not in APIS:
        raise ValueError(f"no API is named {aim.api!r}{_perhaps(aim.api, list(APIS))}")
    if aim.times is not None and aim.times < 1:
        raise ValueError(f"times={aim.times}: a fault hits once at least, or leave times out")
    if not 0 < aim.probability <= 1:
        raise ValueError(f"probability={aim.probability}: give one above 0, up to 1")
    if fault.seconds < 0:
        raise ValueError(f"seconds={fault.seconds}: no request is answered before it comes")
    if aim.api is not None:
        for word in ("topic", "group", "member"):
            if getattr(aim, word) is not None and word not in _words_of(APIS[aim.api]):
                raise ValueError(f"{aim.api} requests name no {word}; leave {word} out")
    if fault.effect is Effect.ERROR:
        _check_error(fault)


def _check_error(fault: Fault) -> None:
    """Raises: ValueError."""
    if fault.aim.api is None:
        raise ValueError(f'name the api whose answers are to be {fault.error}: api="Fetch", say')
    api = APIS[fault.aim.api]
    known = [one.name.upper() for one in ErrorCode if one]
    if fault.error not in known:
        raise ValueError(f"Kafka has no error {fault.error!r}{_perhaps(str(fault.error), known)}")
    if not any(fault.place(api, version) is not None for version in _versions(api)):
        what = "an error" if fault.aim.topic is None else "an error of one topic"
        raise ValueError(f"{api.name} answers have no place for {what}: {fault.error}")


@cache
def _words_of(api: Api) -> frozenset[str]:
    """By what a request of the API can be chosen, in one version of it or another."""
    schemas = [codec.schemas(api.key, version)[0] for version in _versions(api)]
    return frozenset().union(*map(kinds_named, schemas))


def _versions(api: Api) -> list[int]:
    """Those that the codec knows: Headrace's own APIs have none."""
    return [version for version in api.versions if codec.knows(api.key, version)]


def _perhaps(word: str, known: list[str]) -> str:
    close = get_close_matches(word.lower(), [one.lower() for one in known], 1)
    meant = next((one for one in known if close and one.lower() == close[0]), None)
    return f"; did you mean {meant}?" if meant else ""

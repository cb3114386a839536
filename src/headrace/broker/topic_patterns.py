"""Regular expressions that consumers subscribe with (KIP-848), in RE2's syntax.

RE2 needs no more time than program size times name length, and its memory has a bound. A pattern
comes from a client, so programs above a size are refused, and where many names have to be matched,
`Patterns.prepare` does it in a thread, without the interpreter lock, before the group decides.
"""

import asyncio
from collections.abc import Collection, Iterable
from time import monotonic
from typing import Any, NamedTuple

from headrace.core.errors import Refused, Why

_CHARS_MAX, _CHARS_SHOWN = 8192, 40  # RE2 may need some tenths of a second to refuse such a one
_MEMORY_BYTES_MAX = 1024 * 1024  # per pattern; RE2 keeps 128 of them

SIZE_MAX = 10_000  # instructions of a program, where the caller sets no lower limit
_KNOWN_MAX = 1000  # patterns whose topics are remembered
_NAMES_MAX = 200_000  # names that all of them remember
_STEPS_MAX = 500_000  # program size times names: some milliseconds at most; more go to a thread
_SECONDS_MAX = 2.0  # for one pattern in a thread
_CAME_MAX = 10_000  # topics; when more came, all are looked at once


def matching(
    regex: str, names: Iterable[str], size_max: int = SIZE_MAX
) -> frozenset[str] | Refused:
    """The names that a pattern matches as a whole; refused when RE2 does not accept it.

    Also refused when the compiled pattern has more than `size_max` instructions.

    >>> sorted(matching("a.*|b", ["a", "ab", "b", "bc"]))
    ['a', 'ab', 'b']
    >>> matching("(?=a)b", []).message
    "SubscribedTopicRegex '(?=a)b' is no regular expression of RE2: invalid perl operator: (?=."
    """
    pattern = _compiled(regex, size_max)
    if isinstance(pattern, str):
        shown = regex if len(regex) <= _CHARS_MAX else regex[:_CHARS_SHOWN] + "..."
        return Refused(
            Why.INVALID_REGEX,
            f"SubscribedTopicRegex {shown!r} is no regular expression of RE2: {pattern}.",
        )
    # In bytes: RE2's wrapper counts through each str to tell where in it the match was.
    return frozenset(name for name in names if pattern.fullmatch(name.encode()))


class _Match(NamedTuple):
    topics: frozenset[str]
    until: int  # of the topics that came
    lost: int


class Patterns:
    """What patterns matched last, so that only topics that came since are looked at again.

    A hundred thousand names take a pattern some tenths of a second, and all others wait.
    """

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self._size_max = size_max
        self._preparing = asyncio.Lock()  # one pattern at a time
        self._names = 0  # that all known patterns remember
        self._known: dict[str, _Match] = {}  # the one that was asked for last is the last
        self._came: list[str] = []
        self._passed = 0  # that came before those
        self._lost = 0  # how often topics went

    def matching(self, regex: str, names: Collection[str]) -> frozenset[str] | Refused:
        """As the function; `names` are as they were but for what was told since."""
        known = self._taken(regex)
        if known is None or known.until < self._passed:
            found = matching(regex, names, self._size_max)
            if isinstance(found, Refused):
                return found
        else:
            found = known.topics
            if known.lost != self._lost:
                found = frozenset(name for name in found if name in names)
            came = [name for name in self._came[known.until - self._passed :] if name in names]
            if came:
                more = matching(regex, came, self._size_max)
                assert not isinstance(more, Refused), more
                found |= more
        self._keep(regex, _Match(found, self._passed + len(self._came), self._lost))
        return found

    async def prepare(self, regex: str, names: Collection[str]) -> Refused | None:
        """Match a pattern beside the event loop, if that takes long, for `matching` to find.

        Refused when RE2 does not accept the pattern, or it takes more than `_SECONDS_MAX`.
        """
        known = self._known.get(regex)
        is_new = known is None or known.until < self._passed
        count = len(names) if known is None or is_new else self._end - known.until
        pattern = _compiled(regex, self._size_max)
        if isinstance(pattern, str) or count * pattern.programsize <= _STEPS_MAX:
            return None  # `matching` is quick, or refuses it
        loop = asyncio.get_running_loop()
        async with self._preparing:
            until, lost = self._end, self._lost
            known = self._known.get(regex)
            if known is not None and known.until >= self._passed:
                came, before = self._came[known.until - self._passed :], known.topics
                lost = known.lost
            else:
                came, before = list(names), frozenset()
            found = await loop.run_in_executor(None, _matching_in_time, pattern, came)
            if found is None:
                return Refused(
                    Why.INVALID_REGEX,
                    f"SubscribedTopicRegex {regex[:_CHARS_SHOWN]!r} takes more than {_SECONDS_MAX}"
                    f" seconds for {len(came)} topics; use a simpler one.",
                )
            self._taken(regex)
            self._keep(regex, _Match(before | found, until, lost))
        return None

    @property
    def _end(self) -> int:
        return self._passed + len(self._came)

    def _taken(self, regex: str) -> _Match | None:
        known = self._known.pop(regex, None)
        if known is not None:
            self._names -= len(known.topics)
        return known

    def _keep(self, regex: str, found: _Match) -> None:
        self._known[regex] = found
        self._names += len(found.topics)
        while len(self._known) > _KNOWN_MAX or (self._names > _NAMES_MAX and len(self._known) > 1):
            self._taken(next(iter(self._known)))

    def came(self, name: str) -> None:
        """There is a new topic."""
        self._came.append(name)
        if len(self._came) > _CAME_MAX:
            self._passed += len(self._came)
            self._came = []

    def went(self) -> None:
        """A topic is gone."""
        self._lost += 1

    def forget(self) -> None:
        """The names may be others altogether."""
        self._lost += 1  # also for a pattern that is prepared now
        self._known.clear()
        self._names = 0


def _matching_in_time(pattern: Any, names: Iterable[str]) -> frozenset[str] | None:
    """The names that match, None when that takes too long; for a thread."""
    until = monotonic() + _SECONDS_MAX
    found = []
    for name in names:
        if pattern.fullmatch(name.encode()):
            found.append(name)
        if monotonic() > until:
            return None
    return frozenset(found)


def why_refused(regex: str) -> str | None:
    """Why a pattern is not accepted, None when it is.

    >>> why_refused("(?=a)b")
    'invalid perl operator: (?='
    """
    pattern = _compiled(regex)
    return pattern if isinstance(pattern, str) else None


def _compiled(regex: str, size_max: int = SIZE_MAX) -> Any:
    """RE2's pattern, or as a str why there is none."""
    if len(regex) > _CHARS_MAX:
        return f"it has more than {_CHARS_MAX} characters"
    import re2  # late: few brokers need it, and each would start later

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        pattern = re2.compile(regex, options=options)
    except re2.error as error:
        (said,) = error.args
        return said.decode(errors="replace") if isinstance(said, bytes) else said
    if pattern.programsize > size_max:
        return f"it is too large: {pattern.programsize} instructions, {size_max} are allowed"
    return pattern

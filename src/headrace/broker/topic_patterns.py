"""Regular expressions that consumers subscribe with (KIP-848), in RE2's syntax.

RE2 needs no more time than pattern times name, and its memory has a bound: a pattern comes from a
client, and all others wait while it is matched.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from headrace.core.errors import Refused, Why

_CHARS_MAX, _CHARS_SHOWN = 8192, 40  # RE2 may need some tenths of a second to refuse such a one
_MEMORY_BYTES_MAX = 1024 * 1024  # per pattern; RE2 keeps 128 of them

_KNOWN_MAX = 32  # patterns whose topics are remembered; as many names each as there are topics
_CAME_MAX = 10_000  # topics; when more came, all are looked at once


def matching(regex: str, names: Iterable[str]) -> frozenset[str] | Refused:
    """The names that a pattern matches as a whole; refused when RE2 does not accept it.

    >>> sorted(matching("a.*|b", ["a", "ab", "b", "bc"]))
    ['a', 'ab', 'b']
    >>> matching("(?=a)b", []).message
    "SubscribedTopicRegex '(?=a)b' is no regular expression of RE2: invalid perl operator: (?=."
    """
    pattern = _compiled(regex)
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

    def __init__(self) -> None:
        self._known: dict[str, _Match] = {}  # the one that was asked for last is the last
        self._came: list[str] = []
        self._passed = 0  # that came before those
        self._lost = 0  # how often topics went

    def matching(self, regex: str, names: Collection[str]) -> frozenset[str] | Refused:
        """As the function; `names` are as they were but for what was told since."""
        known = self._known.pop(regex, None)
        if known is None or known.until < self._passed:
            found = matching(regex, names)
            if isinstance(found, Refused):
                return found
        else:
            found = known.topics
            if known.lost != self._lost:
                found = frozenset(name for name in found if name in names)
            came = [name for name in self._came[known.until - self._passed :] if name in names]
            if came:
                more = matching(regex, came)
                assert not isinstance(more, Refused), more
                found |= more
        self._known[regex] = _Match(found, self._passed + len(self._came), self._lost)
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return found

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
        self._known.clear()


def why_refused(regex: str) -> str | None:
    """Why a pattern is not accepted, None when it is.

    >>> why_refused("(?=a)b")
    'invalid perl operator: (?='
    """
    pattern = _compiled(regex)
    return pattern if isinstance(pattern, str) else None


def _compiled(regex: str) -> Any:
    """RE2's pattern, or as a str why there is none."""
    if len(regex) > _CHARS_MAX:
        return f"it has more than {_CHARS_MAX} characters"
    import re2  # late: few brokers need it, and each would start later

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        return re2.compile(regex, options=options)
    except re2.error as error:
        (said,) = error.args
        return said.decode(errors="replace") if isinstance(said, bytes) else said

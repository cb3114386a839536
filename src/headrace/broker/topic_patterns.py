"""Regular expressions that consumers subscribe with (KIP-848), in RE2's syntax.

RE2 needs no more time than pattern times name, and its memory has a bound: a pattern comes from a
client, and all others wait while it is matched.
"""

from collections.abc import Iterable

from headrace.core.errors import Refused, Why

_CHARS_MAX = 8192  # RE2 may need some tenths of a second to refuse one as long as this
_MEMORY_BYTES_MAX = 1024 * 1024  # per pattern; RE2 keeps 128 of them


def matching(regex: str, names: Iterable[str]) -> frozenset[str] | Refused:
    """The names that a pattern matches as a whole; refused when RE2 does not accept it.

    >>> sorted(matching("a.*|b", ["a", "ab", "b", "bc"]))
    ['a', 'ab', 'b']
    >>> matching("(?=a)b", []).message
    "SubscribedTopicRegex '(?=a)b' is no regular expression of RE2: invalid perl operator: (?=."
    """
    if len(regex) > _CHARS_MAX:
        return _refused(regex[:40] + "...", f"it has more than {_CHARS_MAX} characters")
    import re2  # late: few brokers need it, and each would start later

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY_BYTES_MAX
    try:
        pattern = re2.compile(regex, options=options)
    except re2.error as error:
        (said,) = error.args
        return _refused(regex, said.decode(errors="replace") if isinstance(said, bytes) else said)
    return frozenset(name for name in names if pattern.fullmatch(name))


def _refused(regex: str, reason: str) -> Refused:
    return Refused(
        Why.INVALID_REGEX,
        f"SubscribedTopicRegex {regex!r} is no regular expression of RE2: {reason}.",
    )

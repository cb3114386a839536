"""Names that a caller gives: several of them, not the letters of one."""

from collections.abc import Iterable


def several(names: Iterable[str], what: str) -> list[str]:
    """The names as a list.

    Raises: `TypeError` for one string. Its letters are an `Iterable[str]` too, so no type checker
    tells; they would be the names of other things, which may be there and then be deleted. Also for
    a None among them, as of a variable of the environment that is not set: no request can hold it,
    and the broker, which hangs up on what is malformed, would seem to be away.
    """
    if isinstance(names, str | bytes):
        raise TypeError(f"{what} is one name, {names!r}; give a list of names")
    found = list(names)
    if None in found:
        raise TypeError(f"{what} holds None, which is no name")
    return found

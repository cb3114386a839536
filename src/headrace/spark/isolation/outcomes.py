"""What becomes of one record: values, or why it is set aside."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.spark.dispositions import REASON_LENGTH_MAX

_DELAY_S_MAX = 366 * 86_400  # the broker's limit
# What a function raises is its record's fault, but for these: they concern the whole process.
NO_FAULT_OF_A_RECORD = (MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit)

Errors = tuple[type[BaseException], ...]


class Release(Exception):
    """Raised for a record that shall be delivered again, e.g. as a service it needs is away.

    It comes not before `delay_s` seconds after the commit of its batch. Raises: ValueError for a
    delay below 0, or of more than 366 days.
    """

    def __init__(self, *reason: object, delay_s: float = 0) -> None:
        if not 0 <= delay_s <= _DELAY_S_MAX:
            raise ValueError(f"delay_s is {delay_s}: give 0 to {_DELAY_S_MAX} seconds to wait")
        super().__init__(*reason)
        self.delay_ms = round(delay_s * 1000)


class Reject(Exception):
    """Raised for a record that can never be processed; it goes to the dead letters, if set up."""


class WorkerDied(Exception):
    """What a record counts as having raised when it ends, alone, the process that works on it."""


class SetAside(NamedTuple):
    """A record that is not accepted: "release" or "reject", and why."""

    disposition: str
    reason: str | None
    delay_ms: int | None = None


Outcome = Mapping[str, Any] | SetAside


def set_aside(error: BaseException, release_on: Errors = ()) -> SetAside:
    """What an exception means for the record that caused it."""
    if isinstance(error, Release | Reject):
        reason = _short(_told(error)) or None
        if isinstance(error, Reject):
            return SetAside("reject", reason)
        return SetAside("release", reason, error.delay_ms or None)
    told_of = _short(f"{type(error).__name__}: {_told(error)}")
    return SetAside("release" if isinstance(error, release_on) else "reject", told_of)


def told(outcomes: Sequence[Outcome]) -> list[pa.Array]:
    """The columns disposition, reason and delay_ms."""
    aside = [one if isinstance(one, SetAside) else (None, None, None) for one in outcomes]
    kinds = (pa.string(), pa.string(), pa.int64())
    return [pa.array(one, kind) for one, kind in zip(zip(*aside, strict=True), kinds, strict=True)]


def columns(outcomes: Sequence[Any], schema: pa.Schema) -> tuple[list[pa.Array], Sequence[Outcome]]:
    """The values of `schema`, null where there are none; what does not fit is set aside.

    Values are the user's objects: a conversion may raise whatever these raise.
    """
    judged: list[Outcome] = [
        one
        if isinstance(one, dict | SetAside | Mapping)
        else set_aside(TypeError(f"{type(one).__name__} returned"))
        for one in outcomes
    ]
    while True:
        made: list[pa.Array] = []
        for field in schema:
            values = [None if isinstance(one, SetAside) else one.get(field.name) for one in judged]
            try:
                made.append(pa.array(values, field.type))
            except NO_FAULT_OF_A_RECORD:
                raise
            except BaseException:
                misfits = list(_misfits(values, field.type))
                if not misfits:  # pyarrow takes each of them alone, as dicts and tuples
                    alone = [pa.array([one], field.type) for one in values]
                    made.append(pa.concat_arrays(alone))
                    continue
                for index in misfits:
                    error = f"{field.name}: {_shown(values[index])} is no {field.type}"
                    judged[index] = set_aside(ValueError(error))
                break
        else:
            return made, judged


def _misfits(values: list[Any], kind: pa.DataType) -> Iterator[int]:
    """Indexes of the values that are not of `kind`."""
    waiting = [(0, len(values))]
    while waiting:
        start, end = waiting.pop()
        try:
            pa.array(values[start:end], kind)
        except NO_FAULT_OF_A_RECORD:
            raise
        except BaseException:
            if end - start == 1:
                yield start
            else:
                middle = (start + end) // 2
                waiting += [(start, middle), (middle, end)]


def _shown(value: Any) -> str:
    try:
        return _short(repr(value))
    except NO_FAULT_OF_A_RECORD:
        raise
    except BaseException:  # not even Python's own can always say what they are: huge numbers
        return f"<{type(value).__name__}>"


def _told(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception that cannot say what it is concerns its record alone
        return ""


def _short(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # quoted input may be no text at all
    return text if len(text) <= REASON_LENGTH_MAX else text[: REASON_LENGTH_MAX - 3] + "..."

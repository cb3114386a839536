"""What becomes of one record: values, or why it is set aside."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.spark.isolation.fitting import NO_FAULT_OF_A_RECORD, Field, nulls_in, short

_DELAY_S_MAX = 366 * 86_400  # the broker's limit
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
        reason = short(_told(error)) or None
        if isinstance(error, Reject):
            return SetAside("reject", reason)
        return SetAside("release", reason, error.delay_ms or None)
    told_of = short(f"{type(error).__name__}: {_told(error)}")
    return SetAside("release" if isinstance(error, release_on) else "reject", told_of)


def told(outcomes: Sequence[Outcome]) -> list[pa.Array]:
    """The columns disposition, reason and delay_ms."""
    aside = [one if isinstance(one, SetAside) else (None, None, None) for one in outcomes]
    kinds = (pa.string(), pa.string(), pa.int64())
    return [pa.array(one, kind) for one, kind in zip(zip(*aside, strict=True), kinds, strict=True)]


def columns(
    outcomes: Sequence[Any], fields: Sequence[Field]
) -> tuple[list[pa.Array], Sequence[Outcome]]:
    """The values of `fields`, null where there are none; what does not fit is set aside.

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
        for field in fields:
            values = [None if isinstance(one, SetAside) else one.get(field.name) for one in judged]
            misfits = _refused(field, values, judged)
            if not misfits:
                try:
                    made.append(pa.array(values, field.arrow))
                    continue
                except NO_FAULT_OF_A_RECORD:
                    raise
                except BaseException:
                    found = _misfits(values, field.arrow)
                    misfits = {index: field.refusal(values[index]) for index in found}
                if not misfits:  # pyarrow takes each of them alone, as dicts and tuples
                    alone = [pa.array([one], field.arrow) for one in values]
                    made.append(pa.concat_arrays(alone))
                    continue
            for index, reason in misfits.items():
                judged[index] = set_aside(ValueError(reason))
            break
        else:
            return made, judged


def _refused(field: Field, values: list[Any], judged: Sequence[Outcome]) -> dict[int, str]:
    """The values that the field refuses; of records that are set aside nothing is expected."""
    misfits = field.misfits(values)
    if not field.nullable:
        for index in nulls_in(values):
            if not isinstance(judged[index], SetAside):
                misfits[index] = field.null_refusal
    return misfits


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


def _told(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception that cannot say what it is concerns its record alone
        return ""

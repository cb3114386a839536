"""docs/share-groups.md is true: the programs "From Python" run, and print what it shows."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace

PAGE = Path(__file__).parents[2] / "docs" / "share-groups.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_programs_for_python_are_true(
    running: headrace.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## From Python\n")
    examples = EXAMPLE.findall(section.partition("\n## ")[0])
    assert len(examples) == 3
    producer = Producer({"bootstrap.servers": running.bootstrap_servers})

    def send(topic: str, *values: str) -> Any:
        for value in values:
            producer.produce(topic, value.encode())
        assert producer.flush(30) == 0
        return asyncio.sleep(0) if _has_loop() else None

    for program, printed in examples:
        program = program.replace("localhost:9092", running.bootstrap_servers)
        names = {"__name__": "example", "produce": send}
        exec(compile(program, str(PAGE), "exec"), names)
        assert capsys.readouterr().out == printed


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

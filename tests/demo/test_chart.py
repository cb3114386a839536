"""The chart is a PNG of a readable size, also for few and odd figures."""

import struct
from pathlib import Path

import pytest

from headrace.demo.chart import draw
from headrace.demo.figures import Delay, Figures

ONE = Delay("Endeavor Air Inc.", 3, 4.0, 3.0, -2.0, -2.5)
NEVER_ARRIVED = Delay("SkyWest Airlines Inc.", 1, 9.0, 9.0, None, None)


@pytest.mark.parametrize("carriers", [[ONE], [ONE, NEVER_ARRIVED]])
def test_the_chart_is_a_picture(tmp_path: Path, carriers: list[Delay]) -> None:
    path = tmp_path / "delays.png"
    draw(Figures(carriers, [Delay("05", 4, 1.0, 1.0, None, None)], 0), path)
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    assert 1_200 <= width <= 2_000
    assert 600 <= height <= 1_000

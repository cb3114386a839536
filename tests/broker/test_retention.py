"""Which segments retention takes: the table of UnifiedLog.deleteOldSegments."""

import pytest

from headrace.broker.retention import kept_from
from headrace.broker.topic_settings import TopicSettings
from headrace.core.types import WallMs
from headrace.log.api import SegmentInfo

NOW = WallMs(10_000)


def segments(*rows: tuple[int, int]) -> list[SegmentInfo]:
    """Segments of ten offsets with these sizes and highest timestamps; the last is active."""
    return [
        SegmentInfo(10 * n, 10 * n + 10 if size else 10 * n, size, time, "", n < len(rows) - 1, "")
        for n, (size, time) in enumerate(rows)
    ]


OLD, NEW = (100, 1000), (100, 9000)


@pytest.mark.parametrize(
    ("given", "settings", "end", "kept"),
    [
        pytest.param([OLD, OLD, NEW], {"retention_ms": 5000}, 99, 20, id="what is past its time"),
        pytest.param([OLD, NEW, OLD], {"retention_ms": 5000}, 99, 10, id="oldest first only"),
        pytest.param([OLD, OLD], {"retention_ms": 9000}, 99, 0, id="exactly as old stays"),
        pytest.param([OLD, OLD], {"retention_ms": 8999}, 99, 20, id="the active one too"),
        pytest.param([OLD, (0, -1)], {"retention_ms": 1}, 99, 10, id="but not an empty one"),
        pytest.param([OLD, NEW], {"retention_ms": -1}, 99, 0, id="always kept"),
        pytest.param([OLD, OLD], {"retention_ms": 1}, 19, 10, id="nothing beyond the watermark"),
        pytest.param([(1, -1), OLD, NEW], {"retention_ms": 5000}, 99, 20, id="untimed with next"),
        pytest.param([(1, -1), NEW], {"retention_ms": 5000}, 99, 0, id="untimed before a new one"),
        pytest.param([(1, -1)], {"retention_ms": 5000}, 99, 0, id="untimed alone"),
        pytest.param([OLD], {"retention_ms": 1, "cleanup_policy": ()}, 99, 0, id="no policy"),
        pytest.param(
            [OLD], {"retention_ms": 1, "cleanup_policy": ("compact",)}, 99, 0, id="compacted"
        ),
        pytest.param(
            [OLD], {"retention_ms": 1, "cleanup_policy": ("compact", "delete")}, 99, 10, id="both"
        ),
        pytest.param([NEW] * 4, {"retention_bytes": 200}, 99, 20, id="by size"),
        pytest.param([NEW] * 4, {"retention_bytes": 201}, 99, 10, id="no less than the limit"),
        pytest.param([NEW] * 4, {"retention_bytes": 400}, 99, 0, id="as much as allowed"),
        pytest.param([NEW] * 4, {"retention_bytes": 0}, 99, 40, id="nothing allowed"),
        pytest.param(
            [OLD, NEW, NEW, NEW], {"retention_ms": 5000, "retention_bytes": 200}, 99, 20,
            id="by time, then by size",
        ),
    ],
)  # fmt: skip
def test_the_table(
    given: list[tuple[int, int]], settings: dict[str, object], end: int, kept: int
) -> None:
    found = kept_from(segments(*given), TopicSettings(**settings), NOW, end)  # type: ignore[arg-type]  # rows name any setting
    assert found == kept

"""Histograms as Prometheus knows them: counts of observations in fixed buckets."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Observations in fixed buckets; `counts` has one more than `bounds`, for what is above."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

"""The figures as one picture: delay by carrier beside delay by hour of the day."""

from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headrace.demo.figures import Delay, Figures

DEPARTURE, ARRIVAL, GREY = "#1f6f8b", "#e07a3f", "#5a6570"


def draw(figures: Figures, path: Path) -> None:
    """Write the chart as a PNG of about 1500 x 750 pixels."""
    picture = Figure(figsize=(12.5, 6.2), dpi=120, layout="constrained")
    left, right = picture.subplots(1, 2, width_ratios=(5, 4))
    _carriers(left, figures.carriers)
    _hours(right, figures.hours)
    picture.suptitle(
        f"Delays of {figures.flights:,} flights from New York City, 2013",
        fontsize=15,
        fontweight="bold",
        x=0.012,
        ha="left",
    )
    picture.savefig(path)


def _carriers(axes: Axes, carriers: list[Delay]) -> None:
    ordered = sorted(carriers, key=lambda one: one.mean_departure)
    places = range(len(ordered))
    axes.barh(
        [place + 0.2 for place in places],
        [one.mean_departure for one in ordered],
        height=0.38,
        color=DEPARTURE,
        label="departure",
    )
    axes.barh(
        [place - 0.2 for place in places],
        [one.mean_arrival or 0.0 for one in ordered],
        height=0.38,
        color=ARRIVAL,
        label="arrival",
    )
    axes.set_yticks(
        places, [f"{one.label}  ({one.flights:,})" for one in ordered], fontsize=9, color=GREY
    )
    axes.axvline(0, color=GREY, linewidth=0.8)
    _finish(axes, "by carrier (flights)", "x")
    axes.set_xlabel("mean delay, minutes", color=GREY)


def _hours(axes: Axes, hours: list[Delay]) -> None:
    numbers = [int(one.label) for one in hours]
    for color, name, values in (
        (DEPARTURE, "departure", [one.mean_departure for one in hours]),
        (ARRIVAL, "arrival", [one.mean_arrival or 0.0 for one in hours]),
    ):
        axes.plot(numbers, values, color=color, label=name, linewidth=2.2, marker="o", ms=4.5)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xticks(numbers[::2])
    _finish(axes, "by scheduled hour of departure", "y")
    axes.set_ylabel("mean delay, minutes", color=GREY)


def _finish(axes: Axes, title: str, grid: Literal["x", "y"]) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=GREY)
    axes.grid(axis=grid, color="#d9dee2", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left" if grid == "x" else "bottom"]].set_visible(False)
    axes.tick_params(length=0, colors=GREY)
    axes.legend(frameon=False, loc="lower right" if grid == "x" else "upper left", fontsize=9)

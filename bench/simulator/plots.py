"""Two pictures: what load each system carries, and how p99 grows with load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from bench.simulator.record import BAR_MS


def knees(table: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Bars: the load by case and system."""
    cases, systems = list(table), list(next(iter(table.values())))
    figure, axes = pyplot.subplots(figsize=(2 + 2 * len(cases), 6))
    width = 0.85 / len(systems)
    colours = matplotlib.colormaps["tab20"]
    for number, system in enumerate(systems):
        places = [case + number * width for case in range(len(cases))]
        axes.bar(places, [table[case][system] for case in cases], width, label=system, color=colours(number % 20))
    axes.set_xticks([case + 0.4 for case in range(len(cases))], cases)
    axes.set_ylabel(f"highest load with p99 ≤ {BAR_MS:.0f} ms\n(share of the limit without fixed costs)")
    axes.set_ylim(0, 1)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    _save(figure, path)


def latencies(curves: Mapping[str, Sequence[tuple[float, float]]], title: str, path: Path) -> None:
    """Lines: p99 in milliseconds over load, by system."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for system, points in curves.items():
        axes.plot([load for load, _ in points], [p99_ms for _, p99_ms in points], marker=".", label=system)
    axes.axhline(BAR_MS, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 4 * BAR_MS)
    axes.set_xlabel("load (share of the limit without fixed costs)")
    axes.set_ylabel("p99 (ms)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

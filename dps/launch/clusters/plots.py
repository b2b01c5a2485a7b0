"""Draws a run for notebooks: its losses, examples per second and staleness, and the bytes that each ps holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from dps.errors import ConfigError, MissingExtra
from dps.transport.wire import Array

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError:
    raise MissingExtra("plots need matplotlib, which is not installed; pip install 'dps[notebook]'") from None

BINS = 40
"""Points of a line over the whole of a run; each is a mean over as many pushes as fall in its interval."""
DOTS = 1000
"""At most so many single losses are drawn."""
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


class Plot(Figure):
    """A figure of matplotlib that a notebook shows where it is the value of a cell. pyplot does not know it, so no
    window opens and nothing is shown twice."""

    def _repr_png_(self) -> bytes:
        from io import BytesIO

        png = BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def plot_history(title: str, history: Sequence[Mapping[str, Any]], batches: Mapping[str, int], time: str) -> Figure:
    """Four plots of a run's rows: loss over time and over steps, examples/s and staleness over time.

    Args:
        title: What stands above them.
        history: Rows as `LocalRun.history` has them.
        batches: Examples in one push of each worker, by its name. If one is unknown, pushes/s are drawn.
        time: What the times are, such as "time since the run began".
    """
    figure = Plot(figsize=(8, 5.2), layout="constrained")
    history = sorted(history, key=itemgetter("at"))
    dropped = sum(not row["accepted"] for row in history)
    workers = len({row["worker"] for row in history})
    text = f"{title}: {len(history):,} pushes of {workers} {'worker' if workers == 1 else 'workers'}"
    figure.suptitle(text + (f", {dropped:,} not accepted" if dropped else ""))
    (by_time, by_step), (speed, staleness) = figure.subplots(2, 2)
    at = np.array([row["at"] for row in history], float)
    step = np.array([row["step"] for row in history], float)
    loss = np.array([np.nan if row["loss"] is None else row["loss"] for row in history], float)
    accepted = np.array([row["accepted"] for row in history], bool)
    seconds = f"{time} (s)"
    _draw_losses(by_time, at, loss)
    by_time.set(xlabel=seconds, ylabel="loss", title="Loss over time")
    _draw_losses(by_step, step, loss)
    by_step.set(xlabel="global step", ylabel="loss", title="Loss over steps")

    known = all(row["worker"] in batches for row in history)
    unit = "examples/s" if known and history else "pushes/s"
    sizes = np.array([batches[row["worker"]] if known else 1 for row in history], float)
    end = float(at.max()) if len(at) and at.max() > 0 else 1.0
    _draw_speed(speed, at[accepted], sizes[accepted], end)
    speed.set(xlabel=seconds, ylabel=unit, title="Examples per second" if known and history else "Pushes per second")

    stale = np.array([row["staleness"] for row in history], float)
    where, mean, most = _binned(at, stale)
    staleness.plot(where, mean, label="mean")
    staleness.plot(where, most, linewidth=1.0, linestyle="--", label="largest")
    staleness.set(xlabel=seconds, ylabel="staleness (versions)", title="Staleness of the pushes")
    if history:
        staleness.legend()
    for ax in (by_time, speed, staleness):
        ax.set_xlim(0, end)
    speed.set_ylim(bottom=0)
    staleness.set_ylim(0, 1.1 * max(stale.max(initial=0), 1))
    return figure


def _draw_losses(ax: Axes, x: Array, loss: Array) -> None:
    """Single losses as dots, some of them of a long run, and a line through their means."""
    finite = np.isfinite(loss)
    x, loss = x[finite], loss[finite]
    if not len(x):
        ax.text(0.5, 0.5, "no push had a loss", ha="center", va="center", transform=ax.transAxes)
        return
    some = slice(None, None, -(-len(x) // DOTS))
    ax.plot(x[some], loss[some], ".", color="0.75", markersize=3, label="of one push")
    where, mean, _ = _binned(x, loss)
    ax.plot(where, mean, color="C0", label="mean")
    ax.legend()


def _draw_speed(ax: Axes, at: Array, sizes: Array, end: float) -> None:
    """The sum of the examples in each interval of the run, for one second."""
    if not len(at):
        return
    counts, edges = np.histogram(
        at, BINS if len(at) >= 4 * BINS else max(1, len(at) // 4), (0, at.max()), weights=sizes
    )
    ax.stairs(counts / np.diff(edges), edges, fill=True, alpha=0.3)
    ax.stairs(counts / np.diff(edges), edges, color="C0", label="in one interval")
    if (seconds := at.max() - at.min()) > 0:  # before the first push workers start
        mean = (sizes.sum() - sizes[at.argmin()]) / seconds
        ax.axhline(mean, color="C1", linewidth=1.5, linestyle="--", label="from the first push on")
    ax.legend()


def _bins(x: Array) -> int:
    """Into how many intervals these pushes are put: of a short run, one for every four."""
    return min(BINS, max(1, len(x) // 4))


def _binned(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Mean x, mean y and largest y of each interval of x in which there are points."""
    if not len(x):
        return x, y, y
    edges = np.linspace(x.min(), x.max(), _bins(x) + 1)
    used, place = np.unique(
        np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2), return_inverse=True
    )
    count = np.bincount(place)
    most = np.full(len(used), -np.inf)
    np.maximum.at(most, place, y)
    return np.bincount(place, x) / count, np.bincount(place, y) / count, most


def plot_placement(title: str, held: Sequence[Sequence[int]]) -> Figure:
    """A bar for each ps: the bytes of its values, and above them those of the optimizers' slots.

    Args:
        title: What stands above it.
        held: For each ps its task, the bytes of values and those of slots.

    Raises:
        ConfigError: `held` is empty.
    """
    if not held:
        raise ConfigError(
            "placement: no session of this run has opened yet, so nothing is placed; call it once workers train"
        )
    tasks = [f"ps:{task}" for task, _, _ in held]
    values, slots = (np.array([row[kind] for row in held], float) for kind in (1, 2))
    total = values + slots
    unit, size = next((u for u in UNITS if u[1] <= total.max()), UNITS[-1])
    figure = Plot(figsize=(max(5.0, 1.5 + 0.5 * len(held)), 3.6), layout="constrained")
    ax = figure.subplots()
    ax.bar(tasks, values / size, color="C0", label="values")
    if slots.any():
        ax.bar(tasks, slots / size, bottom=values / size, color="C5", label="slots of the optimizers")
    ax.axhline(total.mean() / size, color="C1", linewidth=1.5, linestyle="--", label="mean")
    evenness = f": max over mean {total.max() / total.mean():.2f}" if total.any() else ""
    ax.set(ylabel=f"memory ({unit})", title=f"{title}{evenness}", ylim=(0, 1.3 * total.max() / size or 1.0))
    ax.grid(axis="x", visible=False)
    ax.tick_params("x", rotation=90 if len(held) > 12 else 0)
    ax.legend(loc="upper right", ncols=3)
    return figure

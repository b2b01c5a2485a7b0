"""The picture of scale_out.py: a panel for each work and update mode, MB/s against the number of ps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.links import MOST
from benchmarks.scaling_plot import pyplot_for_files, save_picture

STYLES = {"dps": {"linestyle": "-", "marker": "o"}, "torch": {"linestyle": ":", "marker": "x"}}
NAMES = {"dps": "dps", "torch": "torch RPC"}


def draw(found: dict[str, Any], path: Path) -> None:
    """Write the picture (svg or png by its name). ImportError names matplotlib where it is missing."""
    pyplot = pyplot_for_files()
    rows = found["results"]
    panels = list(dict.fromkeys((row["work"], row["update"]) for row in rows))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.8), squeeze=False)
    for axis, (work, update) in zip(axes[0], panels, strict=True):
        _panel(axis, f"{work}, {update}", [row for row in rows if (row["work"], row["update"]) == (work, update)])
    axes[0][0].set(ylabel="MB/s of values or gradients, one direction")
    megabits = " and ".join(str(each) for each in sorted({row["megabits"] for row in rows}))
    about = f"links of {megabits} Mbit/s for each ps, all on {found['machine']['cores']} cores"
    figure.suptitle(f"More ps, {about}", fontsize=9)
    save_picture(
        figure, path, f"Plots of MB/s against the number of ps: dps, torch RPC, raw TCP and the links; {about}"
    )


def _panel(axis: Any, title: str, rows: list[dict[str, Any]]) -> None:
    """One work: dps and torch by the number of workers, raw TCP as a band over all of them, and the links' rate."""
    ps = sorted({row["ps"] for row in rows})
    full = [count * max(row["megabits"] for row in rows) / 8 * MOST for count in ps]
    axis.plot(ps, full, color="grey", linewidth=1, label="the links, one direction")
    raw = [[row["systems"]["raw"]["MB_per_s"] for row in rows if row["ps"] == count] for count in ps]
    axis.fill_between(ps, list(map(min, raw)), list(map(max, raw)), color="grey", alpha=0.25, label="raw TCP")
    for number, (workers, megabytes) in enumerate(sorted({(row["workers"], _megabytes(row)) for row in rows})):
        line = [row for row in rows if (row["workers"], _megabytes(row)) == (workers, megabytes)]
        for system, style in STYLES.items():
            there = [row for row in line if system in row["systems"]]
            if there:
                figures = [row["systems"][system]["MB_per_s"] for row in there]
                name = f"{NAMES[system]}, {workers} workers, {megabytes:g} MB".replace(" 1 workers", " 1 worker")
                axis.plot([row["ps"] for row in there], figures, color=f"C{number}", label=name, **style)
    axis.set(xlabel="ps", title=title, ylim=(0, None))
    axis.set_xticks(ps)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize=6)


def _megabytes(row: dict[str, Any]) -> float:
    return round(float(row["nbytes"]) / 1e6, 1)

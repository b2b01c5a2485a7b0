"""The picture of how cost grows: one panel a sweep, logarithmic axes, units on both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

Row = dict[str, Any]

PANELS: dict[str, tuple[str, str, Callable[[Row], float], Callable[[Row], str]]] = {
    "workers": ("workers (processes)", "pushes/s, all workers", lambda r: r["per_s"], lambda r: size_text(r["nbytes"])),
    "ps": ("ps (processes)", "pushes/s, 4 workers", lambda r: r["per_s"], lambda r: size_text(r["nbytes"])),
    "variables": ("variables (25.6 MB together)", "milliseconds", lambda r: r["p50_us"] / 1e3, lambda r: _work(r)),
    "check": (
        "workers (processes of one machine)",
        "pushes/s over those of one worker",
        lambda r: r["rate"],
        lambda r: r["line"],
    ),
    "growth": (
        "workers (machines)",
        "pushes/s, all workers",
        lambda r: r["per_s"],
        lambda r: f"{size_text(r['nbytes'])}, {r['ps']} ps",
    ),
    "rows": ("rows of the table", "million rows/s", lambda r: r["rows_per_s"] / 1e6, lambda r: _work(r)),
}
"""By sweep: what is on the axes, the figure, and the line that it belongs to."""


def draw(found: dict[str, Any], path: Path) -> None:
    """Write the picture (svg or png by its name). ImportError names matplotlib where it is missing."""
    pyplot = pyplot_for_files()
    there = [sweep for sweep in PANELS if any(row["sweep"] == sweep for row in found["results"])]
    if not there:
        return
    figure, axes = pyplot.subplots(1, len(there), figsize=(3.6 * len(there), 3.4), squeeze=False)
    for axis, sweep in zip(axes[0], there, strict=True):
        _panel(axis, sweep, [row for row in found["results"] if row["sweep"] == sweep])
    machine = found["machine"]
    about = found.get("title", "tcp with shared memory, SGD (rows: Adagrad)")
    figure.suptitle(f"{machine['cores']} cores, {about}", fontsize=9)
    axes_of = ", ".join(PANELS[sweep][0] for sweep in there)
    save_picture(figure, path, f"Plots against {axes_of}: {machine['cores']} cores, {about}")


def pyplot_for_files() -> Any:
    """matplotlib's pyplot, which opens no window. ImportError names matplotlib where it is missing."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "dps"  # the same figures give the same file
    from matplotlib import pyplot

    return pyplot


def save_picture(figure: Any, path: Path, text: str) -> None:
    """Write a figure of matplotlib (svg or png by its name), and close it. `text`: what an svg says to a reader."""
    from matplotlib import pyplot

    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    if path.suffix == ".svg":
        label_picture(path, text)


def label_picture(path: Path, text: str) -> None:
    """Say what a picture shows, for those who do not see it."""
    path.write_text(path.read_text().replace("<svg ", f'<svg role="img" aria-label={quoteattr(text)} ', 1))


def _panel(axis: Any, sweep: str, rows: list[Row]) -> None:
    x_label, y_label, figure_of, line_of = PANELS[sweep]
    for name in dict.fromkeys(map(line_of, rows)):
        line = [row for row in rows if line_of(row) == name]
        axis.plot([row["x"] for row in line], [figure_of(row) for row in line], marker="o", label=name)
    axis.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label, title=sweep)
    if sweep in ("workers", "ps", "check"):
        ticks = sorted({row["x"] for row in rows})
        axis.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        axis.set_xticks([], minor=True)
    axis.grid(visible=True, which="major", alpha=0.3)
    axis.legend(fontsize=7)


def size_text(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.0f} KB"


def _work(row: Row) -> str:
    return str(row["work"]) + (" in place" if row["in_place"] else "")

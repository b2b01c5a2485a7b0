"""Prints the figures of `dps bench`: a table, and ratios to an earlier run."""

from __future__ import annotations

import json
from typing import Any

Row = dict[str, Any]

FORM = "{:18} {:8} {:9} {:6} {:8} {:>8} {:>5} {:>9} {:>6} {:>9} {:>9} {:>8} {:40} {}"
HEAD = ("work", "form", "transport", "size", "optim", "MB", "vars", "per s", "GB/s", "p50 us", "p99 us", "of limit",
        "limit", "lane")  # fmt: skip


def table(results: list[Row]) -> str:
    """One line per figure. MB: what one call transfers in both directions."""
    rows = [
        FORM.format(
            r["work"], form(r), wire(r), r["size"], r["optimizer"], f"{r['nbytes'] / 1e6:.3f}", r["variables"],
            f"{r['per_s']:.1f}", f"{r['gb_per_s']:.2f}", f"{r['p50_us']:.0f}", f"{r['p99_us']:.0f}",
            f"{r['of_limit']:.2f}", limit(r), r.get("lane", ""),
        )
        for r in results
    ]  # fmt: skip
    dropped = sum(r["dropped"] > 0 for r in results)
    note = f"{dropped} figures are of fewer rounds: raw TCP had moved by over 30 % in the others" if dropped else ""
    return "\n".join(line.rstrip() for line in [FORM.format(*HEAD), *rows, *filter(None, [note])])


def form(row: Row) -> str:
    """The form of values and gradients (copied or in place); for rows, whether their lists repeat."""
    return row.get("lists") or ("in place" if row.get("in_place") else "copied")


def limit(row: Row) -> str:
    """The limit of a figure."""
    computing = row.get("computing_ms")
    return str(row["limit"]) + ("" if computing is None else f", {computing:g} ms a step")


def wire(row: Row) -> str:
    """The transport, in the words of `--transports`."""
    return str(row["transport"]) if row.get("shared_memory", True) else "socket"


def compared(results: list[Row], path: str) -> str:
    """Ratios of the rates to those in an earlier `--json` file, for figures that are in both."""
    with open(path) as file:
        before = {_key(r): r for r in json.load(file)["results"]}
    lines = [f"against {path}: rate now / then"]
    for row in results:
        then = before.get(_key(row))
        if then is not None:
            name = " ".join([row["work"], form(row), wire(row), f"{row['nbytes'] / 1e6:g} MB", row["optimizer"]])
            lines.append(f"{name:50} {row['per_s'] / then['per_s']:6.2f}")
    return "\n".join(lines)


def _key(row: Row) -> tuple[Any, ...]:
    """A key that is equal for comparable figures. Older files lack some fields: there row lists were repeated, and
    works in place did not read the values."""
    sparse = row["work"].startswith("sparse")
    return (
        row["work"], row["transport"], row["nbytes"], row["variables"], row["ps"], row["workers"],
        row.get("in_place", False), row.get("shared_memory", True),
        row.get("optimizer", "adagrad" if sparse else "sgd"), row.get("computing_ms"),
        row.get("lists", "repeated" if sparse else None), row.get("reads_values", not row.get("in_place", False)),
    )  # fmt: skip

"""The table at the end of a campaign: for each kind of fault and each update mode, how its runs went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.cases import KINDS, MODES


@dataclass
class Cell:
    """All runs of one kind and mode. `worst_s`: the longest that training took to go on, or the run to end; infinite
    when it did neither."""

    runs: int = 0
    failed: int = 0
    worst_s: float = 0.0
    skipped: str = ""

    def add(self, failed: bool, recovery_s: float | None) -> None:
        self.runs += 1
        self.failed += failed
        self.worst_s = max(self.worst_s, math.inf if recovery_s is None else recovery_s)

    def __str__(self) -> str:
        if not self.runs:
            return "skipped" if self.skipped else "-"
        worst = "stalled" if self.worst_s == math.inf else f"{self.worst_s:5.1f} s"
        return f"{self.runs - self.failed}/{self.runs} {worst}" + (" FAILED" if self.failed else "")


@dataclass
class Table:
    """`reasons`: why kinds were skipped, each once."""

    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def cell(self, kind: str, mode: str) -> Cell:
        return self.cells.setdefault((kind, mode), Cell())

    @property
    def runs(self) -> int:
        return sum(cell.runs for cell in self.cells.values())

    @property
    def failed(self) -> int:
        return sum(cell.failed for cell in self.cells.values())

    def text(self) -> str:
        """Lines for people: passed/runs and the worst recovery time of each cell, then the sums."""
        rows = [["fault", *MODES]]
        for kind in KINDS:
            cells = [self.cells.get((kind, mode), Cell()) for mode in MODES]
            if any(cell.runs or cell.skipped for cell in cells):
                rows.append([kind, *map(str, cells)])
        lines = _aligned(rows)
        lines.append(f"{self.runs} runs: {self.runs - self.failed} passed, {self.failed} failed")
        reasons = sorted({cell.skipped for cell in self.cells.values() if cell.skipped})
        lines += [f"skipped: {reason}" for reason in reasons]
        return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]

"""What is known of a chaos run when it is over: ledgers, checkpoints, output, exit code, what is left of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import model
from tests.chaos.cases import Case, Fault
from tests.chaos.cluster import Line
from tests.chaos.ledger import Entry, Values


@dataclass(frozen=True)
class Strike:
    """A fault that was done: from when to when, and which processes it met."""

    fault: Fault
    at_s: float
    over_s: float
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Saved:
    """A finished checkpoint: for each worker the least and the greatest element of its part of each variable."""

    epoch: int
    step: int
    values: tuple[Values, ...]

    @property
    def name(self) -> str:
        return f"step {self.step} of epoch {self.epoch}"


@dataclass
class Evidence:
    """`code` is None when the launcher had to be killed. `recovery_s`: from the end of the faults until every worker
    that is left had trained, or the run had ended; None when that took too long, and `stalled` says who was late."""

    case: Case
    ledgers: dict[int, list[Entry]] = field(default_factory=dict)
    saved: list[Saved] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    code: int | None = None
    recovery_s: float | None = None
    stalled: str = ""
    left: list[str] = field(default_factory=list)

    def struck(self, what: str, whom: str = "") -> list[Strike]:
        """The faults of a kind that met a process or the disk."""
        return [s for s in self.strikes if s.fault.what == what and s.fault.whom in (whom or s.fault.whom, whom)]


def checkpoints(folder: Path, workers: int) -> list[Saved]:
    """All finished checkpoints in a checkpoint_dir, oldest first; read with safetensors and json alone."""
    found = []
    for path in folder.glob("step-*-epoch-*/manifest.json"):
        manifest = json.loads(path.read_text())
        tensors = {}
        for shard in manifest["shards"]:
            tensors.update(_tensors(path.parent / shard["file"]))
        values = tuple(
            {name: model.ends(array, worker, workers) for name, array in tensors.items()} for worker in range(workers)
        )
        found.append(Saved(manifest["epoch"], manifest["step"], values))
    return sorted(found, key=lambda saved: (saved.epoch, saved.step))


def _tensors(path: Path) -> dict[str, object]:
    from safetensors.numpy import load_file

    return {name: array for name, array in load_file(path).items() if "@" not in name}

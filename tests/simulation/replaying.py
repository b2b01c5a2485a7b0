"""What the trace of a simulated run says that its checkpoints must hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.checkpoint import Manifest, load
from dps.launch.commands.simulate import SimulatedCluster
from tests.simulation import assigned
from tests.simulation.history import DIR

PushId = tuple[int, int, int]


class Applied:
    """The versions that each ps made, of gradients or of values alone, by ps and run epoch, in order."""

    def __init__(self, cluster: SimulatedCluster, sums: bool = False) -> None:
        self.sums = sums
        """Whether the gradients of a step are summed; else it is their mean."""
        self.of: dict[tuple[str, int], list[tuple[int, int, tuple[PushId, ...]]]] = {}
        for event in cluster.world.trace:
            if event.what in ("applied", "assigned"):
                detail = event.detail
                rows = self.of.setdefault((event.process, detail["epoch"]), [])
                rows.append((detail["counter"], detail["step"], detail["pushes"]))

    def last_step(self, ps: str, epoch: int) -> int:
        return max((step for _, step, _ in self.of.get((ps, epoch), [])), default=0)

    def pushes(self, ps: str, epoch: int) -> set[tuple[int, int]]:
        return {(i, n) for _, _, pushes in self.of.get((ps, epoch), []) for _, i, n in pushes}


def replay(
    cluster: SimulatedCluster, applied: Applied, manifest: Manifest, index: int, ps: int,
    marks: dict[tuple[int, int], int], values: Any,
) -> None:  # fmt: skip
    """Add what a checkpoint's shard must hold: its own epoch's updates on top of what that epoch was restored from."""
    start = next(e for e in cluster.world.trace if e.what == "epoch" and e.detail["epoch"] == manifest.epoch)
    if start.detail["restore"]:
        before = load(cluster.world.storage, DIR, start.detail["restore"], verify=False)
        replay(cluster, applied, before, index, ps, marks, values)
    for counter, _, pushes in applied.of.get((f"ps:{ps}", manifest.epoch), []):
        if counter <= manifest.shards[index].version:
            # One without a mark was sent twice, of which `no_more_than_sent` tells; one of nothing is in no mean.
            cells = [marks.get((incarnation, number)) for _, incarnation, number in pushes]
            divisor = 1 if applied.sums else sum(other != -1 for other in cells)
            for cell in cells:
                if cell is not None and cell >= 0:
                    values[cell] += np.float32(1) / np.float32(divisor)


class Sets:
    """What pushes set variables to, from the trace."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._values: dict[tuple[int, int, int], dict[str, int]] = {}
        """By ps, incarnation and number."""
        for event in cluster.world.trace:
            if event.what == "setting":
                for ps, number in event.detail["numbers"].items():
                    self._values[ps, event.detail["incarnation"], number] = event.detail["values"]

    def replay(
        self, applied: Applied, manifest: Manifest, index: int, ps: int, marks: dict[tuple[int, int], int], name: str
    ) -> int:
        """What a checkpoint's shard must hold of a variable: to one that is trained each version with gradients adds 1,
        or where gradients are summed one for each; then the value of the lowest task counts, and its last one."""
        trace, value = self._cluster.world.trace, 0
        start = next(e for e in trace if e.what == "epoch" and e.detail["epoch"] == manifest.epoch)
        if start.detail["restore"]:
            before = load(self._cluster.world.storage, DIR, start.detail["restore"], verify=False)
            value = self.replay(applied, before, index, ps, marks, name)
        for counter, _, pushes in applied.of.get((f"ps:{ps}", manifest.epoch), []):
            if counter > manifest.shards[index].version:
                continue
            trained = sum(marks.get(push[1:], -1) >= 0 for push in pushes) if name == assigned.TRAINED else 0
            value += trained if applied.sums else min(1, trained)
            given = {push: self._values.get((ps, *push[1:]), {}) for push in pushes}
            setting = [push for push, values in given.items() if name in values]
            if setting:
                lowest = min(task for task, _, _ in setting)
                value = given[max(push for push in setting if push[0] == lowest)][name]
        return value


def marks_of(cluster: SimulatedCluster, ps: int) -> dict[tuple[int, int], int]:
    """Which cell each push marks on a ps: the n-th push of an incarnation is the n-th that its worker made under it,
    where those of values alone count too."""
    marks: dict[tuple[int, int], int] = {}
    count: dict[int, int] = {}
    for event in cluster.world.trace:
        if event.what == "setting" and event.detail["assigns"] and ps in event.detail["numbers"]:
            count[event.detail["incarnation"]] = count.get(event.detail["incarnation"], 0) + 1
        elif event.what == "sending":
            incarnation = event.detail["incarnation"]
            count[incarnation] = count.get(incarnation, 0) + 1
            marks[incarnation, count[incarnation]] = event.detail["cell"]
    return marks

"""What happens in one chaos run: the cluster, the training loop and the faults, all drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, STOP, TERM, FILL = "SIGKILL", "SIGSTOP", "SIGTERM", "full disk"
MODES = ("async", "bounded", "sync")
SERVERS_AND_WORKERS = ("ps", "worker", "chief")
ALL = ("everything", "workers", "ps", "worker", "chief", "launcher")
FOR_GOOD = float("inf")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. `whom`: a job, of which one task is drawn; "workers", "everything", "launcher", or
    "disk". `seconds`: how long a pause or a full disk lasts, FOR_GOOD for one that stays full."""

    what: str
    whom: str
    seconds: float = 0.0
    after_s: float = 0.0
    """How long after the fault before it."""
    task: int = 0

    @property
    def target(self) -> str:
        """The task's name, as "ps:1"."""
        return f"{self.whom}:{self.task}" if self.whom in ("ps", "worker") else self.whom

    def __str__(self) -> str:
        lasts = "" if not self.seconds else " to the end" if self.seconds == FOR_GOOD else f" {self.seconds:g} s"
        return f"{self.what}{lasts}" + ("" if self.whom == "disk" else f" {self.target}")


@dataclass(frozen=True)
class Kind:
    """A row of the table: faults that come together, their tasks not drawn yet. `weight`: how often it is drawn."""

    name: str
    faults: tuple[Fault, ...]
    weight: float = 1.0


def _kinds() -> list[Kind]:
    made = [Kind(f"{KILL} {whom}", (Fault(KILL, whom),)) for whom in (*SERVERS_AND_WORKERS, "launcher")]
    for seconds, weight in ((1.0, 1.0), (5.0, 1.0), (30.0, 0.5)):
        made += [
            Kind(f"{STOP} {seconds:g} s {whom}", (Fault(STOP, whom, seconds),), weight)
            for whom in (*SERVERS_AND_WORKERS, "workers", "everything")
        ]
    made += [Kind(f"{TERM} {whom}", (Fault(TERM, whom),)) for whom in (*SERVERS_AND_WORKERS, "launcher")]
    made.append(Kind(f"{FILL} 3 s", (Fault(FILL, "disk", 3.0),)))
    made.append(Kind(f"{FILL} to the end", (Fault(FILL, "disk", FOR_GOOD),), 0.5))
    kills = Fault(KILL, "chief", after_s=1.0), Fault(KILL, "ps", after_s=1.0)
    made.append(Kind(f"{FILL} 8 s, {KILL} chief and ps", (Fault(FILL, "disk", 8.0), *kills)))
    again = Fault(KILL, "chief", after_s=6.0), Fault(KILL, "ps")
    made.append(Kind(f"{FILL} 14 s, {KILL} chief and ps twice", (Fault(FILL, "disk", 14.0), *kills, *again), 0.5))
    made.append(Kind(f"{KILL} worker, later chief", (Fault(KILL, "worker"), Fault(KILL, "chief", after_s=3.0))))
    made.append(Kind(f"{KILL} chief and ps", (Fault(KILL, "chief"), Fault(KILL, "ps"))))
    made.append(Kind("two at once", ()))
    return made


KINDS = {kind.name: kind for kind in _kinds()}


@dataclass(frozen=True)
class Case:
    """One run."""

    seed: int
    kind: str
    mode: str
    ps: int
    workers: int
    update: str
    """async, bounded:S, sync, or sync:N where N gradients of the workers make a step."""
    pushes: str
    """dense, rows or both."""
    loop: str
    """push: pull and push; step; stream: pushes without waiting."""
    rows: int
    pace_s: float
    """Seconds that a worker sleeps in each turn of its loop, so that a few processors serve many tasks."""
    saves: bool
    """Whether there is a checkpoint_dir."""
    save_s: float
    restarts: int
    faults: tuple[Fault, ...]
    quiet_s: float
    """How long it trains before the first fault."""

    @property
    def fills_disk(self) -> bool:
        return any(fault.what == FILL for fault in self.faults)

    @property
    def launcher_mode(self) -> str:
        """What `dps launch --update` is given."""
        return self.update.partition(":")[0] if self.mode == "sync" else self.update

    def __str__(self) -> str:
        keeps = f"saves every {self.save_s:g} s" if self.saves else "no checkpoint_dir"
        return (
            f"{', '.join(map(str, self.faults))}; {self.update}, {self.ps} ps, {self.workers} workers, {self.loop} of "
            f"{self.pushes} x {self.rows}, {keeps}, {self.restarts} restarts"
        )


def draw(kind: str, mode: str, seed: int) -> Case:
    """The run of this kind, mode and seed: always the same one."""
    dice = random.Random(f"{kind}/{mode}/{seed}")
    ps, workers = dice.choice((1, 2, 2)), dice.choice((2, 3))
    update = {"async": "async", "bounded": f"bounded:{dice.choice((0, 2, 8))}", "sync": "sync"}[mode]
    if mode == "sync" and workers == 3 and dice.random() < 0.3:
        update = "sync:2"
    pushes = dice.choice(("rows", "both")) if mode == "sync" else dice.choice(("dense", "dense", "rows", "both"))
    faults = _faults(dice, kind, ps, workers)
    fills = any(fault.what == FILL for fault in faults)
    large = not fills and dice.random() < 0.25
    rows = dice.choice((600_000, 2_000_000)) if large and pushes == "dense" else dice.choice((6, 60, 3000))
    loop = dice.choice(("push", "push", "step", "stream")) if mode == "async" else dice.choice(("push", "step"))
    return Case(
        seed, kind, mode, ps, workers, update, pushes, loop, rows,
        pace_s=0.03 if large else dice.choice((0.002, 0.01, 0.03)),
        saves=fills or dice.random() < 0.8, save_s=2.0 if large else dice.choice((0.2, 0.5, 1.0)),
        restarts=dice.choice((2, 2, 2, 0)), faults=faults, quiet_s=dice.uniform(0.2, 1.5),
    )  # fmt: skip


def _faults(dice: random.Random, kind: str, ps: int, workers: int) -> tuple[Fault, ...]:
    """The faults of a kind with their tasks."""
    faults = KINDS[kind].faults
    if not faults:
        faults = tuple(
            Fault(what, dice.choice(SERVERS_AND_WORKERS), 0.0 if what == KILL else dice.choice((1.0, 5.0)))
            for what in (dice.choice((KILL, KILL, STOP)), dice.choice((KILL, STOP)))
        )
        faults = (faults[0], _later(faults[1], dice.choice((0.0, 0.05, 0.5, 1.5))))
    count = {"ps": ps, "worker": workers}
    return tuple(
        Fault(f.what, f.whom, f.seconds, f.after_s, dice.randrange(count[f.whom]) if f.whom in count else 0)
        for f in faults
    )


def _later(fault: Fault, after_s: float) -> Fault:
    return Fault(fault.what, fault.whom, fault.seconds, after_s, fault.task)


def order(seed: int) -> list[tuple[str, str]]:
    """All kinds and modes in an order that the seed decides; those of more weight come twice before the others do."""
    dice = random.Random(seed)
    cells = [(kind, mode) for kind in KINDS for mode in MODES]
    return sorted(cells, key=lambda cell: dice.random() / KINDS[cell[0]].weight)

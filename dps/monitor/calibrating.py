"""`dps bench --calibrate`: measures what messages and arithmetic cost here, for `dps.simulate`.

One worker pushes and pulls models of three sizes, over sockets and through shared memory. Costs are lines over the
size: a start for each message, and a slope for each byte. Who waited for a core finds cold caches; what that costs is
what a call takes more after a rest.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.monitor import costs
from dps.monitor.costs import Costed, CostLoad
from dps.monitor.setting import Setting
from dps.monitor.works import nbytes
from dps.training import optimizers as optim
from dps.transport.current import runtime
from dps.transport.limits import seconds
from dps.transport.sim import Calibration, Handling, LaneCosts

SIZES = ("4k", "small", "1m")
LANES = {"sockets": "socket", "shared_memory": "tcp"}
"""The lanes of a calibration, each with the transport of `dps bench` that uses it."""
PUSH, PULL = CostLoad(), CostLoad(work="pull")
RESTED = (CostLoad(rest_s=1e-3), CostLoad(rest_s=4e-3))
ALONE = (PUSH, PULL, *RESTED)
"""What one worker does on a lane, with a model of each size."""
SPREAD_PS = 4
UPDATED = (optim.SGD(0.01), optim.Adagrad(0.01), optim.Adam(0.01))
"""Optimizers with no slot, one and two."""
UPDATE_NBYTES = 4 << 20
GIGABITS, LATENCY_S = 10.0, 50e-6
"""Of a network that nobody has told."""


@dataclass(frozen=True)
class Sized:
    """What one worker's loads cost with a model of one size."""

    nbytes: int
    loads: Mapping[CostLoad, Costed]


def calibrate(
    name: str, gigabits: float = GIGABITS, latency_s: float = LATENCY_S, rounds: int = 3, at_least_s: float = 0.25
) -> Calibration:
    """Measure this machine. Blocks for about half a minute.

    `gigabits` and `latency_s`: of its network, which is not measured. Raises ConfigError where there is no /proc."""
    if not os.path.exists("/proc/self/schedstat"):
        raise ConfigError("dps bench --calibrate reads CPU times from /proc: it needs Linux; copy a file from there")
    wanted = {
        lane: [sized(Setting("dense", wire, size), rounds, at_least_s) for size in SIZES]
        for lane, wire in LANES.items()
    }
    spread = costs.measured(Setting("dense", "socket", "small", ps=SPREAD_PS), [PUSH], rounds, at_least_s)[PUSH]
    return fitted(name, wanted, spread, updates(at_least_s), gigabits, latency_s)


def sized(setting: Setting, rounds: int, at_least_s: float) -> Sized:
    """Measure all loads of one worker."""
    return Sized(setting.nbytes, costs.measured(setting, ALONE, rounds, at_least_s))


def updates(at_least_s: float) -> tuple[float, ...]:
    """Seconds of an update for each byte of the gradient, with no slot, one and two. Blocks."""
    from dps.kernels.optimizers import BoundOptimizer, initial_slots

    found = []
    for optimizer in UPDATED:
        values, gradient = np.zeros(UPDATE_NBYTES // 4, np.float32), np.ones(UPDATE_NBYTES // 4, np.float32)
        bound = BoundOptimizer(optimizer, np.float32)
        slots = bound.ordered(initial_slots(optimizer, values.size, np.float32))

        def update(bound: Any = bound, values: Any = values, slots: Any = slots, gradient: Any = gradient) -> None:
            bound.apply(values, values, slots, (gradient,), 0, 1, 1, 1.0)

        update()
        found.append(statistics.median(seconds(update, at_least_s)) / UPDATE_NBYTES)
    return tuple(found)


def fitted(
    name: str, measured: Mapping[str, Sequence[Sized]], spread: Costed | None, update_byte_s: tuple[float, ...],
    gigabits: float = GIGABITS, latency_s: float = LATENCY_S,
) -> Calibration:  # fmt: skip
    """The calibration of what was measured, by lane; a lane that was not has the costs of the other one. `spread`: a
    push of "small" to SPREAD_PS ps, over sockets; None: all of a push's costs are for each ps."""
    once = 0.0 if spread is None else once_of(measured["sockets"], spread)
    lanes = {lane: lane_costs(sizes, once, update_byte_s[0]) for lane, sizes in measured.items()}
    every = [cost for sizes in measured.values() for each in sizes for cost in each.loads.values()]
    about = {
        "measured": date.fromtimestamp(runtime().wall()).isoformat(), "system": platform.system(),
        "processor": platform.machine(), "python": platform.python_version(),
        "others_cores": round(statistics.median(cost["others_cores"] for cost in every), 2),
    }  # fmt: skip
    sockets, shared_memory = (lanes.get(lane) or next(iter(lanes.values())) for lane in ("sockets", "shared_memory"))
    cores = os.cpu_count() or 1
    told = f"{name} ({cores} cores, {about['processor']}, {about['measured']})"
    card = gigabits * 1e9 / 8
    return Calibration(told, cores, sockets, shared_memory, update_byte_s, card, latency_s, about)


def once_of(sizes: Sequence[Sized], spread: Costed) -> float:
    """The part of a worker's costs of a push that does not grow with the number of ps."""
    small = next(each for each in sizes if each.nbytes == nbytes("small"))
    start, _ = line(sizes, PUSH, "worker_s")
    for_each_ps = max(0.0, (spread["worker_s"] - small.loads[PUSH]["worker_s"]) / (SPREAD_PS - 1))
    return 1.0 - min(1.0, for_each_ps / start) if start else 0.0


def lane_costs(sizes: Sequence[Sized], once: float, update_byte_s: float) -> LaneCosts:
    """The costs of one lane. `once`: the part of a worker's push that does not grow with the number of ps."""
    ps_s, ps_byte_s = line(sizes, PUSH, "ps_s")
    worker_s, worker_byte_s = line(sizes, PUSH, "worker_s")
    _, ps_pull_byte_s = line(sizes, PULL, "ps_s")
    _, worker_pull_byte_s = line(sizes, PULL, "worker_s")
    call_s = worker_s * once
    each_s = (worker_s - call_s) / 2
    beside = statistics.median(beside_of(each.loads[PUSH], call_s) for each in sizes)
    trip_s = statistics.median(max(0.0, each.loads[PUSH]["p50_s"] - cpu_s(each.loads[PUSH])) / 2 for each in sizes)
    return LaneCosts(
        Handling(ps_s / 2, max(0.0, ps_byte_s - update_byte_s), ps_s / 2, ps_pull_byte_s, beside=beside),
        Handling(each_s, worker_pull_byte_s, each_s, worker_byte_s, call_s, beside), trip_s, rested_of(sizes),
    )  # fmt: skip


def line(sizes: Sequence[Sized], load: CostLoad, figure: str) -> tuple[float, float]:
    """A figure's start and its slope over the bytes: least squares of the relative error; neither is below 0."""
    found = np.array([each.loads[load][figure] for each in sizes])
    columns = np.stack([np.ones(len(sizes)), np.array([each.nbytes for each in sizes], float)], 1)
    weight = 1.0 / np.maximum(found, 1e-9)
    (start, slope), *_ = np.linalg.lstsq(columns * weight[:, None], found * weight, rcond=None)
    if start < 0:
        return 0.0, float(np.sum(columns[:, 1] * found * weight**2) / np.sum((columns[:, 1] * weight) ** 2))
    if slope < 0:
        return float(statistics.median(found)), 0.0
    return float(start), float(slope)


def cpu_s(cost: Costed) -> float:
    """CPU seconds of a call, of worker and ps."""
    return float(cost["worker_s"] + cost["ps_s"])


def beside_of(cost: Costed, call_s: float = 0.0) -> float:
    """The part of a call's CPU seconds in which both cores were at work for it, without those of `call_s`."""
    return max(0.0, min(1.0, (cpu_s(cost) - cost["p50_s"]) / max(1e-9, cpu_s(cost) - call_s)))


def rested_of(sizes: Sequence[Sized]) -> tuple[tuple[float, float], ...]:
    """What a process's work takes more after a rest: of worker and ps the mean, of the sizes the median. One worker
    rests between its pushes, too, while its ps works; that costs nothing more here: it is in what a push costs."""
    rests = [max(0.0, each.loads[PUSH]["p50_s"] - cpu_s(each.loads[PUSH]) / 2) for each in sizes]
    least = statistics.median(rests)
    more = [
        max(0.0, statistics.median(cpu_s(each.loads[load]) - cpu_s(each.loads[PUSH]) for each in sizes)) / 2
        for load in RESTED
    ]
    return ((least, 0.0), *((least + load.rest_s, after) for load, after in zip(RESTED, more, strict=True)))


def table(found: Calibration) -> str:
    """What a person reads of a calibration."""
    head = f"{'CPU time':16} {'a message, us':>15} {'a MB in, us':>13} {'a MB out, us':>13} {'a push, us':>11}"
    lines = [found.name, "", head]
    for lane, of in (("sockets", found.sockets), ("shared memory", found.shared_memory)):
        for job, each in (("worker", of.worker), ("ps", of.ps)):
            lines.append(
                f"{lane + ', ' + job:24} {each.received_s * 1e6:7.0f} {each.received_byte_s * 1e12:13.0f} "
                f"{each.sent_byte_s * 1e12:13.0f} {each.call_s * 1e6:11.0f}"
            )
        rests = ", ".join(f"{more * 1e6:.0f} us more after {at * 1e3:.1f} ms" for at, more in of.rested[1:])
        lines.append(
            f"{'':4}{of.ps.beside:.0%} of it beside others' work; {of.trip_s * 1e6:.0f} us one way without any; "
            f"off the cores: {rests or 'nothing more'}"
        )
    rates = ", ".join(
        f"{slots} slots {1e-9 / each:.1f} GB/s" for slots, each in enumerate(found.update_byte_s) if each > 0
    )
    lines += [
        f"updates: {rates}",
        f"network, told and not measured: {found.card_bytes_per_s * 8e-9:g} Gbit/s, {found.latency_s * 1e6:.0f} us",
        f"cores that other programs took meanwhile: {(found.about or {}).get('others_cores', 0.0):.2f}",
    ]
    return "\n".join(lines)

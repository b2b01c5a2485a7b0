"""How much longer a training step takes through a ps than alone, by the size of the model and by what a step computes.

    python benchmarks/overhead.py [--rounds 12] [--json FILE] [--plot FILE]

One worker and one ps, two processes of one machine, SGD. A model is one array of float32; a step multiplies small
matrices for about so many milliseconds and then computes a gradient of the model's size from its values. A local loop
and the forms of `dps bench --works loop` run in bursts of steps by turns; the figure of a form is the median over the
rounds of the ratio to the local loop of the same round. The picture shows them against the size, a line for each time.

The last two columns are no use of dps: two processes with the same kernels, shared memory and datagrams, and nothing
else (`bare_pair.py`). What they add are copies, two wake-ups and colder caches, as any ps in a process of its own adds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bare_pair import BarePair
from benchmarks.scaling_plot import pyplot_for_files, save_picture, size_text
from dps.monitor.loops import FORMS, LOCAL, loops_through
from dps.monitor.rounds import rotated

ELEMENTS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
MILLISECONDS = (0.5, 2.0, 8.0, 32.0)
RATE = np.float32(1e-3)
BURST_S = 0.08
"""About how long the steps of a burst compute."""
BARE = ("bare step", "bare in place")
UNCOUNTED = 2
"""Rounds at the start that warm up."""

Steps = Callable[[int], None]


class Model:
    """An array, and what a step computes with it."""

    def __init__(self, elements: int, products: int) -> None:
        self.values = np.ones(elements, np.float32)
        self._products = products
        draw = np.random.default_rng(0)
        self._left, self._right = (draw.random(shape, np.float32) for shape in ((64, 256), (256, 64)))
        self._product = np.empty((64, 64), np.float32)

    def compute(self) -> None:
        """So many products of small matrices."""
        for _ in range(self._products):
            np.matmul(self._left, self._right, out=self._product)

    def gradients(self, params: Mapping[str, Any], out: dict[str, Any] | None = None) -> dict[str, Any]:
        """Float32, of the shape of the values "w"; `out`, where given, is filled."""
        self.compute()
        return {"w": np.multiply(params["w"], RATE, out=None if out is None else out["w"])}


def products_for(milliseconds: float) -> int:
    """How many products take so long here; at least one."""
    model = Model(1, 20)
    model.compute()
    times = []
    for _ in range(20):
        began = time.perf_counter()
        model.compute()
        times.append((time.perf_counter() - began) / 20)
    return max(1, round(milliseconds / 1e3 / statistics.median(times)))


def forms(model: Model, session: Any) -> dict[str, Steps]:
    """Loops by their names: so many steps alone, and through a session in each form."""
    own, gradient = model.values.copy(), np.empty_like(model.values)

    def local(steps: int) -> None:
        for _ in range(steps):
            np.multiply(model.gradients({"w": own}, {"w": gradient})["w"], RATE, out=gradient)
            np.subtract(own, gradient, out=own)

    return {LOCAL: local, **loops_through(session, model)}


def bare_forms(model: Model, pair: BarePair) -> dict[str, Steps]:
    """The same loops through a process that is no ps: the gradient copied there and the values back, and in place."""
    kept = [model.values.copy() for _ in range(3)]

    def step(steps: int) -> None:
        params = {"w": kept[0]}
        for number in range(steps):
            pair.gradient[...] = model.gradients(params)["w"]
            params = {"w": kept[number % len(kept)]}
            params["w"][...] = pair.step()

    def in_place(steps: int) -> None:
        values = pair.values[0]
        for _ in range(steps):
            model.gradients({"w": values}, {"w": pair.gradient})
            values = pair.step()

    return dict(zip(BARE, (step, in_place), strict=True))


def measure(server: Any, elements: int, milliseconds: float, rounds: int) -> list[dict[str, float]]:
    """One worker. Seconds of a step by the loop's name, for each counted round."""
    import dps

    model = Model(elements, products_for(milliseconds))
    found, pair = [], BarePair(model.values, 1e-3)
    with dps.Session(server, {"w": model.values}, optimizer=dps.optim.SGD(1e-3)) as session:
        loops = {**forms(model, session), **bare_forms(model, pair)}
        steps = max(4, round(BURST_S * 1e3 / milliseconds))
        for number in range(rounds + UNCOUNTED):
            took = {}
            for name in rotated(list(loops), number):
                began = time.perf_counter()
                loops[name](steps)
                took[name] = (time.perf_counter() - began) / steps
            if number >= UNCOUNTED:
                found.append(took)
    pair.close()
    return found


def summary(elements: int, milliseconds: float, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """One row of the result: by form the median over the rounds of what it adds to the local loop, as a share."""
    added = {form: statistics.median(took[form] / took[LOCAL] - 1 for took in rounds) for form in (*FORMS, *BARE)}
    return {
        "nbytes": 4 * elements, "computing_ms": milliseconds, "added": added,
        "local_ms": 1e3 * statistics.median(took[LOCAL] for took in rounds),
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the table."""
    yield f"{'model':>9} {'alone':>10} " + " ".join(f"{form:>14}" for form in (*FORMS, *BARE))
    for row in rows:
        added = " ".join(f"{row['added'][form]:>+14.0%}" for form in (*FORMS, *BARE))
        yield f"{size_text(row['nbytes']):>9} {row['local_ms']:>7.2f} ms {added}"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the picture (svg or png by its name). ImportError names matplotlib where it is missing."""
    pyplot = pyplot_for_files()
    rows, shown = found["results"], ("step", "in place", "overlapped", "overlapped in place")
    figure, axes = pyplot.subplots(1, len(shown), figsize=(3.6 * len(shown), 3.4), sharey=True)
    for axis, form in zip(axes, shown, strict=True):
        for milliseconds in dict.fromkeys(row["computing_ms"] for row in rows):
            line = [row for row in rows if row["computing_ms"] == milliseconds]
            percent = [max(100 * row["added"][form], 0.5) for row in line]
            axis.plot([row["nbytes"] for row in line], percent, marker="o", label=f"{milliseconds:g} ms of computing")
        axis.set(xscale="log", yscale="log", title=form, xlabel="bytes of the model")
        axis.grid(visible=True, which="major", alpha=0.3)
    axes[0].set(ylabel="% longer than alone (0.5 or less: 0.5)")
    axes[0].legend(fontsize=7)
    about = f"one worker and one ps on {found['cores']} cores, SGD, shared memory"
    figure.suptitle(f"What a ps adds to a training step: {about}", fontsize=9)
    save_picture(figure, path, f"Plots of what a ps adds to a step against the bytes of the model; {about}")


def main(argv: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="for each model and time (default %(default)s)")
    parser.add_argument("--elements", default=",".join(map(str, ELEMENTS)), help="of the models")
    parser.add_argument("--milliseconds", default=",".join(map(str, MILLISECONDS)), help="that a step computes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw it there (svg or png; needs matplotlib)")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds: wanted at least 1")
    import dps

    rows = []
    for milliseconds in map(float, args.milliseconds.split(",")):
        for elements in map(int, args.elements.split(",")):
            with dps.LocalCluster(ps=1, workers=1, processes=True) as local:
                (rounds,) = local.run(measure, elements, milliseconds, args.rounds).wait(progress=False).results
            rows.append(summary(elements, milliseconds, rounds))
            print(list(table(rows))[-1], flush=True)
    print("\n".join(table(rows)))
    found = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "rounds": args.rounds, "results": rows}
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    if args.plot is not None:
        draw(found, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

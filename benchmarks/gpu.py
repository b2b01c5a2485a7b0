"""What the kernels reach on a GPU, each beside a limit that is measured in the same rounds.

    python benchmarks/gpu.py [--json FILE] [--rounds 7] [--small]

- optimizers, embedding rows and sparse updates: bytes that must be read and written, against a copy within the device
- dense layers, bias and activation fused: float32 operations, against cuBLAS and separate kernels through torch
- a step of a ps that keeps its variables on the GPU: gradients made there, and through a session in this process
- staging: copies between host and GPU from pinned memory, against those from memory that is not

Without torch for CUDA the rows of dense layers have no limit. Under NUMBA_ENABLE_CUDASIM=1 sizes are tiny and figures
mean nothing; that is how the program is tested.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dps
from dps import optim
from dps.kernels import cuda, device, layers_cuda
from dps.kernels.optimizers import BoundOptimizer, initial_slots
from dps.ps.store.device_memory import DeviceMemory
from dps.ps.store.gradients import Gradient
from dps.ps.store.store import Store
from dps.transport.current import runtime
from dps.variables.plan import VariableSpec, make_plan

F = np.float32
COPY, ROWS, FLOPS = 0.85, 0.70, 0.50
"""The goals: of copy bandwidth, of that where rows are picked, of cuBLAS's float32 rate."""
OPTIMIZERS: list[tuple[str, optim.Optimizer]] = [
    ("sgd", optim.SGD(0.1)), ("momentum", optim.Momentum(0.1)), ("adagrad", optim.Adagrad(0.1)),
    ("rmsprop", optim.RMSProp(0.1)), ("adam", optim.Adam()), ("ftrl", optim.Ftrl(0.1)),
]  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Elements of dense arrays; rows and dim of a table, and rows of one push; sides of products; timed calls."""

    elements: int = 1 << 26
    table_rows: int = 1 << 22
    dim: int = 64
    rows: int = 1 << 18
    products: tuple[tuple[int, int, int], ...] = ((4096, 4096, 4096), (1024, 4096, 4096), (128, 784, 128))
    calls: int = 20


SMALL = Sizes(48, 12, 3, 5, ((5, 7, 4),), 1)


@dataclass(frozen=True)
class Work:
    """Something to time. `amount` is what one call does of `unit`, in billions; `limit` the work that it is held to."""

    name: str
    call: Callable[[], object]
    amount: float
    unit: str
    limit: str = ""
    goal: float | None = None


@dataclass(frozen=True)
class Row:
    """What was found: the median rate, and the median over the rounds of its ratio to the limit of the same round."""

    work: str
    rate: float
    unit: str
    ms: float
    limit: str
    of_limit: float | None
    goal: float | None


def copying(to: Any, of: Any) -> Work:
    """The limit of what does little but move memory."""
    return Work("copy", lambda: to.copy_to_device(of), 2e-9 * of.nbytes, "GB/s")


def adagrad(w: Any, accumulator: Any, g: Any) -> Work:
    """Its kernel alone."""
    bound = BoundOptimizer(optim.Adagrad(0.1), F, cuda)
    call = lambda: bound.apply(w, w, [accumulator], (g,), 0, 1, 0, 1.0)  # noqa: E731
    return Work("adagrad", call, 5e-9 * w.nbytes, "GB/s", "copy", COPY)


def dense_updates(sizes: Sizes) -> Iterator[Work]:
    """The optimizers' kernels and the look for NaN, beside a copy."""
    n, rng = sizes.elements, np.random.default_rng(0)
    w, g, other = (device.to_device(rng.standard_normal(n, dtype=F)) for _ in range(3))
    yield copying(other, w)
    for name, optimizer in OPTIMIZERS:
        slots: list[Any] = [device.to_device(s) for s in initial_slots(optimizer, n, F).values()]
        bound = BoundOptimizer(optimizer, F, cuda)
        given = [slots[i] if i < len(slots) else None for i in range(len(bound.ordered({})))]
        nbytes = 12 + 8 * len(slots)

        def update(bound: BoundOptimizer = bound, given: list[Any] = given) -> None:
            bound.apply(w, w, given, (g,), 0, 1, 0, 1.0)

        yield Work(name, update, nbytes * 1e-9 * n, "GB/s", "copy", COPY)
    yield Work("all_finite", lambda: cuda.all_finite(g), 4e-9 * n, "GB/s", "copy")


def row_updates(sizes: Sizes) -> Iterator[Work]:
    """Rows of a table: read, and updated by Adagrad with a number for each element or each row."""
    dim, n, rng = sizes.dim, sizes.rows, np.random.default_rng(1)
    table, slot = (device.to_device(np.ones((sizes.table_rows, dim), F)) for _ in range(2))
    row_slot = device.to_device(np.ones(sizes.table_rows, F))
    lists = [device.to_device(np.sort(rng.choice(sizes.table_rows, n, replace=False))) for _ in range(4)]
    g, lr, epsilon = device.to_device(np.ones((n, dim), F)), F(0.1), F(1e-10)
    turns = itertools.cycle(lists)  # other rows at each call, so that no cache has them
    ids, values = 8e-9 * n, 4e-9 * n * dim
    out = device.empty((n, dim), F)
    yield copying(slot, table)
    yield Work("gather", lambda: cuda.gather(table, next(turns), out), ids + 2 * values, "GB/s", "copy", ROWS)
    bound = BoundOptimizer(optim.Adagrad(0.1), F, cuda)
    yield Work(
        "sparse adagrad", lambda: bound.apply_rows(table, [slot], next(turns), g, 1, 0, 1.0), ids + 5 * values,
        "GB/s", "copy", ROWS,
    )  # fmt: skip
    yield Work(
        "sparse adagrad, row-wise",
        lambda: cuda.adagrad_rowwise_rows(table, row_slot, next(turns), g, lr, epsilon, F(dim)),
        ids + 4 * values + 8e-9 * n, "GB/s", "copy",
    )  # fmt: skip


def dense_layers(sizes: Sizes) -> Iterator[Work]:
    """relu(x @ w + b) forward, and all its gradients, beside torch's products and separate kernels."""
    torch, rng = _torch(), np.random.default_rng(2)
    for m, k, n in sizes.products:
        hosts = [rng.standard_normal(shape, dtype=F) for shape in ((m, k), (k, n), (n,), (m, n))]
        x, w, b, dout = (device.to_device(a) for a in hosts)
        out, dx, dw, db = (device.empty(shape, F) for shape in ((m, n), (m, k), (k, n), (n,)))
        name, amount = f"dense {m} x {k} x {n}", 2e-9 * m * k * n
        limits = ["", ""]
        if torch is not None:
            tx, tw, tb, tdout = (torch.from_numpy(a).cuda() for a in hosts)
            limits = [f"cuBLAS {name}", f"cuBLAS {name}, backward"]

            def both(tx: Any = tx, tw: Any = tw, tb: Any = tb) -> Any:
                return torch.relu(torch.addmm(tb, tx, tw))

            tout = both()

            def backward(tx: Any = tx, tw: Any = tw, tdout: Any = tdout, tout: Any = tout) -> Any:
                d = tdout * (tout > 0)
                return d.sum(0), tx.T @ d, d @ tw.T

            yield Work(limits[0], both, amount, "Gflop/s")
            yield Work(limits[1], backward, 2 * amount, "Gflop/s")

        def forward(out: Any = out, x: Any = x, w: Any = w, b: Any = b) -> None:
            layers_cuda.dense_forward(out, x, w, b, "relu")

        def gradients(
            dx: Any = dx, dw: Any = dw, db: Any = db, dout: Any = dout, out: Any = out, x: Any = x, w: Any = w
        ) -> None:
            layers_cuda.dense_backward(dx, dw, db, dout, out, x, w, "relu")

        yield Work(name, forward, amount, "Gflop/s", limits[0], FLOPS if limits[0] else None)
        yield Work(f"{name}, backward", gradients, 2 * amount, "Gflop/s", limits[1], FLOPS if limits[1] else None)


def steps(sizes: Sizes, session: dps.Session) -> Iterator[Work]:
    """One Adagrad step: the kernel's bytes, whatever else moves; on the GPU alone, and through a session."""
    n = sizes.elements
    spec = VariableSpec("w", (n,), "<f4", optim.Adagrad(0.1).to_wire())
    store = Store(make_plan([spec], (0,), lambda *_: 0, None).layouts[0], runtime(), "gpu:0")
    memory = store.arenas[0]
    assert isinstance(memory, DeviceMemory)
    host, numbers = np.full(n, 1e-3, F), itertools.count(1)
    w, accumulator, g = (device.to_device(host) for _ in range(3))
    yield adagrad(w, accumulator, g)
    less = BoundOptimizer(optim.SGD(1 - 1e-3), F, cuda)

    def there() -> None:
        if problem := store.apply_update(Gradient([g], {}, checked=False), next(numbers)):
            raise RuntimeError(problem)
        values = memory._values  # the worker reads them for its next gradient
        less.apply(g, values, [None] * len(less.ordered({})), (values,), 0, 1, 0, 1.0)

    yield Work("step, gradients on the GPU", there, 20e-9 * n, "GB/s", "adagrad")
    yield Work("step through a session", lambda: session.step({"w": host}), 20e-9 * n, "GB/s", "adagrad")


def staging(sizes: Sizes) -> Iterator[Work]:
    """Copies of one array between host and GPU; the GPU's own copies need memory that stays where it is."""
    n = sizes.elements
    there, plain, pinned = device.empty(n, F), np.ones(n, F), device.pinned(n, F)
    pinned[:] = 1
    stream = device.new_stream()
    for way, call in (("to the GPU", device.to_device), ("to the host", None)):
        for kind, host in (("", plain), (", pinned", pinned)):

            def copy(host: Any = host, call: Any = call) -> None:
                device.to_host(there, host, stream) if call is None else call(host, stream, there)

            limit = f"staging {way}" if kind else ""
            yield Work(f"staging {way}{kind}", copy, 4e-9 * n, "GB/s", limit)


def measured(works: Iterator[Work], sizes: Sizes, rounds: int, known: dict[str, list[float]]) -> list[Row]:
    """Rates of all works, round by round one after the other. `known`: the rates of each, by round, also of earlier
    ones; a work that is in it has its row already, and is measured again for those that it limits."""
    held: list[Work] = []
    found: list[Row] = []
    new: set[str] = set()
    for work in works:  # one at a time: what a work needs is there when it is asked for
        work.call()
        device.wait()
        held.append(work)
        new.update({work.name} - known.keys())
    for _ in range(rounds):
        for work in held:
            known.setdefault(work.name, []).append(work.amount / timed(work.call, sizes.calls))
    for work in held:
        rates, ratio = known[work.name][-rounds:], None
        if work.limit in known:
            limits = known[work.limit][-rounds:]
            ratio = statistics.median(a / b for a, b in zip(rates, limits, strict=True))
        rate = statistics.median(rates)
        if work.name in new:
            found.append(Row(work.name, rate, work.unit, work.amount / rate * 1e3, work.limit, ratio, work.goal))
    return found


def timed(call: Callable[[], object], calls: int) -> float:
    """Seconds of one of so many calls, with all that they started on the GPU."""
    _settle()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    _settle()
    return (time.perf_counter() - began) / calls


def _settle() -> None:
    device.wait()
    if (torch := _torch()) is not None:
        torch.cuda.synchronize()


def _torch() -> Any:
    """torch where it has CUDA, with float32 that is float32; else None."""
    if device.simulated():
        return None
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def machine() -> dict[str, Any]:
    """What was measured on: the device, and the versions of CUDA and of its driver."""
    torch = _torch()
    found = {"device": device.describe(0), "simulated": device.simulated(), "cuda": "", "driver": ""}
    if not device.simulated():
        major, minor = device.cuda.runtime.get_version()
        found["cuda"] = f"{major}.{minor}"
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            found["driver"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            found["driver"] = "unknown"
    return {**found, "torch": "" if torch is None else torch.__version__, "dps": dps.__version__}


def run(sizes: Sizes, rounds: int) -> list[Row]:
    """All works, group by group; each group's memory is given back before the next."""
    known: dict[str, list[float]] = {}
    rows: list[Row] = []
    with device.device(0):
        for group in (dense_updates, row_updates, dense_layers, staging):
            rows += measured(group(sizes), sizes, rounds, known)
        params = {"w": np.zeros(sizes.elements, F)}
        with (
            dps.Server(None, "chief", 0, bind="inproc://gpu-chief", ps=1, workers=1, owned=True) as chief,
            dps.Server(None, "ps", 0, chief=chief.address, bind="inproc://gpu-ps", device="gpu:0"),
            dps.Server(None, "worker", 0, chief=chief.address, bind="inproc://gpu-worker") as server,
            dps.Session(server, params, optimizer=optim.Adagrad(0.1), timeout=60) as session,
        ):
            rows += measured(steps(sizes, session), sizes, rounds, known)
            session.request_stop()
    return rows


def print_table(rows: Sequence[Row]) -> None:
    print("| work | rate | | ms | of its limit | wanted | |")
    print("|" + " --- |" * 7)
    for row in rows:
        ratio = "" if row.of_limit is None else f"{row.of_limit:.2f} of {row.limit}"
        wanted = "" if row.goal is None else f"{row.goal:.2f}"
        said = "" if row.goal is None or row.of_limit is None else "holds" if row.of_limit >= row.goal else "short"
        print(f"| {row.work} | {row.rate:,.1f} | {row.unit} | {row.ms:.3f} | {ratio} | {wanted} | {said} |")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write what was found to this file as well")
    parser.add_argument("--rounds", type=int, default=7, help="of which medians are taken (default %(default)s)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, as in the simulator")
    args = parser.parse_args(argv)
    small = args.small or device.simulated()
    found = machine()
    print(", ".join(f"{key} {value}" for key, value in found.items() if value))
    rows = run(SMALL if small else Sizes(), args.rounds)
    print_table(rows)
    if args.json:
        written = {"machine": found, "small": small, "rounds": args.rounds, "results": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()

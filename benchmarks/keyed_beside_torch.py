"""A keyed table beside torch's EmbeddingBag with sparse gradients and Adagrad in one process, by turns.

    python benchmarks/keyed_beside_torch.py --json out.json                    takes about 3 minutes
    python benchmarks/keyed_beside_torch.py --rows 10000,1000000 --dims 32 --taken 256,2048

A step takes the sums of bags of 4 random rows, and updates those rows by a gradient of each sum: with torch forward,
backward and `optimizer.step()`, with dps lookup and push. torch has one process, with one thread and with one for each
core. dps has a ps and one or two workers, each a process, with a batch of its own; workers are asynchronous. Both
tables have all of their rows before, and begin with the same step, after which its rows are compared. In a turn each of
the four forms makes a burst of steps, and who goes first goes round. Printed are medians of rows a second, where a row
that is looked up and updated counts once; and as Markdown, for docs/performance.md, how many times as fast as the
faster one of torch's forms one and two workers of dps are: in bold where they are as fast. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import numpy as np

import dps

CORES = os.cpu_count() or 1
FORMS = ("torch, 1 thread", f"torch, {CORES} threads", "dps, 1 worker", "dps, 2 workers")
WORKERS, UNCOUNTED, BAG = 2, 2, 4
BURST = 16_384
"""The ids of a burst of one worker."""
PAUSE_S = 0.02
"""Between bursts, for threads of torch that wait for work in a loop."""
FILL = 200_000
STRIDE = 7919
"""Key `STRIDE` * n takes the place of row n."""
RATE, FIRST_ACCUMULATOR = 0.1, 0.1
FIRST_STEP = 1024
"""The rows of the step after which dps and torch are compared."""
ANSWER_S = 120.0
"""For a worker to start, and for one of its answers."""
SAME = 1e-5
Rates = dict[str, list[int]]
"""By form the rows a second of each turn."""


class Bags:
    """Random row numbers, in bags, and a gradient for each bag (bags, dim) of a step."""

    def __init__(self, seed: int, rows: int, dim: int) -> None:
        self._draw, self._rows = np.random.default_rng(seed), rows
        self.gradient = self._draw.normal(size=(BURST // BAG, dim)).astype(np.float32)

    def burst(self, taken: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Row numbers (steps, bags, BAG) of a burst whose steps take so many rows."""
        return self._draw.integers(0, self._rows, (BURST // taken, taken // BAG, BAG))


def train(server: dps.Server, address: str, rows: int, dim: int) -> None:
    """A worker of dps. It makes a burst of steps of each number of rows that it is sent, and answers with the begin and
    the end; for 0 it fills the table, makes a step, and answers with its rows. Blocks until it is sent None."""
    table = dps.Variable(keys="int64", dim=dim, capacity=rows, init=dps.init.Zeros())
    bags = Bags(server.task, rows, dim)
    adagrad = dps.optim.Adagrad(RATE, initial_accumulator=FIRST_ACCUMULATOR)
    with (
        dps.Session(server, {"table": table}, optimizer=adagrad, timeout=300) as session,
        Client(address, "AF_UNIX") as main,
    ):

        def step(ids: np.ndarray[Any, Any]) -> Any:
            keys = STRIDE * ids
            sums = session.lookup("table", keys).sum(axis=1)
            by_row = np.broadcast_to(bags.gradient[: len(ids), None], (*keys.shape, dim))
            session.push({"table": dps.Rows(keys, by_row)})
            return sums

        main.send(server.task)
        while (taken := main.recv()) is not None:
            if taken == 0:
                for start in range(0, rows, FILL):
                    keys = STRIDE * np.arange(start, min(rows, start + FILL))
                    session.push({"table": dps.Rows(keys, np.zeros((len(keys), dim), np.float32))})
                first = bags.burst(FIRST_STEP)[0]
                step(first)
                main.send(session.lookup("table", STRIDE * first))
                continue
            burst = bags.burst(taken)
            began = time.perf_counter()
            for ids in burst:
                step(ids)
            main.send((began, time.perf_counter()))


class Torch:
    """The table in this process."""

    def __init__(self, rows: int, dim: int) -> None:
        import torch

        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call,unused-ignore]  # else it warns of itself
        self._torch, self.bags = torch, Bags(0, rows, dim)
        self.table = torch.nn.EmbeddingBag.from_pretrained(
            torch.zeros(rows, dim), freeze=False, mode="sum", sparse=True
        )
        self._adagrad = torch.optim.Adagrad(
            self.table.parameters(), lr=RATE, initial_accumulator_value=FIRST_ACCUMULATOR
        )
        self._gradient = torch.from_numpy(self.bags.gradient)

    def step(self, ids: Any) -> None:
        self._adagrad.zero_grad()
        self.table(ids).backward(self._gradient[: len(ids)])
        self._adagrad.step()

    def first(self) -> Any:
        """The rows of the first step after it."""
        ids = self._torch.from_numpy(self.bags.burst(FIRST_STEP)[0])
        self.step(ids)
        return self.table.weight.detach()[ids].numpy()

    def burst(self, taken: int, threads: int) -> float:
        """Its seconds."""
        self._torch.set_num_threads(threads)
        burst = self._torch.from_numpy(self.bags.burst(taken))
        began = time.perf_counter()
        for ids in burst:
            self.step(ids)
        return time.perf_counter() - began


class Workers:
    """Those of a run, at the other ends of connections."""

    def __init__(self, listener: socket.socket) -> None:
        """Waits for all of them. TimeoutError says how many came."""
        found = dict[int, Connection]()
        listener.settimeout(ANSWER_S)
        while len(found) < WORKERS:
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                raise TimeoutError(f"{len(found)} of {WORKERS} workers came within {ANSWER_S:.0f} s") from None
            accepted.setblocking(True)
            worker = Connection(accepted.detach())
            found[worker.recv()] = worker
        self._all = [found[task] for task in range(WORKERS)]

    def ask(self, what: int | None, tasks: int) -> None:
        """Send this to the first `tasks` workers."""
        for worker in self._all[:tasks]:
            worker.send(what)

    def answer(self, task: int) -> Any:
        """What this worker sends next. Blocks; TimeoutError if it sends nothing."""
        if not self._all[task].poll(ANSWER_S):
            raise TimeoutError(f"worker {task} has not answered within {ANSWER_S:.0f} s")
        return self._all[task].recv()

    def burst(self, taken: int, tasks: int) -> float:
        """Seconds from the first begin to the last end of a burst of the first `tasks` workers at a time. Blocks."""
        self.ask(taken, tasks)
        began, ended = zip(*(self.answer(task) for task in range(tasks)), strict=True)
        return float(max(ended) - min(began))


def measured(rows: int, dim: int, takens: Sequence[int], turns: int) -> Iterator[tuple[int, Rates]]:
    """For each number of rows of a step, all forms with a table of this size. ValueError if dps and torch differ."""
    with (
        tempfile.TemporaryDirectory(prefix="dps-beside-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
        dps.LocalCluster(ps=1, workers=WORKERS, processes=True) as local,
    ):
        listener.bind(f"{folder}/main")
        listener.listen()
        run = local.run(train, f"{folder}/main", rows, dim)
        workers = Workers(listener)
        workers.ask(0, 1)
        beside = Torch(rows, dim)
        theirs, ours = beside.first(), workers.answer(0)
        if (off := float(np.abs(theirs - ours).max())) > SAME:
            raise ValueError(f"after one step rows of dps and torch differ by up to {off}, wanted at most {SAME}")
        for taken in takens:
            yield taken, by_turns(beside, workers, taken, turns)
        workers.ask(None, WORKERS)
        run.wait(progress=False)


def by_turns(beside: Torch, workers: Workers, taken: int, turns: int) -> Rates:
    """A burst of each form in each turn."""
    forms: list[Callable[[], float]] = [
        lambda: beside.burst(taken, 1),
        lambda: beside.burst(taken, CORES),
        lambda: workers.burst(taken, 1),
        lambda: workers.burst(taken, WORKERS) / WORKERS,
    ]
    found: Rates = {name: [] for name in FORMS}
    for turn in range(UNCOUNTED + turns):
        for at in range(len(forms)):
            form = (turn + at) % len(forms)
            time.sleep(PAUSE_S)
            seconds = forms[form]()
            if turn >= UNCOUNTED:
                found[FORMS[form]].append(round(BURST // taken * taken / seconds))
    return found


def lines_of(found: dict[tuple[int, int, int], Rates]) -> Iterator[str]:
    """The rates by dim, rows of a step and rows of the table."""
    yield "million rows a second (beside the faster one of torch)"
    yield f"{'dim':>4} {'a step':>7} {'table':>10} " + " ".join(f"{name:>17}" for name in FORMS)
    medians = {size: {name: statistics.median(each) for name, each in rates.items()} for size, rates in found.items()}
    for (dim, taken, rows), rates in sorted(medians.items()):
        best = max(rates[name] for name in FORMS[:2])
        cells = [f"{rates[name] / 1e6:.2f} ({rates[name] / best:.2f})" for name in FORMS]
        yield f"{dim:4} {taken:7,} {rows:10,} " + " ".join(f"{cell:>17}" for cell in cells)


def markdown_of(found: dict[tuple[int, int, int], Rates]) -> Iterator[str]:
    """How many times as fast as the faster one of torch's each form of dps is, by rows of a step."""
    takens = sorted({taken for _, taken, _ in found})
    yield f"| float32 a row | rows | {' | '.join(f'{taken:,} a step' for taken in takens)} |"
    yield "| --- " * (2 + len(takens)) + "|"
    for dim, rows in sorted({(dim, rows) for dim, _, rows in found}):
        cells = []
        for taken in takens:
            rates = {name: statistics.median(each) for name, each in found[dim, taken, rows].items()}
            ratios = [rates[name] / max(rates[each] for each in FORMS[:2]) for name in FORMS[2:]]
            cells.append("; ".join(f"**{ratio:.2f}**" if ratio >= 1 else f"{ratio:.2f}" for ratio in ratios))
        yield f"| {dim} | {rows:,} | {' | '.join(cells)} |"


def main(argv: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="10000,100000,1000000,4000000", help="of the table; several, with commas")
    parser.add_argument("--dims", default="16,64", help="float32 of a row; several, with commas")
    parser.add_argument("--taken", default="512,2048,8192", help="rows of a step and worker; several, with commas")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rates of all turns there")
    args = parser.parse_args(argv)
    try:
        rows, dims, takens = ([int(n) for n in text.split(",")] for text in (args.rows, args.dims, args.taken))
    except ValueError:
        parser.error(f"got --rows {args.rows} --dims {args.dims} --taken {args.taken}; wanted whole numbers and commas")
    if min(args.turns, *rows, *dims) < 1 or min(takens) < BAG or max(takens) > BURST:
        parser.error(f"--rows, --dims and --turns: wanted at least 1; --taken: {BAG} to {BURST}")
    try:
        import torch  # noqa: F401
    except ImportError:
        parser.error('needs PyTorch: pip install "dps[torch]"')
    load, found = os.getloadavg()[0], dict[tuple[int, int, int], Rates]()
    for dim in dims:
        for size in rows:
            found.update({(dim, taken, size): rates for taken, rates in measured(size, dim, takens, args.turns)})
    print("\n".join([f"load before: {load:.1f}", *lines_of(found), *markdown_of(found)]))
    if args.json is not None:
        cases = [{"dim": dim, "taken": n, "rows": size, "rates": rates} for (dim, n, size), rates in found.items()]
        args.json.write_text(json.dumps({"load": load, "cases": cases}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

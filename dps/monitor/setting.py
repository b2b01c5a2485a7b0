"""The setting of one group of `dps bench` figures: a cluster, a model, an optimizer, and what limits it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dps.client.session import Session
from dps.monitor import works
from dps.monitor.loops import LOCAL, MeasuredLoop, loop_of
from dps.monitor.works import IN_PLACE, OPTIMIZERS, Table
from dps.process import config
from dps.task.server import Server
from dps.training.update_modes import Async, SyncReplicas
from dps.transport import limits
from dps.transport.current import runtime

TRANSPORTS = ("inproc", "ipc", "tcp", "socket")
"""`socket` is tcp without shared memory, as between two machines."""
SMALL = 1 << 16
"""Up to this number of bytes a work is compared with raw ZeroMQ messages."""
BARRIER = 1 << 20
"""Up to this number of bytes a synchronous step is compared with a raw ZeroMQ barrier."""

PATIENCE_S = 5.0
"""How long a task may take to end."""
SHARED_LANE, SOCKET_LANE, LOCAL_LANE = "shared memory and datagrams", "sockets", "one process"
"""The lanes of messages and values between a session and the ps."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """`kind`: dense, sparse, sync or loop; `size`: as works.shapes takes it, "table" for sparse, "mlp" for loop.

    The step of a loop computes `batches` batches, for about `computing_ms`; one call makes `steps` of them.
    """

    kind: str
    transport: str
    size: str
    optimizer: str = "sgd"
    ps: int = 1
    workers: int = 1
    table_rows: int = 1_000_000
    table_taken: int = 8192
    table_dim: int = 64
    computing_ms: float = 0.0
    batches: int = 1
    steps: int = 1

    def __str__(self) -> str:
        computing = f", {self.computing_ms:g} ms of computing" if self.kind == "loop" else ""
        on = f"{self.optimizer}, {self.ps} ps, {self.workers} workers"
        return f"{self.kind} {self.size} over {self.transport}, {on}{computing}"

    @property
    def table(self) -> Table:
        return Table(self.table_rows, self.table_taken, self.table_dim)

    @property
    def nbytes(self) -> int:
        """Bytes in one direction."""
        return self.table.nbytes if self.kind == "sparse" else works.nbytes(self.size)

    @property
    def variables(self) -> int:
        return 1 if self.kind == "sparse" else len(works.shapes(self.size))

    @property
    def shared(self) -> bool:
        return self.transport != "socket"

    @property
    def loop(self) -> MeasuredLoop:
        return MeasuredLoop(self.batches, self.steps)

    def moved(self, work: str) -> int:
        """Bytes that a work transfers in both directions; for a loop, those of one step."""
        both_ways = self.kind == "loop" or work.removesuffix(IN_PLACE) in ("step", "sync")
        return self.nbytes * (2 if both_ways else 1)

    def session(self, server: Server) -> Session:
        """A session on the setting's variables."""
        tree = {"sparse": lambda: self.table.params(self.optimizer), "loop": self.loop.params}.get(
            self.kind, lambda: works.params(self.size)
        )()
        mode = SyncReplicas() if self.kind == "sync" else Async()
        return Session(
            server, tree, optimizer=OPTIMIZERS[self.optimizer], update=mode, shared_memory=self.shared, timeout=60
        )

    def calls(self, session: Session) -> dict[str, Call]:
        """A function for each work of the setting."""
        if self.kind == "sparse":
            return self.table.calls(session)
        if self.kind == "loop":
            return {f"loop {form}": call for form, call in self.loop.calls(session).items()}
        found = works.dense(session, self.size)
        return {name: call for name, call in found.items() if name.startswith("sync") == (self.kind == "sync")}

    def lane(self, session: Session) -> str:
        """The lane that a session uses."""
        if self.transport == "inproc":
            return LOCAL_LANE
        return SHARED_LANE if all(peer.lane.on for peer in session._connection.peers.values()) else SOCKET_LANE

    # -- limits -----------------------------------------------------------------------------------------------

    def limits_of(self, work: str) -> list[str]:
        """The names of a work's limits; the fastest of them counts."""
        plain = work.removesuffix(IN_PLACE)
        both_ways = plain in ("step", "sync")
        if self.kind == "loop":
            return [LOCAL]
        if self.kind == "sync" and self.nbytes <= BARRIER:
            return [f"raw ZeroMQ barrier over {self._wire}"]
        if self.nbytes <= SMALL:
            return [f"raw ZeroMQ over {self._wire}"]
        if not self.shared:
            return list(_raw_tcp(both_ways))
        if self.kind == "sparse":
            return ["memcpy"]
        if work.endswith(IN_PLACE):
            return ["reading" if plain == "pull" else "kernel and reading" if both_ways else "kernel"]
        return ["shared copy" if both_ways else "memcpy"]

    @property
    def _wire(self) -> str:
        """The transport with which plain ZeroMQ is measured."""
        return "tcp" if self.transport in ("tcp", "socket") else "ipc"

    def limit(self, name: str) -> contextlib.AbstractContextManager[Call]:
        """The limit with this name, to be measured."""
        nbytes = self.nbytes
        if name.startswith("raw ZeroMQ barrier"):
            return limits.raw_barrier(nbytes, self.workers, self._wire)
        if name.startswith("raw ZeroMQ"):
            return limits.raw_zmq(nbytes, self._wire)
        for both_ways in (False, True):
            if name in _raw_tcp(both_ways):
                return limits.raw_tcp(nbytes, nbytes if both_ways else 1, _raw_tcp(both_ways)[name])
        calls: dict[str, Callable[[], Call]] = {
            LOCAL: self.loop.local,
            "kernel": lambda: kernel(self.optimizer, nbytes),
            "kernel and reading": lambda: both(kernel(self.optimizer, nbytes), limits.reading(nbytes)),
            "reading": lambda: limits.reading(nbytes),
            "shared copy": lambda: limits.shared_copy(runtime(), nbytes),
            "memcpy": lambda: limits.memcpy(nbytes),
        }
        return contextlib.nullcontext(calls[name]())

    # -- the cluster ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def cluster(self) -> Iterator[Server]:
        """The first worker's server in a new cluster. Its chief and ps are threads on inproc, else processes."""
        with contextlib.ExitStack() as stack:
            last = stack.enter_context(contextlib.ExitStack())  # the chief's farewell waits for its nodes to hear it
            target, bind = self._in_process(stack) if self.transport == "inproc" else self._processes(stack)
            worker = Server(None, "worker", 0, chief=target, bind=bind, trusted_network=True)
            last.callback(worker.stop)
            yield worker

    def _in_process(self, stack: contextlib.ExitStack) -> tuple[str, str]:
        name = f"inproc://dps-bench-{os.getpid()}-{runtime().random.getrandbits(48):x}"
        chief = Server(None, "chief", 0, bind=f"{name}-chief", ps=self.ps, workers=self.workers, owned=True)
        tasks = [Server(None, "ps", task, chief=chief.address, bind=f"{name}-{task}") for task in range(self.ps)]
        for server in (*tasks, chief):  # the chief first, because it would take a stopping ps for a lost one
            stack.callback(server.stop)
        return chief.address, f"{name}-worker"

    def _processes(self, stack: contextlib.ExitStack) -> tuple[str, str]:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dps-bench-"))
        binds = [f"ipc://{folder}/{n}" if self.transport == "ipc" else "127.0.0.1:0" for n in range(self.ps + 2)]
        roles = stack.enter_context(Roles())
        counts = ["--ps", str(self.ps), "--workers", str(self.workers)]
        target = roles.start(["--job", "chief", "--chief", binds[0], *counts, "--owned"])
        for task in range(self.ps):
            roles.start(["--job", "ps", "--task", str(task), "--chief", target, "--bind", binds[1 + task]])
        return target, binds[-1]


def loop(computing_ms: float, transport: str = "tcp", ps: int = 1, workers: int = 1) -> Setting:
    """A training loop whose step computes for about `computing_ms` on this machine. Measures it, and so blocks."""
    found = loop_of(computing_ms / 1e3)
    return Setting(
        "loop", transport, "mlp", ps=ps, workers=workers,
        computing_ms=computing_ms, batches=found.batches, steps=found.steps,
    )  # fmt: skip


class Roles:
    """Tasks as processes: the chief, then others. The chief ends them all. Their sockets are plain: what keys cost is
    measured by benchmarks/keys.py."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, flags: list[str]) -> str:
        """Start a task; returns its address."""
        command = [sys.executable, "-m", "dps.role", "--log-level", "WARNING", "--trusted-network", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=config.environment())
        self.processes.append(process)
        assert process.stdout is not None
        return process.stdout.readline().split()[-1]

    def __enter__(self) -> Roles:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes[:1]:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _raw_tcp(both_ways: bool) -> dict[str, int]:
    """Names of the raw TCP limits, each with its buffer size. Which one is faster depends on the machine."""
    kind = "raw TCP there and back" if both_ways else "raw TCP"
    return {f"{kind}, buffers of {buffer >> 10} KB": buffer for buffer in limits.BUFFERS}


def both(first: Call, second: Call) -> Call:
    """A function that makes one call, then another."""

    def call() -> None:
        first()
        second()

    return call


def kernel(optimizer: str, nbytes: int) -> Call:
    """The update kernel alone, in place, on `nbytes` of float32: the least work of a ps."""
    import numpy as np

    from dps.kernels.optimizers import BoundOptimizer, initial_slots

    # Adjacent arrays with a power-of-two size take 2.7 times as long; a ps has each in pages of its own.
    chosen, count, page = OPTIMIZERS[optimizer], nbytes // 4, 1 << 10
    values, gradient = np.zeros(count + page, np.float32)[:count], np.ones(count + page, np.float32)[:count]
    bound = BoundOptimizer(chosen, np.float32)
    slots = bound.ordered(initial_slots(chosen, count, np.float32))
    return lambda: bound.apply(values, values, slots, (gradient,), 0, 1, 1, 1.0)

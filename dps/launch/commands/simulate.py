"""Simulates a whole cluster in this process on a virtual clock, with the real actors, sessions and training loops."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dps.checkpoint.memory import MemoryStorage
from dps.errors import ConfigError, DpsError
from dps.launch.clusters.progress import RunProgress
from dps.process import endings, own_files, telemetry
from dps.task.server import Server
from dps.training.definition import whole_number
from dps.training.update_modes import Update, parse
from dps.transport.sim import Calibration, Compute, Network, World
from dps.transport.sim.calibration import chosen
from dps.transport.sim.trace import TraceEvent
from dps.transport.sim.world import Fault

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHIEF = "chief:2220"
UNCALIBRATED = "none, messages and arithmetic take no core"
OWN_MACHINES = "none, machines were given"


@dataclass
class SimulatedRun:
    """The outcome of a simulation, as `dps.simulate` returns it.

    Args:
        seconds: How long it took, in virtual seconds.
        results: What `train` returned on each worker; None if it did not end well.
        errors: The error of each task that ended with one, by task name.
        exit_codes: The exit code of each task, by task name; None if it was killed, or still ran at the end.
        trace: Everything that happened, in order.
        history: A row for each push of each worker, as in LocalRun; `at` is its virtual second.
        lost: The tasks that were killed and not started again, and those that still ran when the time was over.
        restarted: The tasks that were killed and started again.
        files: What the tasks wrote to the simulated disk: the bytes of each file by its path.
        standing: What the sessions told when they opened, for `plot` and `placement`.
        calibration: What messages and arithmetic cost: the name of the calibration, or why there was none.

    Example:
        ```pycon
        >>> def train(server):
        ...     return server.task
        >>> run = dps.simulate(train, workers=2)
        >>> run.results, run.exit_codes["worker:1"]
        ([0, 1], 0)
        >>> print(run)
        simulated ... s: no pushes; chief ended with 3 (no error); ...; calibration: shipped ...
        ```
    """

    seconds: float
    """Virtual seconds."""
    results: list[Any]
    errors: dict[str, str]
    """Tasks that ended with an error, and the error."""
    exit_codes: dict[str, int | None]
    trace: list[TraceEvent] = field(repr=False)
    history: list[dict[str, Any]] = field(repr=False, default_factory=list)
    """A row for each push of each worker, as LocalRun has them; `at`: its virtual second."""
    lost: dict[str, str] = field(default_factory=dict)
    """Tasks that were killed and not started again, or still ran when the time was over: which of both."""
    restarted: list[str] = field(default_factory=list)
    """Tasks that were killed and started again."""
    files: dict[str, bytes] = field(repr=False, default_factory=dict)
    """What the tasks wrote to the simulated disk: the bytes of each file by its path."""
    standing: RunProgress = field(repr=False, compare=False, default_factory=RunProgress)
    """What the sessions told when they opened, for `plot` and `placement`."""
    calibration: str = UNCALIBRATED
    """What messages and arithmetic cost: the name of the calibration, or why there was none."""

    def __str__(self) -> str:
        parts = [f"simulated {self.seconds:.3f} s: {self._learned()}"]
        parts += [f"{name} {how}" for name, how in self.lost.items()]
        parts += [f"{name} was killed and started again" for name in self.restarted if name not in self.lost]
        ended = {name: code for name, code in self.exit_codes.items() if code and name not in self.lost}
        parts += [f"{name} ended with {code} ({self.errors.get(name, 'no error')})" for name, code in ended.items()]
        if not (self.lost or ended or self.restarted):
            parts.append("all tasks ended well")
        if self.files:
            how = "run.save(folder), or --save FOLDER, writes them to a real one"
            parts.append(f"files on the simulated disk: {len(self.files)}; {how}")
        return "; ".join([*parts, f"calibration: {self.calibration}"])

    def _learned(self) -> str:
        """Steps and losses."""
        if not self.history:
            return "no pushes"
        losses = [row for row in self.history if row["loss"] is not None]
        text = f"step {max(row['step'] for row in self.history)}, {len(self.history)} pushes"
        dropped = sum(not row["accepted"] for row in self.history)
        text += f" ({dropped} not accepted)" if dropped else ""
        return text + (f", loss {losses[0]['loss']:.4g} to {losses[-1]['loss']:.4g}" if losses else ", no losses")

    def save(self, folder: str | os.PathLike[str]) -> list[str]:
        """Write the files of the simulated disk, such as those of `dps.SummarySaver`, to a folder of this machine.

        Blocks on the disk. Files that are there are overwritten.

        Args:
            folder: The folder, which is made. An absolute path of the simulation becomes one below it.

        Returns:
            The paths of the written files, in order.

        Raises:
            OSError: The disk refuses.

        Example:
            ```pycon
            >>> def train(server):
            ...     with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
            ...                      hooks=[dps.SummarySaver("logs")]) as session:
            ...         session.push({"w": np.ones(3)}, loss=0.5)
            >>> dps.simulate(train).save("simulated")
            ['simulated/logs/summaries.jsonl']
            ```
        """
        written = []
        for path, data in sorted(self.files.items()):
            inside = [part for part in path.split("/") if part not in ("", "..")]
            target = os.path.join(os.fspath(folder), *inside)
            own_files.make_folder(os.path.dirname(target))
            with open(target, "wb", opener=own_files.opener) as file:
                file.write(data)
            written.append(target)
        return written

    def plot(self) -> Figure:
        """Draw the loss over virtual time and over steps, examples/s, and the staleness of the pushes.

        Needs dps[notebook] (matplotlib). Does not block. Examples/s are drawn if a hook of each worker has `batch`,
        such as `dps.LogMetrics(batch=32)`, else pushes/s.

        Returns:
            The figure, which a notebook shows if it is the value of a cell. `run.plot().savefig("run.png")` writes it.

        Raises:
            MissingExtra: matplotlib is not installed.

        Example:
            ```python
            def train(server):
                params, rate = {"w": np.zeros(3)}, dps.optim.SGD(0.1)
                with dps.Session(server, params, optimizer=rate) as session:
                    session.push({"w": np.ones(3)}, loss=0.5)

            run = dps.simulate(train, ps=1, workers=2)
            run.plot().savefig("run.png")
            run.placement().savefig("placement.png")
            ```
        """
        from dps.launch.clusters.plots import plot_history

        return plot_history(f"simulated {self.seconds:.3g} s", self.history, self.standing.batches, "virtual time")

    def placement(self) -> Figure:
        """Draw the bytes that each ps held: values, and slots of the optimizers, as the last session found them.

        Needs dps[notebook] (matplotlib). Does not block.

        Returns:
            The figure, as of `plot`.

        Raises:
            MissingExtra: matplotlib is not installed.
            ConfigError: No worker has opened a session.
        """
        from dps.launch.clusters.plots import plot_placement

        return plot_placement("Bytes of each ps", self.standing.placement)


class SimulatedCluster:
    """Chief, ps and workers as processes of a simulated world. Use it in a `with` block or `close` it."""

    def __init__(
        self,
        train: Callable[..., Any],
        *args: Any,
        ps: int = 1,
        workers: int = 1,
        seed: int | str = 0,
        update: Update | str | None = None,
        network: Network | None = None,
        compute: Compute | None = None,
        faults: Sequence[Fault] = (),
        restarts: int = 1,
        **world: Any,
    ) -> None:
        # More than 9 parameters: this is a public signature, and each is a setting that people give by its name.
        """`restarts`: how often a killed ps or chief is started again. `world`: arguments of World."""
        if isinstance(update, str):
            parse(update)
        self.world = World(seed, network, compute, faults, **world)
        self.workers = workers
        self.history: list[dict[str, Any]] = []
        self.results: list[Any] = [None] * workers
        self._train, self._args = train, args
        serve = functools.partial(self._serve, ps=ps, workers=workers, update=update)
        self.world.process("chief", functools.partial(serve, "chief", 0), restarts=restarts)
        for task in range(ps):
            self.world.process(f"ps:{task}", functools.partial(serve, "ps", task), restarts=restarts)
        for task in range(workers):
            self.world.process(f"worker:{task}", functools.partial(self._work, task))

    def _serve(self, job: str, task: int, ps: int, workers: int, update: Update | str | None) -> int:
        bind = CHIEF if job == "chief" else f"{job}{task}:0"
        restarted = self.world.processes[job if job == "chief" else f"{job}:{task}"].incarnation > 0
        server = Server(
            None, job, task, chief=CHIEF, bind=bind, ps=ps, workers=workers, update=update, restarted=restarted
        )
        return server.join() or 0

    def _work(self, task: int) -> int:
        server = Server(None, "worker", task, chief=CHIEF, bind=f"worker{task}:0")
        try:
            with endings.program():
                self.results[task] = self._train(server, *self._args)
        except DpsError as error:
            server.runtime.record("error", kind=type(error).__name__, text=str(error))
            raise
        finally:
            server.stop()
        return 0

    def run(self, until_s: float = 600.0) -> SimulatedRun:
        """Simulate until all tasks have ended, or for `until_s` virtual seconds."""
        standing = RunProgress()
        telemetry.listen(self._progress, standing.opened)
        try:
            self.world.run(until_s)
        finally:
            telemetry.forget(self._progress, standing.opened)
        errors = {n: f"{type(p.error).__name__}: {p.error}" for n, p in self.world.processes.items() if p.error}
        codes = {n: p.exit_code for n, p in self.world.processes.items()}
        states = {n: p.state for n, p in self.world.processes.items() if p.state != "ended"}
        lost = {n: "was killed" if state == "killed" else "had not ended" for n, state in states.items()}
        files = self.world.storage.files() if isinstance(self.world.storage, MemoryStorage) else {}
        again = [n for n, p in self.world.processes.items() if p.incarnation]
        return SimulatedRun(
            self.world.now, self.results, errors, codes, self.world.trace, self.history, lost, again, files,
            standing,
        )  # fmt: skip

    def _progress(self, row: dict[str, Any]) -> None:
        self.history.append({"at": self.world.now, **row})

    def close(self) -> None:
        self.world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# More than 9 parameters: this is a public signature, and each is a setting that people give by its name.
def simulate(
    train: Callable[..., Any],
    *args: Any,
    ps: int = 1,
    workers: int = 1,
    seed: int | str = 0,
    update: Update | str | None = None,
    network: Network | None = None,
    compute: Compute | None = None,
    faults: Sequence[Fault] = (),
    until_s: float = 3600.0,
    calibration: Calibration | str | os.PathLike[str] | None = "shipped",
    **world: Any,
) -> SimulatedRun:
    """Run `train(server, *args)` on every worker of a simulated cluster: the same result for the same seed.

    Computing takes the virtual time that `compute` says, at each push of a gradient. What messages and the arithmetic
    of a ps take, and what a network card carries, is what a calibration says; each task has such a machine, or with
    `shared_memory=True` all share one. The result says which calibration it was. The program's own clocks, threads and
    global randomness are not simulated. Blocks until the simulation is over. Needs dps[sim].

    Args:
        train: A function of a `dps.Server`, which is the worker's.
        args: More arguments.
        ps: How many ps.
        workers: How many workers.
        seed: Determines delays, losses and the order of simultaneous events.
        update: The update mode; an instance, or "async", "sync", "sync:sum", "bounded:S", "local:H". None: the
            sessions choose it.
        network: The properties of the links. None: those of the calibration; without one, `dps.sim.Network()`.
        compute: How long a step computes. None: no time.
        faults: What fails, and when: `dps.sim.Kill`, `Pause`, `Partition`, `Slow`, `SlowDisk`, `DiskFull`.
        until_s: The latest virtual second of the simulation.
        calibration: "shipped": that of the documentation's machine. A file that `dps bench --calibrate` has written, or
            a `dps.sim.Calibration`. None: messages and arithmetic take no core, and cards have no limit.
        world: More arguments of `dps.sim.World`. With `machines`, no calibration is used.

    Returns:
        The outcome.

    Raises:
        ValueError: A fault, a link or a factor names a task that does not exist, or has a number out of range.
        ConfigError: A file is no calibration, or there is no such number of tasks or of seconds.
        MissingExtra: greenlet is not installed.

    Example:
        ```pycon
        >>> def train(server):
        ...     with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
        ...                      hooks=[dps.StopAtStep(last_step=20)]) as session:
        ...         while not session.should_stop():
        ...             session.push({"w": np.ones(3)})
        >>> run = dps.simulate(train, ps=2, workers=2, seed=7,
        ...                    compute=dps.sim.Compute(seconds=0.1),
        ...                    faults=[dps.sim.Pause("worker:1", at=0.5, seconds=2.0)])
        >>> len(run.history) >= 20, run.errors
        (True, {})
        ```
    """
    whole_number("simulate: got ps=", ps, 0), whole_number("simulate: got workers=", workers, 1)
    if not until_s > 0:
        raise ConfigError(f"simulate: got until_s={until_s}, wanted virtual seconds above 0")
    world.setdefault("piece_nbytes", 1 << 20)
    used = chosen(calibration) if world.get("machines") is None else None
    if used is not None:
        shared_memory = bool(world.get("shared_memory"))
        world["machines"] = used.machines(shared_memory)
        network = used.network(shared_memory) if network is None else network
    with SimulatedCluster(
        train, *args, ps=ps, workers=workers, seed=seed, update=update, network=network, compute=compute,
        faults=faults, **world,
    ) as cluster:  # fmt: skip
        run = cluster.run(until_s)
    run.calibration = (
        str(used) if used is not None else OWN_MACHINES if world.get("machines") is not None else UNCALIBRATED
    )
    return run

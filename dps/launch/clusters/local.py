"""A cluster on this machine, for notebooks, examples and tests."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dps.client.session import Session, client_of
from dps.errors import ConfigError, DeadlineExceeded, DpsError
from dps.launch.clusters.processes import ProcessTasks
from dps.launch.clusters.run import LocalRun
from dps.launch.clusters.threads import ThreadTasks
from dps.launch.commands.operating import has_variables
from dps.launch.supervision.supervisor import Supervisor
from dps.process.functions import loading
from dps.process.telemetry import log
from dps.training import update_modes as update
from dps.training.update_modes import parse
from dps.transport.current import runtime

if TYPE_CHECKING:
    from dps.launch.programs.serving import ServedPrograms
    from dps.task.server import Server


SESSION_S = 60.0
"""The default timeout of a session."""
LOOK_S = 0.05
"""How often a reader asks whether the run has variables."""

_running: LocalCluster | None = None


class LocalCluster:
    """Chief, ps and workers on this machine. Only `stop`, or the end of the block, ends the ps and the chief.

    Starting another LocalCluster in this process stops the previous one, so a notebook's cell may be run again. Its
    repr shows each task's state, the step and the chief's address.

    Args:
        ps: How many ps. 0: the workers train by all-reduce (`dps.strategy.MultiWorkerMirrored`).
        workers: How many workers.
        processes: True: each task is a process (a ps or chief that dies is restarted once). A script must then make the
            cluster under `if __name__ == "__main__":`, because worker processes import the script to find the function.
            False: all tasks are in this process.
        update: The update mode; an instance, or "async", "sync", "sync:sum", "bounded:S", "local:H". None: the
            sessions choose it.
        pin: Whether each ps and worker process keeps to processors of its own.
        serve: Modules, files and functions that the workers run for `session.run` and `dps.Coordinator`, from the start
            on; one, or a list. A notebook's functions need dps[notebook]. None: workers run what `run` gives them.

    Raises:
        ConfigError: No worker, or a negative number of ps; or `pin`, and tasks cannot be pinned.

    Example:
        ```python
        def train(server):
            with dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1),
                             hooks=[dps.StopAtStep(last_step=10)]) as session:
                while not session.should_stop():
                    session.push({"w": np.ones(3)})
                return session.global_step

        if __name__ == "__main__":
            with dps.LocalCluster(ps=1, workers=1, processes=False) as local:
                assert local.run(train).results == [10]
        ```
    """

    def __init__(
        self, ps: int = 1, workers: int = 2, processes: bool = True, update: update.Update | str | None = None,
        pin: bool = False, serve: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None = None,
    ) -> None:  # fmt: skip
        if ps < 0 or workers < 1:
            raise ConfigError(f"got ps={ps}, workers={workers}; wanted workers from 1 and ps from 0")
        if pin and not processes:
            raise ConfigError("got pin=True with processes=False; only processes can be pinned to processors")
        if isinstance(update, str):
            parse(update)
        self.ps, self.workers, self.processes = ps, workers, processes
        self._update, self._pin = update, pin
        self._serving: ServedPrograms | None = None
        if serve is not None:
            from dps.launch.programs.serving import ServedPrograms

            self._serving = ServedPrograms(serve)
        self._tasks: ProcessTasks | ThreadTasks | None = None
        self._run: LocalRun | None = None
        self._clients: list[Server] = []
        """The clients of the sessions that `session` has opened: their threads end with the cluster."""
        self._stopped = False

    def __repr__(self) -> str:
        form = f"ps={self.ps}, workers={self.workers}, processes={self.processes}"
        tasks, run = self._tasks, self._run
        if tasks is None:
            return f"<{type(self).__name__}({form}): {'stopped' if self._stopped else 'not started'}>"
        states = tasks.states() | (run.states() if run is not None else {})
        text = ", ".join(f"{name} {state}" for name, state in states.items())
        return f"<{type(self).__name__}({form}) at {tasks.target}: {text}{'' if run is None else f'; {run.standing}'}>"

    @property
    def _supervisor(self) -> Supervisor | None:
        return self._tasks.supervisor if isinstance(self._tasks, ProcessTasks) else None

    def start(self) -> Self:
        """Start chief and ps. Blocks until the chief listens.

        Returns:
            The cluster.

        Raises:
            ConfigError: A worker process that imports the main script makes the cluster again; put the lines that make
                it under `if __name__ == "__main__":`.
        """
        global _running
        if self.processes and (path := loading()):
            script, _, function = path.rpartition(":")
            raise ConfigError(
                f"{os.path.basename(script)} makes a dps.LocalCluster again while a worker process imports it to find "
                f'{function}(); put the lines that make the cluster under `if __name__ == "__main__":`'
            )
        if _running is not None:
            _running.stop()
        self._run = None
        self._tasks = self._start_tasks()
        _running = self
        if self._serving is not None:
            program, args = self._serving.program(self.processes)
            self.run(program, *args)
        return self

    def _start_tasks(self) -> ProcessTasks | ThreadTasks:
        """Chief and ps, started."""
        made = self.ps, self.workers, self._update
        return ProcessTasks(*made, self._pin) if self.processes else ThreadTasks(*made)

    @property
    def target(self) -> str:
        """The chief's address, to which clients connect."""
        return self._started().target

    def _started(self) -> ProcessTasks | ThreadTasks:
        if self._tasks is None:
            why = "the cluster was stopped" if self._stopped else "the cluster is not started"
            raise ConfigError(f"{why}; use it in a with block or call start()")
        return self._tasks

    def run(self, train: Callable[..., Any], *args: Any, fresh: bool = False, **named: Any) -> LocalRun:
        """Run `train(server, *args, **named)` on every worker. Returns at once.

        A second run goes on with the variables of the one before, their step and the optimizer's slots; one line says
        so.

        With processes, `train` is found by its path (a module's or a script's function), and arguments and results are
        plain values and arrays. A notebook's function needs dps[notebook].

        Args:
            train: A function of a `dps.Server`, which is the worker's.
            args: More arguments.
            named: More arguments by their names.
            fresh: Begin without the variables of earlier runs: a new chief and new ps, at another `target`. Sessions
                with the old ones end. What is in a checkpoint_dir of `train` is restored as ever.

        Returns:
            The run, with its workers' states and results.

        Raises:
            ConfigError: The cluster is not started, the previous run has not ended, or a worker cannot import `train`.
        """
        tasks = self._started()
        if self._run is not None and not self._run.done():
            raise ConfigError(
                "the run before has not ended: each worker does one thing at a time; call its wait(), or its stop() to "
                "end it now"
            )
        goes_on = self._run is not None and self._run.standing.has_variables
        if fresh:
            self._tasks, goes_on = None, False
            tasks.stop()
            self._tasks = tasks = self._start_tasks()
        run = LocalRun(getattr(train, "__name__", "a function"), self.workers, tasks, goes_on)
        tasks.run(run, train, args, named)
        self._run = run
        return run

    def session(self, params: Any = None, **settings: Any) -> Session:
        """Open a session of this process, as an additional client. Blocks like `dps.Session`.

        Args:
            params: As for `dps.Session`. None: a reader, which waits until the run's workers bring variables.
            settings: As for `dps.Session`.

        Returns:
            The session.

        Raises:
            DpsError: There are no variables for a reader, and all workers have ended, one of them with this failure.
        """
        target = self.target
        if params is None and self._run is not None:
            self._wait_for_variables(self._run, target, settings.get("timeout", SESSION_S))
        session = Session(target, params, **settings)
        self._clients.append(client_of(session))
        return session

    def _wait_for_variables(self, run: LocalRun, target: str, timeout: float) -> None:
        """Wait until the chief knows the variables, or until the session itself should report what it waits for."""
        clock = runtime()
        deadline = clock.now() + timeout
        while not has_variables(target) and clock.now() < deadline:
            if run.failed:
                raise DpsError(run.failed)
            clock.sleep(LOOK_S)

    def stop(self) -> None:
        """End all tasks. First stops a running run, as by its `stop`. Blocks; a second call does nothing."""
        global _running
        if _running is self:
            _running = None
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        self._stopped = True
        try:
            if self._run is not None and not self._run.done():
                self._run.stop()
        except DeadlineExceeded as error:
            log.warning("%s", error)
        finally:
            tasks.stop()
            while self._clients:  # a cluster may be started again
                self._clients.pop().stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@atexit.register
def _stop_running() -> None:
    if _running is not None:
        _running.stop()


def _leave_to_parent() -> None:
    """This process was forked: the cluster is the parent's."""
    global _running
    _running = None


os.register_at_fork(after_in_child=_leave_to_parent)

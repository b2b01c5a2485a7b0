"""A function that runs on every worker of a LocalCluster: its workers, their results, and how to stop it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, Self

from dps.calls.failures import Failure
from dps.errors import DeadlineExceeded, DpsError
from dps.launch.clusters.progress import Display, NoDisplay, RunProgress, display
from dps.transport.current import runtime

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def failure_text(failures: Mapping[int, Failure]) -> str:
    """The text of `wait` about failed workers, in the order in which they failed, because others may have failed as a
    consequence of the first."""
    (first, failure), *others = failures.items()
    text = f"worker:{first} failed: {failure.line if failure.place else failure.error}"
    if failure.trace:
        text += f"\n{failure.trace}"
    same = [task for task, other in others if other.cause == failure.cause]
    if same:
        text += f"{'; ' if failure.place else chr(10)}{worker_names(same)} failed the same way"
    return text + "".join(f"\nworker:{task} failed: {other.line}" for task, other in others if task not in same)


def worker_names(tasks: Iterable[int]) -> str:
    """Workers by name: "worker:0, worker:1"."""
    return ", ".join(f"worker:{task}" for task in sorted(tasks))


_at = itemgetter("at")
RUNNING, DONE, FAILED, STOPPED = "running", "done", "failed", "stopped"
GRACE_S = 5.0
"""How long `stop` gives the workers to end by themselves."""
END_S = 5.0
"""The longest time until a worker that was ended by force has ended."""
FAIL_S = 1.0
"""A failure is reported after this time, while others run; until then others may fail in the same way."""
TURN_S = 0.2
"""How often a wait looks whether the display and failures have something to show."""


class RunWorkers(Protocol):
    """The workers of a run, as threads or processes."""

    target: str

    def ask_to_stop(self, task: int) -> None:
        """Make `should_stop` true in a worker's sessions."""

    def end_worker(self, task: int) -> None:
        """End a worker now, as far as possible."""

    def say(self, text: str) -> None:
        """Print a line among the workers' output."""


class LocalRun:
    """A function running on every worker of a `dps.LocalCluster`, as `LocalCluster.run` returns it.

    `history` grows while it runs: one row for each push of each worker, with `at`, the seconds since the run began.
    Processes send their rows every 50 ms, so those of several workers come in groups, and the last ones of a killed
    worker may be missing; when all workers have ended, the rows are in the order of `at`. Its
    repr shows each worker's state, the step and the chief's address.

    Example:
        ```python
        def train(server):
            return server.task

        with dps.LocalCluster(workers=2, processes=False) as local:
            run = local.run(train)
            assert run.wait(timeout=60).results == [0, 1]
            assert run.states() == {"worker:0": "done", "worker:1": "done"}
        ```
    """

    def __init__(self, name: str, count: int, workers: RunWorkers, goes_on: bool = False) -> None:
        """`goes_on`: an earlier run has left variables."""
        self.history: list[dict[str, Any]] = []
        self._workers = workers
        self._title = f"{name} at {workers.target}"
        self._results: list[Any] = [None] * count
        self._states = [RUNNING] * count
        self._failures: dict[int, Failure] = {}
        self._untold: dict[int, tuple[float, Failure]] = {}
        """Failures that were not reported yet, and their times."""
        self._over = threading.Event()
        self._changing = threading.Lock()
        self._began = runtime().now()
        self.standing = RunProgress(goes_on)
        """How far the run is."""
        self._stopping = False

    def __repr__(self) -> str:
        text = ", ".join(f"{name} {state}" for name, state in self.states().items())
        return f"<LocalRun of {self._title}: {text}; {self.standing}>"

    def states(self) -> dict[str, str]:
        """The state of each worker. Does not block.

        Returns:
            "running", "done", "failed" or "stopped" (ended by `stop`), by the workers' names.
        """
        return {f"worker:{task}": state for task, state in enumerate(self._states)}

    def done(self) -> bool:
        """Whether all workers have ended. Does not block.

        Returns:
            True if they have.
        """
        return self._over.is_set()

    def wait(self, timeout: float | None = None, progress: bool | None = None) -> Self:
        """Block until all workers have ended.

        Ctrl-C, or an interrupt of the notebook's kernel, ends the wait and not the workers: `wait` again, or `stop`.

        Args:
            timeout: Seconds; None: no limit.
            progress: Show step, loss and examples/s (where a hook knows the batch) on stderr. None: on a terminal and
                in a notebook only, with tqdm where it is installed.

        Returns:
            The run.

        Raises:
            DeadlineExceeded: Some workers have not ended within `timeout`. The message names them; they continue.
            DpsError: A worker failed before the run was stopped. The message has its traceback.
        """
        clock = runtime()
        deadline = None if timeout is None else clock.now() + timeout
        shown: Display = NoDisplay()
        try:
            shown = display(self.standing, progress)
            while not self._over.wait(TURN_S if deadline is None else max(0.0, min(TURN_S, deadline - clock.now()))):
                shown.show()
                self._report_failures(FAIL_S)
                if deadline is not None and clock.now() >= deadline:
                    late = f"{worker_names(self._running())} did not end within {timeout} s"
                    raise DeadlineExceeded(f"{late}; run.wait() waits again, run.stop() ends them", self)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note("the workers of this run go on: run.wait() waits for them again, run.stop() ends them")
            raise
        finally:
            shown.close()
        if self._failures:
            text = failure_text(self._failures)
            if self.standing.goes_on and any(failure.place for failure in self._failures.values()):
                text += "; the cluster keeps the variables of the run before: local.run(..., fresh=True) begins anew"
            raise DpsError(text)
        return self

    @property
    def results(self) -> list[Any]:
        """The function's results, by worker. Blocks like `wait`; None for a worker that `stop` ended by force."""
        self.wait()
        return list(self._results)

    def stop(self, timeout: float = GRACE_S) -> Self:
        """End the workers. Blocks until they have ended; does nothing when they have.

        Their sessions' `should_stop` becomes true, so that they can end by themselves. A worker that has not ended
        after `timeout` seconds is ended: its process is killed; a thread (`processes=False`) gets `dps.Cancelled` from
        the next call of its session. Afterwards `wait` returns, unless a worker had failed before.

        Args:
            timeout: Seconds that the workers have to end by themselves.

        Returns:
            The run.

        Raises:
            DeadlineExceeded: A thread computes without calling its session. A thread cannot be ended from outside.
        """
        self._stopping = True
        for task in self._running():
            self._workers.ask_to_stop(task)
        if not self._over.wait(timeout):
            for task in self._running():
                self._workers.end_worker(task)
            if not self._over.wait(END_S):
                names = worker_names(self._running())
                raise DeadlineExceeded(
                    f"{names} did not end: a thread that computes on and calls no session cannot be "
                    "ended from outside; ask session.should_stop() in the loop, or use LocalCluster(processes=True)",
                    self,
                )
        return self

    @property
    def failed(self) -> str:
        """The failure text that `wait` raises; "" while a worker runs, or if none has failed."""
        return failure_text(self._failures) if self._failures and self.done() else ""

    def plot(self) -> Figure:
        """Draw the loss over time and over steps, examples/s, and the staleness of the pushes, up to now.

        Needs dps[notebook] (matplotlib). Does not block; may be called while workers train. Examples/s are drawn if a
        hook of each worker has `batch`, such as `dps.LogMetrics(batch=32)`, else pushes/s.

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

            with dps.LocalCluster(workers=2, processes=False) as local:
                run = local.run(train).wait(timeout=60)
            run.plot().savefig("run.png")
            run.placement().savefig("placement.png")
            ```
        """
        from dps.launch.clusters.plots import plot_history

        name = self._title.partition(" at ")[0]
        return plot_history(name, list(self.history), self.standing.batches, "time since the run began")

    def placement(self) -> Figure:
        """Draw the bytes that each ps holds: values, and slots of the optimizers, as the last session found them.

        Needs dps[notebook] (matplotlib). Does not block.

        Returns:
            The figure, as of `plot`.

        Raises:
            MissingExtra: matplotlib is not installed.
            ConfigError: No worker has opened a session yet.
        """
        from dps.launch.clusters.plots import plot_placement

        return plot_placement("Bytes of each ps", self.standing.placement)

    def _running(self) -> Sequence[int]:
        return [task for task, state in enumerate(self._states) if state == RUNNING]

    # -- called by the workers' threads or processes --------------------------------------------------------------

    def opened(self, session: dict[str, Any]) -> None:
        """Note that a worker has opened a session, with its settings."""
        with self._changing:
            first = not self.standing.sessions
            self.standing.opened(session)
        if first and self.standing.goes_on:
            self._workers.say(
                f"this run goes on with the variables of the run before ({session['variables']}), from step "
                f"{session['step']}; local.run(..., fresh=True) begins anew"
            )

    def pushed(self, row: dict[str, Any], ago_s: float = 0.0) -> None:
        """Note that a worker has pushed, so many seconds ago."""
        with self._changing:  # the reports of each worker arrive on a separate thread
            at = runtime().now() - self._began - ago_s
            self.history.append({"at": at, **row})
            self.standing.pushed(row, at)
        if self._untold:
            self._report_failures(0.0)

    def ended(self, task: int, result: Any = None, failure: Failure | None = None) -> None:
        """Note that a worker has ended, with a result or a failure."""
        with self._changing:
            self._results[task] = result
            if failure is None:
                self._states[task] = DONE
            elif self._stopping:
                self._states[task] = STOPPED
            else:
                self._states[task] = FAILED
                if failure.cause not in {other.cause for other in self._failures.values()}:
                    self._untold[task] = runtime().now(), failure
                self._failures[task] = failure
            over = not self._running()
            if over:
                self.history[:] = sorted(self.history, key=_at)  # a reader sees one order or the other
        if over:
            self._over.set()

    def _report_failures(self, after_s: float) -> None:
        """Report workers that failed `after_s` ago while others run. When none runs any more, `wait` reports all."""
        with self._changing:
            due = runtime().now() - after_s
            told_now = {task: why for task, (at, why) in self._untold.items() if at <= due and self._running()}
            for task in told_now:
                del self._untold[task]
        for task, failure in told_now.items():
            self._workers.say(
                f"worker:{task} failed: {failure.line} (the others go on; run.wait() raises it with its traceback when "
                "they have ended, run.stop() ends them now)"
            )

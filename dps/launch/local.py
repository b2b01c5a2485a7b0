"""A cluster on this machine, for notebooks, examples and tests."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from dps import telemetry, update
from dps.errors import ConfigError, DeadlineExceeded, DpsError, TaskLost
from dps.launch.child import Child
from dps.launch.functions import loading, path_of
from dps.launch.leaving import leave
from dps.launch.outcome import describe
from dps.launch.supervisor import Output, Supervisor
from dps.launch.values import pack, receive, send
from dps.server import Server
from dps.session import Session
from dps.transport.current import runtime

_running: LocalCluster | None = None


class LocalRun:
    """A function running on every worker. `history` grows while it runs: one row for each push of each worker, with
    `at`, the seconds since the run began."""

    def __init__(self, workers: int) -> None:
        self.history: list[dict[str, Any]] = []
        self._results: list[Any] = [None] * workers
        self._errors: dict[int, str] = {}
        self._ended = [threading.Event() for _ in range(workers)]
        self._began = runtime().now()

    def done(self) -> bool:
        """Whether all workers have ended. Does not block."""
        return all(event.is_set() for event in self._ended)

    def wait(self, timeout: float | None = None) -> Self:
        """Block until all workers have ended; DeadlineExceeded names those that have not, DpsError says what failed."""
        clock = runtime()
        deadline = None if timeout is None else clock.now() + timeout
        for event in self._ended:
            while not event.wait(0.2 if deadline is None else max(0.0, min(0.2, deadline - clock.now()))):
                if deadline is not None and clock.now() >= deadline:
                    late = [f"worker:{i}" for i, e in enumerate(self._ended) if not e.is_set()]
                    raise DeadlineExceeded(f"{', '.join(late)} did not end within {timeout} s", self)
        if self._errors:
            task, text = next(iter(self._errors.items()))  # the first: others may have failed because of it
            raise DpsError(f"worker:{task} failed: {text}")
        return self

    @property
    def results(self) -> list[Any]:
        """What the function returned, by worker. Blocks as `wait` does."""
        self.wait()
        return list(self._results)

    def _progress(self, row: dict[str, Any]) -> None:
        self.history.append({"at": runtime().now() - self._began, **row})

    def _end(self, task: int, result: Any = None, error: str = "") -> None:
        self._results[task] = result
        if error:
            self._errors.setdefault(task, error)
        self._ended[task].set()


class LocalCluster:
    """Chief, ps and workers on this machine; only `stop`, or the end of the block, ends the ps and the chief.

    `processes` True: each task is a process (a ps or chief that dies is started once more); False: all are in this
    process. Starting another LocalCluster in this process stops the one before. `pin`: each ps and worker process
    keeps to processors of its own; ConfigError where that cannot be.
    """

    def __init__(
        self, ps: int = 1, workers: int = 2, processes: bool = True, update: update.Update | str | None = None,
        pin: bool = False,
    ) -> None:  # fmt: skip
        if ps < 1 or workers < 1:
            raise ConfigError(f"got ps={ps}, workers={workers}; wanted at least one of each")
        if pin and not processes:
            raise ConfigError("got pin=True with processes=False; only processes can be pinned to processors")
        self.ps, self.workers, self.processes = ps, workers, processes
        self._update, self._pin = update, pin
        self._supervisor: Supervisor | None = None
        self._servers: list[Server] = []
        self._watching = threading.Event()
        self._watcher: threading.Thread | None = None
        self._run: LocalRun | None = None

    def start(self) -> Self:
        """Start chief and ps. Blocks until the chief listens.

        Raises ConfigError in a worker process that imports the main script and comes here again.
        """
        global _running
        if self.processes and (path := loading()):
            script, _, function = path.rpartition(":")
            raise ConfigError(
                f"{os.path.basename(script)} makes a dps.LocalCluster again while a worker process imports it to find "
                f'{function}(); put the lines that make the cluster under: if __name__ == "__main__":'
            )
        if _running is not None:
            _running.stop()
        _running = self
        try:
            self._start_processes() if self.processes else self._start_here()
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def target(self) -> str:
        """The chief's address."""
        if self._supervisor is not None:
            return self._supervisor.target
        if not self._servers:
            raise ConfigError("the cluster is not started; use it in a with block or call start()")
        return self._servers[0].address

    def run(self, train: Callable[..., Any], *args: Any) -> LocalRun:
        """Run `train(server, *args)` on every worker; returns at once. One run at a time: ConfigError for a second.

        With processes, `train` is found by its path (a module's or a script's function) and `args` and results are
        plain values and arrays. A notebook's function needs dps[notebook].
        """
        if not self.target or (self._run is not None and not self._run.done()):
            raise ConfigError("the run before has not ended: each worker does one thing at a time; call its wait()")
        self._run = run = LocalRun(self.workers)
        try:
            self._run_processes(run, train, args) if self.processes else self._run_here(run, train, args)
        except BaseException:
            self._run = None
            raise
        return run

    def _run_processes(self, run: LocalRun, train: Callable[..., Any], args: tuple[Any, ...]) -> None:
        assert self._supervisor is not None
        if lost := self._supervisor.lost():
            raise TaskLost(f"{lost} of this cluster is gone; stop it and start another one")
        function, code = path_of(train)
        order = {"function": function, "code": code, "args": list(args), "path": [p or os.getcwd() for p in sys.path]}
        pack(order)
        for task in range(self.workers):
            self._start_worker(self._supervisor, task, order, run)

    def session(self, params: Any = None, **settings: Any) -> Session:
        """This process as one more client."""
        return Session(self.target, params, **settings)

    def stop(self) -> None:
        """End all tasks. Blocks; a second call does nothing."""
        global _running
        if _running is self:
            _running = None
        self._watching.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._supervisor is not None:
            self._supervisor.stop()
            self._supervisor = None
        for server in self._servers:
            server.stop()
        self._servers, self._run = [], None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- processes --------------------------------------------------------------------------------------------

    def _start_processes(self) -> None:
        wanted = self._update if self._update is None or isinstance(self._update, str) else update.as_text(self._update)
        line = Output(sys.stdout).line
        self._supervisor = Supervisor(self.ps, self.workers, wanted, owned=True, line=line, pin=self._pin)
        self._supervisor.start()
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(self._supervisor,), daemon=True)
        self._watcher.start()

    def _watch(self, supervisor: Supervisor) -> None:
        while not self._watching.is_set():
            supervisor.turn(0.1)

    def _start_worker(self, supervisor: Supervisor, task: int, order: dict[str, Any], run: LocalRun) -> None:
        orders_out, orders_in = os.pipe()
        reports_out, reports_in = os.pipe()
        extra = {"DPS_RUN_FDS": f"{orders_out},{reports_in}"}
        try:
            child = supervisor.start_worker(task, "dps.launch.remote:main", (), extra, (orders_out, reports_in))
        finally:
            os.close(orders_out)
            os.close(reports_in)
        listener = threading.Thread(
            target=self._listen, args=(child, task, order, orders_in, reports_out, run), daemon=True
        )
        listener.start()

    def _listen(self, child: Child, task: int, order: dict[str, Any], orders: int, reports: int, run: LocalRun) -> None:
        with contextlib.suppress(BrokenPipeError):
            send(orders, order)
        os.close(orders)
        result, error = None, ""
        heard = False
        try:
            while True:
                report = receive(reports)
                if "progress" in report:
                    run._progress(report["progress"])
                    continue
                heard = True
                if "result" in report:
                    result = report["result"]
                else:
                    error = f"{report['error']}\n{report['traceback']}"
        except EOFError:
            pass
        os.close(reports)
        code = child.process.wait()
        run._end(task, result, error if heard else f"its process ended without a result ({describe(code)})")

    # -- in this process --------------------------------------------------------------------------------------

    def _start_here(self) -> None:
        name = f"inproc://dps-local-{os.getpid()}-{runtime().random.getrandbits(48):x}"
        chief = Server(
            None, "chief", 0, bind=f"{name}-chief", ps=self.ps, workers=self.workers, update=self._update, owned=True
        )
        self._servers = [chief]
        for task in range(self.ps):
            self._servers.append(Server(None, "ps", task, chief=chief.address, bind=f"{name}-ps{task}"))
        for task in range(self.workers):
            self._servers.append(Server(None, "worker", task, chief=chief.address, bind=f"{name}-worker{task}"))

    def _run_here(self, run: LocalRun, train: Callable[..., Any], args: tuple[Any, ...]) -> None:
        listener = run._progress
        telemetry.on_progress.append(listener)

        def work(server: Server) -> None:
            try:
                run._end(server.task, train(server, *args))
            except BaseException as error:
                run._end(server.task, None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
                leave(server.target, server.task, f"failed: {type(error).__name__}: {error}", 1)
            if run.done() and listener in telemetry.on_progress:
                telemetry.on_progress.remove(listener)

        for server in self._servers[1 + self.ps :]:
            runtime().spawn(server.name, lambda server=server: work(server))  # type: ignore[misc]


@atexit.register
def _stop_running() -> None:
    if _running is not None:
        _running.stop()

"""A cluster of processes, here or where an engine starts them: chief and ps under a supervisor, and a run's workers."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dps.calls.failures import Failure, failure_of
from dps.calls.functions import pack_arguments, unpack_value
from dps.errors import TaskLost
from dps.launch.clusters.progress import aside
from dps.launch.clusters.run import LocalRun
from dps.launch.clusters.worker import as_number, read_value, write_value
from dps.launch.supervision.engine import Engine, Started
from dps.launch.supervision.outcome import describe
from dps.launch.supervision.output import Output
from dps.launch.supervision.plan import small_plan
from dps.launch.supervision.supervisor import Supervisor
from dps.process.functions import path_of, sources
from dps.training import update_modes as update


class ProcessTasks:
    """Chief, ps and workers as processes. `engine`: starts them, None: on this machine; `env`: their variables. The
    constructor blocks until the chief listens."""

    def __init__(
        self, ps: int, workers: int, wanted: update.Update | str | None, pin: bool, engine: Engine | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        mode = wanted if wanted is None or isinstance(wanted, str) else update.as_text(wanted)
        self._workers, self._output = workers, Output(sys.stdout)
        folder = "" if engine is None else os.getcwd()
        plan = small_plan(ps, workers, update=mode or "", owned=True, pin=pin, env=env or {}, folder=folder)
        self.supervisor = Supervisor(plan, self._print_line, engine=engine)
        try:
            self.supervisor.start()
        except BaseException:
            self.supervisor.stop()
            raise
        self.target = self.supervisor.chief.address
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch_tasks, name="dps watches tasks", daemon=True)
        self._watcher.start()

    def _print_line(self, name: str, text: str) -> None:
        with aside(self._output.stream):
            self._output.print_line(name, text)

    def _watch_tasks(self) -> None:
        while not self._over.is_set():
            self.supervisor.handle_next_end(0.1)

    def states(self) -> dict[str, str]:
        """The states of the chief and the ps."""
        return {name: state for name, state in self.supervisor.tasks.states.items() if not name.startswith("worker")}

    def run(self, run: LocalRun, train: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Run `train(server, *args, **named)` in a process for each worker; returns at once."""
        if lost := self.supervisor.tasks.lost_task():
            raise TaskLost(f"{lost} of this cluster is gone; stop it and start another one")
        function, code = path_of(train)
        name = function or getattr(train, "__qualname__", repr(train))
        form, arrays = pack_arguments(name, args, named, as_number)
        order = {
            "function": function, "code": code, "name": name, "form": form, "arrays": arrays,
            "path": [p or os.getcwd() for p in sys.path], "sources": sources() if code else {},
        }  # fmt: skip
        for task in range(self._workers):
            try:
                self._start_worker(task, order, run)
            except BaseException:  # no process or descriptor was left: nobody would wait for those before it
                for earlier in range(task):
                    self.end_worker(earlier)
                raise

    def _start_worker(self, task: int, order: dict[str, Any], run: LocalRun) -> None:
        orders_out, orders_in = os.pipe()
        reports_out, reports_in = os.pipe()
        extra = {"DPS_RUN_FDS": f"{orders_out},{reports_in}"}
        try:
            child = self.supervisor.start_worker(
                task, "dps.launch.clusters.worker:main", (), extra, (orders_out, reports_in)
            )
        except BaseException:
            os.close(orders_in)
            os.close(reports_out)
            raise
        finally:
            os.close(orders_out)
            os.close(reports_in)
        given = child, task, order, orders_in, reports_out, run
        threading.Thread(target=self._read_reports, args=given, name=f"reports of worker:{task}", daemon=True).start()

    def _read_reports(
        self, child: Started, task: int, order: dict[str, Any], orders: int, reports: int, run: LocalRun
    ) -> None:
        """Send a worker its order, and pass the worker's reports to the run until it ends."""
        with contextlib.suppress(BrokenPipeError):
            write_value(orders, order)
        os.close(orders)
        result, failure = None, None
        heard = False
        try:
            while True:
                report = read_value(reports)
                if "progress" in report:
                    for row, ago_s in zip(report["progress"], report["ago_s"], strict=True):
                        run.pushed(row, ago_s)
                elif "opened" in report:
                    run.opened(report["opened"])
                else:
                    heard, failed = True, report.get("failure")
                    result = unpack_value(*report["result"]) if failed is None else None
                    failure = None if failed is None else Failure(*failed)
        except EOFError:
            pass
        except Exception as error:  # otherwise the run would wait for this worker for ever
            heard, failure = True, failure_of(error)
        os.close(reports)
        child.wait(None)
        if not heard:
            failure = Failure(f"its process ended without a result ({describe(child.code or 0)})")
        run.ended(task, result, failure)

    def ask_to_stop(self, task: int) -> None:
        self.supervisor.tasks.children[f"worker:{task}"].send_signal(signal.SIGTERM)

    def end_worker(self, task: int) -> None:
        self.supervisor.tasks.children[f"worker:{task}"].send_signal(signal.SIGKILL)

    def say(self, text: str) -> None:
        self._print_line("dps", text)

    def stop(self) -> None:
        """End all tasks. Blocks."""
        self._over.set()
        self._watcher.join()
        self.supervisor.stop()

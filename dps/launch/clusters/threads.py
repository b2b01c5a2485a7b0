"""A LocalCluster of threads: each task is a node in this process, each worker of a run a thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from dps.calls.failures import failure_of
from dps.launch.clusters.run import LocalRun
from dps.launch.programs.leaving import report_end
from dps.launch.supervision.output import Output
from dps.process import endings, telemetry
from dps.task.server import Server
from dps.training.update_modes import Update
from dps.transport.current import runtime


class ThreadTasks:
    """Chief, ps and workers as servers of this process. They end with it."""

    def __init__(self, ps: int, workers: int, update: Update | str | None) -> None:
        self._name = f"inproc://dps-local-{os.getpid()}-{runtime().random.getrandbits(48):x}"
        self._made = 0
        self._output = Output(sys.stdout)
        self.workers: list[Server] = []
        self._servers: list[Server] = []
        try:
            settings: dict[str, Any] = {"ps": ps, "workers": workers, "update": update, "owned": True}
            chief = Server(None, "chief", 0, bind=f"{self._name}-chief", **settings)
            self._servers.append(chief)
            self.target = chief.address
            for task in range(ps):
                self._servers.append(Server(None, "ps", task, chief=self.target, bind=f"{self._name}-ps{task}"))
            for task in range(workers):
                self.workers.append(self._make_worker(task))
        except BaseException:
            self.stop()
            raise

    def _make_worker(self, task: int) -> Server:
        self._made += 1
        return Server(None, "worker", task, chief=self.target, bind=f"{self._name}-worker{task}-{self._made}")

    def states(self) -> dict[str, str]:
        """The states of the chief and the ps."""
        return {server.name: "running" if server.exit_code is None else "done" for server in self._servers}

    def run(self, run: LocalRun, train: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Run `train(server, *args, **named)` as each worker; returns at once."""
        telemetry.listen(run.pushed, run.opened)

        def work(server: Server) -> None:
            try:
                with endings.program():
                    result = train(server, *args, **named)
                run.ended(server.task, result)
            except BaseException as error:
                failure = failure_of(error)
                report_end(server.target, server.task, f"failed: {failure.line}", 1)
                run.ended(server.task, None, failure)
            if run.done():
                telemetry.forget(run.pushed, run.opened)

        for task, server in enumerate(self.workers):
            server.ask_to_stop(False)
            if server.exit_code is not None:  # stopping the previous run ended this server
                server.stop()
                server = self.workers[task] = self._make_worker(task)
            runtime().spawn(server.name, lambda server=server: work(server))  # type: ignore[misc]

    def ask_to_stop(self, task: int) -> None:
        self.workers[task].ask_to_stop()

    def end_worker(self, task: int) -> None:
        self.workers[task].cancel(f"worker:{task} was ended by run.stop()")

    def say(self, text: str) -> None:
        self._output.print_line("dps", text)

    def stop(self) -> None:
        """End all tasks. Blocks."""
        for server in [*self._servers, *self.workers]:
            server.stop()

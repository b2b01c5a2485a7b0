"""The programs of `dps launch --serve`: workers that serve, and the program that schedules, after which they end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dps.actors.caller import Caller
from dps.actors.ref import Ref
from dps.calls.functions import ServedFunctions
from dps.calls.messages import CALLS, StopServing
from dps.coordinator.worker import Worker
from dps.errors import ConfigError, DpsError
from dps.launch.programs.program import run_program
from dps.messages.runs import CHIEF, AskCluster, ClusterIs
from dps.process import config
from dps.process.functions import import_path
from dps.task.server import Server
from dps.transport.current import keys_for, runtime

TELL_S = 2.0


def main() -> None:
    """Run a worker that serves the modules of the command line, until it is told to stop."""
    served = ServedFunctions(sys.argv[1:])
    with Server.from_env() as server:
        serve(server, served)


def serve(server: Server, served: ServedFunctions) -> None:
    """Run the calls that come, until this task's part in the run is over or it is told to stop. Blocks."""
    config.serves.set()
    Worker(server, served).run()


def serve_entries(server: Server, *entries: str) -> None:
    """As `serve`, as what a worker of a LocalCluster runs."""
    serve(server, ServedFunctions(entries))


def schedule() -> None:
    """Run the program that schedules; then tell the workers to stop serving."""
    program, *arguments = sys.argv[1:]
    os.environ["DPS_JOB"] = "client"  # with keys: those of a worker, who may send calls
    code = run_program(program, arguments, verbose=False)
    stop_workers(os.environ["DPS_CHIEF"])
    sys.exit(0 if config.stop_requested.is_set() else code)  # a run that Ctrl-C has ended has not failed


def stop_workers(chief: str) -> None:
    """Tell all workers to stop serving. Blocks up to 2 s for each that does not answer."""
    made = contextlib.closing(Caller(runtime(), "dps launch", keys_for(chief, "worker")))
    with contextlib.suppress(DpsError), made as caller:  # else the run has ended
        found = caller.ask(Ref(chief, CHIEF), AskCluster(), TELL_S)
        assert isinstance(found, ClusterIs)
        for address in found.cluster.get("worker", {}).values():
            if address != chief:
                caller.expect(address, found.keys.get(address, "worker"))
            with contextlib.suppress(DpsError):
                caller.ask(Ref(address, CALLS), StopServing(), TELL_S)


class ServedPrograms:
    """The modules, files and functions that the workers of a LocalCluster serve."""

    def __init__(self, serve: str | Callable[..., Any] | Sequence[str | Callable[..., Any]]) -> None:
        """Raises ConfigError for what is none of them."""
        given: list[Any] = list(serve) if isinstance(serve, list | tuple) else [serve]
        if not given or not all(isinstance(each, str) or callable(each) for each in given):
            raise ConfigError(f"serve: got {serve!r}, wanted modules, files or functions, such as serve=['trainer.py']")
        self.entries = [each for each in given if isinstance(each, str)]
        self.functions = {import_path(each): each for each in given if not isinstance(each, str)}

    def program(self, processes: bool) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """What workers run, and its arguments. `processes`: they are not threads of this process, and a notebook's
        functions travel through the private pipe of each worker (decision 46), all others by their paths."""
        if not processes:
            return _serve_given(self.entries, self.functions), ()
        own = {path: each for path, each in self.functions.items() if path.startswith("__main__:")}
        entries = [*self.entries, *(path for path in self.functions if path not in own)]
        return (_serve_given(entries, own), ()) if own else (serve_entries, tuple(entries))


def _serve_given(entries: Sequence[str], functions: Mapping[str, Callable[..., Any]]) -> Callable[[Server], None]:
    """Serves functions that it is given: it has no path by which it could be imported."""
    return lambda server: serve(server, ServedFunctions(entries, functions))

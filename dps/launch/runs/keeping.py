"""Keeps runs: one in this process, several as a grid of processes, or either of them in the background.

`python -m dps.launch.runs.keeping [--parallel N] [--shown] FOLDER...` is the process in the background.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from dps.errors import DpsError
from dps.launch.runs import folder
from dps.launch.runs.identity import identity
from dps.launch.runs.keeper import Keeper
from dps.launch.runs.states import CREATED, OVER, PENDING, States
from dps.launch.runs.view import View, kill_orders, read_run
from dps.launch.supervision.interrupts import Interrupts
from dps.launch.supervision.output import BufferedOutput, tell_if_slow
from dps.process.flags import guarded
from dps.process.own_files import opener
from dps.transport.clock import now, pause, wall

LOOK_S = 0.2
UP_S = 60.0
"""How long a run in the background is waited for until its chief listens."""
MODULE = "dps.launch.runs.keeping"


def keep_runs(paths: Sequence[str], parallel: int = 1, show: BufferedOutput | None = None) -> int:
    """Keep one run in this process, or several, `parallel` at a time, in a process each. Returns the exit code: of
    several runs the worst. Blocks until all are over."""
    if len(paths) == 1:
        keeper = Keeper(paths[0], None if show is None else show.show_line)
        try:
            return keeper.keep_run()
        finally:
            if show is not None:
                show.wait_until_read(hurried=keeper.interrupted)
    return Grid(paths, parallel, shown=show is not None).run_all()


class Grid:
    """Several runs, at most `parallel` of them at one time. Each has a keeper in a process of its own, which is told to
    end when this process ends in any way."""

    def __init__(self, paths: Sequence[str], parallel: int, shown: bool) -> None:
        self._waiting, self._parallel, self._shown = list(paths), parallel, shown
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._codes: list[int] = []
        self._told = 0
        for path in paths:
            file = os.path.join(path, "state.json")
            folder.write(file, folder.read(file) | {"keeper": identity()})

    def run_all(self) -> int:
        """Run all. After Ctrl-C no more are started, and those that run end as they do alone."""
        with Interrupts() as interrupts:
            try:
                while self._waiting or self._running:
                    interrupts.update_count()
                    self.update_runs(interrupts.count)
                    pause(LOOK_S)
            finally:
                for process in self._running.values():
                    process.terminate()
        return max(self._codes, default=0)

    def update_runs(self, asked: int = 0) -> None:
        """Note runs that are over, and start as many as may run. `asked`: how often this process was asked to end. The
        keepers are told as often, and nothing is started any more."""
        for process in self._running.values() if asked > self._told else ():
            process.send_signal(signal.SIGINT)
        self._told = asked
        for path, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[path]
                self._codes.append(process.returncode if process.returncode >= 0 else 3)
        for path in list(self._waiting):
            if asked or kill_orders(path):
                self._waiting.remove(path)
                self._codes.append(130)
                cancel_run(path)
        while self._waiting and len(self._running) < self._parallel:
            path = self._waiting.pop(0)
            self._running[path] = self.start_keeper(path)

    def start_keeper(self, path: str) -> subprocess.Popen[bytes]:
        """Start the keeper of one run."""
        flags = ["--with-parent", str(os.getpid()), *(["--shown"] if self._shown else [])]
        command = [sys.executable, "-m", MODULE, *flags, path]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def cancel_run(path: str) -> None:
    """Note that a run that has not begun never will."""
    states = States(folder.read(os.path.join(path, "state.json"))["tasks"], wall())
    states.mark_killing()
    states.finish_run(130, "it was ended before it began", wall())
    folder.write(os.path.join(path, "state.json"), states.values)


def detach_runs(paths: Sequence[str], parallel: int) -> View:
    """Keep runs in a process in the background, which this one does not wait for. Returns the first run once its chief
    listens, once it is over, or if it still waits for its machines after a while. Blocks for that long. Raises DpsError
    if it does not begin."""
    log_path = os.path.join(paths[0], "keeper.log")
    with open(log_path, "w", opener=opener) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, "--parallel", str(parallel), *paths], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
    with tell_if_slow(f"waits until the chief of run {os.path.basename(paths[0])} listens"):
        deadline = now() + UP_S
        while now() < deadline:
            found = read_run(paths[0], wall())
            if found.state not in (CREATED, PENDING):
                return found
            if process.poll() is not None and read_run(paths[0], wall()).state not in OVER:
                break
            pause(LOOK_S)
        else:
            return read_run(paths[0], wall())  # it waits for machines
    with open(log_path) as log:
        said = log.read().strip().splitlines()
    raise DpsError(f"run {os.path.basename(paths[0])} did not begin: {said[-1] if said else 'its keeper says nothing'}")


def end_with(parent: int) -> None:
    """Be told to end (SIGTERM) when the process that started this one ends in any way (on Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(130)


def main(argv: Sequence[str]) -> int:
    import argparse

    made = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    made.add_argument("--parallel", type=int, default=1)
    made.add_argument("--shown", action="store_true")
    made.add_argument("--with-parent", type=int)
    made.add_argument("paths", nargs="+")
    args = made.parse_args(argv)
    if args.with_parent is not None:
        end_with(args.with_parent)
    show = BufferedOutput(os.path.basename(args.paths[0]), several=True) if args.shown else None
    return guarded(lambda: keep_runs(args.paths, args.parallel, show))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

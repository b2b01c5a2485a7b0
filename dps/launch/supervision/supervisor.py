"""Runs all tasks of a cluster as child processes: merges their output, restarts ps and chief once, ends all of them.

No large module is imported before the tasks have been started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from dps.errors import DeadlineExceeded, TaskLost
from dps.launch.engines.local import LocalEngine
from dps.launch.supervision.chief import LaunchedChief
from dps.launch.supervision.ending import EndNotifier, TasksEnding
from dps.launch.supervision.engine import Engine, Started
from dps.launch.supervision.interrupts import Interrupts
from dps.launch.supervision.outcome import KNOWN, LOST, describe, outcome
from dps.launch.supervision.output import Output, Print, plain, without_name
from dps.launch.supervision.plan import EVALUATOR, RunPlan, runs_program
from dps.launch.supervision.restarts import Evictions, Restarts
from dps.launch.supervision.tasks import TaskObserver, Tasks
from dps.process import descriptors

BEGIN = "Traceback (most recent call last):"
PLACE = re.compile(r'  File "(.+)", line (\d+)')
SYNTAX = ("SyntaxError", "IndentationError", "TabError")
"""Errors that have no traceback if they are those of the program's file."""
REFUSED = re.compile(r"dps: (?!stopping after)(.+)|(\S+: error: .+)")
"""What a program prints that ends with exit code 2: an error of dps, or of argparse."""
LONGEST = 200
"""Characters of an error in the last line of a run."""


class ErrorCollector:
    """Reads the output of tasks. `found`: such as "ValueError: no data (train.py, line 7)", by the task's name;
    `refused`: what was wrong with arguments or settings."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self._open: dict[str, str] = {}
        """Tasks in the middle of a traceback, and the last place that it has named."""
        self._place: dict[str, str] = {}
        """Tasks in the middle of what may be a syntax error, and its place."""

    def read_line(self, name: str, text: str) -> None:
        """Take a line of a task's output."""
        place = PLACE.match(text)
        where = f" ({os.path.basename(place[1])}, line {place[2]})" if place else ""
        if text == BEGIN:
            self._open[name] = ""
        elif name in self._open:
            if place:
                self._open[name] = where
            elif text and not text.startswith(" "):
                self.found[name] = text[:LONGEST] + self._open.pop(name)
        elif place:
            self._place[name] = where
        elif name in self._place and not text.startswith(" "):
            if text.startswith(SYNTAX):
                self.found[name] = text[:LONGEST] + self._place[name]
            del self._place[name]
        elif wrong := REFUSED.fullmatch(text):
            self.refused[name] = (wrong[1] or wrong[2])[:LONGEST]


START_S = 30.0
"""How long the chief may take until it listens."""


class Supervisor:
    """Starts the tasks of a plan. `start` blocks until the chief listens; `wait` until the run is over.

    A ps or chief that died (by a signal or a crash, not with exit code 0, 2 or 3) is started again as often as its
    `restarts` say, and so is a worker that a signal ended.
    """

    def __init__(
        self, plan: RunPlan, line: Print | None = None, watch: TaskObserver | None = None, engine: Engine | None = None
    ) -> None:
        """Raises ConfigError if tasks are to be pinned to processors and that is impossible."""
        self._engine = engine or LocalEngine()
        self._print = line or Output().print_line
        self._errors = ErrorCollector()
        self.chief = LaunchedChief()
        self.tasks = Tasks(plan, self.chief, self._engine, self._take_line, watch)
        self.evictions = Evictions(self.tasks.children, self.say)
        self.ending = TasksEnding(self.tasks, self.chief, self.handle_next_end, self.say)
        self._end_notifier = EndNotifier(self.tasks, self.say)
        self._restarts = Restarts(self.tasks, self.evictions, self.ending, self.say)

    def start(self) -> None:
        """Start chief and ps and all tasks that have a program, all at once: they load their modules while the chief
        starts, and then get its address. Nobody waits for an evaluator while the training goes on.

        Raises DeadlineExceeded or TaskLost, with the chief's exit code, if the chief does not start, and ConfigError if
        the system lets processes open too few files, or a task wants more than there is.
        """
        plan = self.tasks.plan
        descriptors.check("each task of this run", descriptors.needed_to_launch(plan.ps, plan.workers))
        self._engine.check(plan)
        self.chief.bind_to(self._engine.open(plan, self._take_line, self.evictions.add_notice))
        for name in plan.tasks():
            if not runs_program(name) or plan.job(name).run:
                self.tasks.start_task(name)
        decided = self.chief.wait_listening(START_S)
        if not self.chief.address:
            self.stop()
            if decided:
                raise self._not_started_error()
            raise DeadlineExceeded(
                f"the chief did not begin to listen within {START_S:.0f} s; its output may say why, else try again"
            )
        for child in self.tasks.children.values():
            child.send_chief(self.chief.address)

    def _not_started_error(self) -> TaskLost:
        """The error of a chief that has ended before it listened, with its reason and its exit code."""
        reason, code = self.chief.reason, self.tasks.children["chief"].code
        error = TaskLost(f"the chief ended while it was started{f': {reason}' if reason else '; its output says why'}")
        error.exit_code = code if code and code in KNOWN else LOST
        return error

    def start_worker(
        self, task: int, program: str, arguments: Sequence[str] = (), extra: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Started:  # fmt: skip
        """Start a worker that runs a program as its task."""
        return self.tasks.start_task(f"worker:{task}", (program, *arguments), extra, pass_fds)

    def _take_line(self, name: str, text: str) -> None:
        """Take a line of a task's output. Called on any thread."""
        if name == "chief":
            self.chief.take_line(plain(text))
        elif runs_program(name):
            self._errors.read_line(name, plain(text))
        if not text.startswith(f"dps {name} at "):
            self._print(name, without_name(name, text))

    def say(self, text: str) -> None:
        """Print a line of the launcher."""
        self._print("dps", text)

    def handle_next_end(self, wait_s: float) -> None:
        """Handle a task that ended, and restart it if it may be restarted. Blocks up to `wait_s`."""
        self.chief.tell_ends(self.tasks.children)
        self.evictions.end_evicted()
        if not self.ending.begun:
            self._end_notifier.tell_programs()
        end = self.tasks.next_end(wait_s)
        if end is None or self._restarts.restart_if_allowed(*end):
            return
        name, code = end[0].name, end[1]
        self._note_end(name, code)
        if name == EVALUATOR and code and not self.ending.begun and not self.tasks.has_ended_well():
            goes_on = "the workers that serve it end, too" if self.tasks.plan.serves else "the training goes on"
            self.say(f"{name} ended with {describe(code)}; {goes_on}")

    def _note_end(self, name: str, code: int) -> None:
        """Have the chief told how a worker's process ended, unless its session or its role has reported a good end."""
        # The next worker of an owned cluster may have started already.
        told = code == 0 or (self.tasks.plan.owned and code > 0)
        if name.startswith("worker") and not told and not self.ending.begun:
            self.chief.note_end(name, code)
            self.chief.tell_ends(self.tasks.children)

    def wait(self, interrupts: Interrupts | None = None) -> int:
        """Wait until all workers have ended, and then chief and ps; returns the run's exit code. Blocks."""
        if interrupts is not None:
            self.ending.use_interrupts(interrupts)
        while self.tasks.has_work():
            self.handle_next_end(0.2)
            self.ending.handle_interrupts()
            self.ending.end_if_lost()
        if not self.tasks.plan.owned:
            self.ending.wait_for_servers()
        late = self.tasks.servers_alive()
        self.stop()
        return self._exit_code(late)

    def _exit_code(self, late: list[str]) -> int:
        """130 if all tasks were killed, else the code from `outcome`. Prints the last line."""
        if self.ending.killed:
            return 130
        left_out = {*late, *self.ending.told}
        codes = {n: c.code or 0 for n, c in self.tasks.children.items() if n not in left_out}
        code, why = outcome(codes, self.tasks.crashed, self.chief.reason, self._errors.found, self._errors.refused)
        if why:
            self.say(why)
        return code

    def stop(self) -> None:
        """End every task that still runs, and give back what the engine got for them. Blocks."""
        self.ending.end_all()
        self._engine.close()

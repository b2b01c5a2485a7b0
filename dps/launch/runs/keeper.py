"""The keeper of a run: supervises its tasks, writes their states, output and a heartbeat, and carries out orders."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dps.errors import DpsError
from dps.launch.engines import make_engine
from dps.launch.runs import folder, request
from dps.launch.runs.identity import identity, start_of
from dps.launch.runs.logs import Log
from dps.launch.runs.states import States
from dps.launch.runs.times import utc
from dps.launch.runs.view import kill_orders
from dps.launch.supervision.engine import Started
from dps.launch.supervision.interrupts import GRACE_S, Interrupts
from dps.launch.supervision.outcome import LOST
from dps.launch.supervision.output import Print
from dps.launch.supervision.plan import RunPlan
from dps.launch.supervision.supervisor import Supervisor
from dps.process import own_files
from dps.process.own_files import opener
from dps.transport.clock import now, wall

RESERVE = "reserve"
ROOM, ROOM_OF_TASK = 1 << 16, 1 << 12
"""Bytes that are kept for the last states of a run: at all, and for each task."""


def reserve_room(path: str, tasks: int) -> None:
    """Take room on the disk of a run for its last states, so that a full disk does not make a run that has ended read
    as lost. Raises OSError."""
    with open(os.path.join(path, RESERVE), "wb", opener=opener) as file:
        file.write(bytes(ROOM + ROOM_OF_TASK * tasks))


class RunFiles:
    """The files of one run. A full disk does not end the run, and is told once. `show` prints lines of tasks, if
    anybody looks."""

    def __init__(self, path: str, show: Print | None) -> None:
        self._path, self._show = path, show
        self._logs: dict[str, Log] = {}
        self._locked = threading.Lock()  # lines of tasks come on a thread of each, and a log is for one at a time
        self._trouble = ""
        self._identity = identity()

    def write_state(self, values: Mapping[str, Any]) -> None:
        """Write the states."""
        self._try_write(
            lambda: folder.write(os.path.join(self._path, "state.json"), {**values, "keeper": self._identity})
        )

    def write_last_state(self, values: Mapping[str, Any]) -> None:
        """End the logs, and write the last states. On a full disk the room that was kept for them is given back at this
        moment, and not before: whatever still wrote would take it."""
        file = os.path.join(self._path, "state.json")
        for log in self._logs.values():
            self._try_write(log.close)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._path, RESERVE))
        try:
            folder.write(file, {**values, "keeper": self._identity})
        except OSError as error:
            if self._show is not None:
                self._show("dps", f"{file} cannot be written: {error.strerror}; the run is over and will read LOST")

    def write_heartbeat(self) -> None:
        """Write a sign of life."""
        self._try_write(lambda: folder.replace(os.path.join(self._path, "heartbeat"), utc(wall()) + "\n"))

    def write_usage(self, values: Mapping[str, Any]) -> None:
        """Write what the tasks use."""
        self._try_write(lambda: folder.write(os.path.join(self._path, "usage.json"), values))

    def write_line(self, name: str, text: str) -> None:
        """Write a line of a task to its log, and print it."""
        with self._locked:
            self._try_write(lambda: self._open_log(name).write(wall(), text))
        if self._show is not None:
            self._show(name, text)

    def _open_log(self, name: str) -> Log:
        if name not in self._logs:
            self._logs[name] = Log(os.path.join(self._path, "logs"), name)
        return self._logs[name]

    def _try_write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._trouble and self._show is not None:
                self._show("dps", f"{self._path} cannot be written: {error.strerror}; the run goes on")
            self._trouble = str(error)


BEAT_S = 5.0
"""How often the heartbeat is written."""
LOOK_S = 0.25
"""How often orders are looked for."""
USE_S = 2.0
"""How often it is written what the tasks use."""
WAIT_S, AGAIN_S = 3.0, 600.0
"""After how long it is said that the run waits for its machines, and how often."""
KEYS = "keys"
"""The folder of keys that a run on several machines makes for itself."""


def plan_with_output(path: str, plan: RunPlan) -> RunPlan:
    """The plan of the run in a folder, in which every task has an OUTPUT_DIR. Makes nothing."""
    output = os.path.abspath(plan.env.get("OUTPUT_DIR") or os.environ.get("OUTPUT_DIR") or os.path.join(path, "output"))
    return RunPlan(plan.jobs, plan.update, {**plan.env, "OUTPUT_DIR": output}, plan.owned, plan.pin, plan.folder)


def prepare_run(path: str, plan: RunPlan, told: dict[str, Any]) -> RunPlan:
    """Write what a new run is, before its keeper starts; returns its plan, in which every task has an OUTPUT_DIR.

    `told`: name, command and values, what else people want to see of it later, and `where`: the engine's settings."""
    from dps import __version__

    plan = plan_with_output(path, plan)
    output = plan.env["OUTPUT_DIR"]
    own_files.make_folder(output)
    request.write_request(path, plan, told | {"dps": __version__, "created": utc(wall()), "output": output})
    states = States(plan.tasks(), wall())
    folder.write(os.path.join(path, "state.json"), states.values | {"keeper": identity()})
    reserve_room(path, len(plan.tasks()))
    return plan


def use_keys(path: str, env: Mapping[str, str]) -> None:
    """Use the keys of a run, which its variables name or its folder has, for all that this process asks of it."""
    own = os.path.join(path, KEYS)
    if keys := env.get("DPS_KEYS") or (own if os.path.isdir(own) else ""):
        os.environ["DPS_KEYS"] = keys


class Keeper:
    """Keeps one run that `prepare_run` has prepared. `show` prints the lines of its tasks, if anybody looks."""

    def __init__(self, path: str, show: Print | None = None) -> None:
        self._where = folder.read(os.path.join(path, request.RUN)).get("where") or {}
        self.path, self._plan = path, request.read_plan(path)
        self._engine = make_engine(self._where)
        self.states = States(self._plan.tasks(), wall())
        self._files = RunFiles(path, show)
        self._said = ""
        self._seen: set[str] = set()
        """The orders that were carried out."""
        self._over = threading.Event()
        self._interrupts = Interrupts()
        self._opening = False
        """Whether machines are asked for, which may take long."""

    @property
    def interrupted(self) -> bool:
        """Whether somebody has asked it to end the run."""
        return self._interrupts.count > 0

    def keep_run(self) -> int:
        """Start the run and supervise it to its end; returns its exit code. Blocks."""
        code, reason = 1, ""
        pulse = threading.Thread(target=self._pulse, name="dps heartbeat", daemon=True)
        with self._interrupts:
            self._update_states(lambda at: self.states.begin_run(at, building=bool(self._where.get("sync"))))
            pulse.start()
            try:
                self._make_keys()
                code = self._supervise()
                reason = self._said if code else ""
            except DpsError as error:
                code, reason = error.exit_code, str(error)
                raise
            finally:
                self._over.set()
                pulse.join()
                self._mark_killing()
                self.states.finish_run(code, reason, wall())
                self._files.write_last_state(self.states.values)
                shutil.rmtree(os.path.join(self.path, KEYS), ignore_errors=True)
        return code

    def _make_keys(self) -> None:
        """Make the keys of a run on several machines, if it names none."""
        env = self._plan.env
        named = env.keys() & {"DPS_KEYS", "DPS_TRUSTED_NETWORK"} or os.environ.get("DPS_KEYS")
        if self._engine.elsewhere and not named:
            from dps.transport.keys import files as key_files

            key_files.new(os.path.join(self.path, KEYS))
        use_keys(self.path, env)

    def _supervise(self) -> int:
        """Supervise the run to its end, and again from its checkpoint if its machines went; returns the exit code."""
        while True:
            supervisor = Supervisor(self._plan, self._take_line, self, self._engine)
            self._opening = self._engine.elsewhere
            try:
                supervisor.start()
                self._opening = False
                self._announce_chief(supervisor)
                code = supervisor.wait(self._interrupts)
            finally:
                supervisor.stop()
            if not supervisor.evictions.may_begin_again or self._interrupts.count:
                return code
            if not self._engine.go_on():
                run = os.path.basename(self.path)
                supervisor.say(f"the run's machines have gone; it goes on elsewhere with: dps launch --resume {run}")
                return LOST
            supervisor.say("the run begins again from its checkpoint, on other machines")

    def _announce_chief(self, supervisor: Supervisor) -> None:
        run, chief = os.path.basename(self.path), supervisor.chief.address
        self._update_states(lambda at: self.states.record_listening(chief, at))
        supervisor.say(f"chief at {chief}; look at this run with: dps status {run}")

    # -- the supervisor's watch -----------------------------------------------------------------------------------

    def started(self, task: Started) -> None:
        """Note that a task runs."""
        start = "" if task.host else start_of(task.pid)
        self._update_states(lambda at: self.states.record_start(task.name, task.pid, start, at, task.host))

    def ended(self, name: str, code: int) -> None:
        """Note that a task has ended."""
        self._mark_killing()
        self._update_states(lambda at: self.states.record_end(name, code, at))

    def _mark_killing(self) -> None:
        if self._interrupts.count:
            self.states.mark_killing()

    def _update_states(self, change: Callable[[float], None]) -> None:
        """Apply a change to the states and write them."""
        change(wall())
        self._files.write_state(self.states.values)

    def _take_line(self, name: str, text: str) -> None:
        if name == "dps":
            self._said = text
        self._files.write_line(name, text)

    # -- signs of life and orders -----------------------------------------------------------------------------------

    def _pulse(self) -> None:
        beat_at = use_at = now()
        say_at = beat_at + WAIT_S
        while True:
            if self._opening and now() >= say_at:
                say_at = now() + AGAIN_S
                self._take_line("dps", f"waits for the machines of the run ({self._where['on']})")
            if now() >= beat_at:
                beat_at = now() + BEAT_S
                self._files.write_heartbeat()
            if now() >= use_at:
                use_at = now() + USE_S
                self._files.write_usage(self._engine.used())
            self._follow_orders()
            self._interrupts.update_count()
            if self._interrupts.count and self._opening:
                self._opening = False
                self._engine.close()  # what waits for machines gives up
            if self._over.wait(LOOK_S):
                return

    def _follow_orders(self) -> None:
        for path in kill_orders(self.path):
            if path not in self._seen:
                self._seen.add(path)
                with contextlib.suppress(ValueError, OSError):
                    self._interrupts.request_end(float(folder.read(path).get("grace_s", GRACE_S)))

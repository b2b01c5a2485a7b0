"""The keeper of a run: supervises its tasks, writes their states and output and its own signs of life, heeds orders."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping

from dps.errors import DpsError
from dps.launch.interrupts import GRACE_S, Interrupts
from dps.launch.output import Print
from dps.launch.plan import Plan, plan_from
from dps.launch.runs import folder
from dps.launch.runs.identity import identity, start_of
from dps.launch.runs.logs import Log
from dps.launch.runs.states import States
from dps.launch.runs.times import utc
from dps.launch.runs.view import kill_orders
from dps.launch.supervisor import Supervisor
from dps.transport.clock import now, wall

BEAT_S = 5.0
"""How often the heartbeat is written."""
LOOK_S = 0.25
"""How often orders are looked for."""


def make(path: str, plan: Plan, asked: dict[str, object]) -> Plan:
    """Write what a new run is, before its keeper starts; returns its plan, in which every task has an OUTPUT_DIR.

    `asked`: name, command, values and output, and what else people want to see of it later."""
    from dps import __version__

    output = plan.env.get("OUTPUT_DIR") or os.environ.get("OUTPUT_DIR") or os.path.join(path, "output")
    plan = Plan(plan.jobs, plan.update, {**plan.env, "OUTPUT_DIR": output}, plan.owned, plan.pin, plan.folder)
    os.makedirs(output, exist_ok=True)
    own = {
        "format": folder.FORMAT,
        "dps": __version__,
        "created": utc(wall()),
        "output": output,
        "plan": plan.as_dict(),
    }
    folder.write(os.path.join(path, "run.json"), asked | own)
    states = States(plan.tasks(), wall())
    folder.write(os.path.join(path, "state.json"), states.values | {"keeper": identity()})
    return plan


def use_keys(env: Mapping[str, str]) -> None:
    """Use the keys of a run, which its variables name, for all that this process asks of it."""
    if keys := env.get("DPS_KEYS"):
        os.environ["DPS_KEYS"] = keys


class Keeper:
    """Keeps one run that `make` has prepared. `show` prints the lines of its tasks, if anybody looks."""

    def __init__(self, path: str, show: Print | None = None) -> None:
        self.path, self._show = path, show
        plan = plan_from(folder.read(os.path.join(path, "run.json"))["plan"])
        use_keys(plan.env)
        self.states = States(plan.tasks(), wall())
        self._logs: dict[str, Log] = {}
        self._writing = threading.Lock()
        self._said = self._trouble = ""
        self._seen: set[str] = set()
        """Orders that were heeded."""
        self._over = threading.Event()
        self._interrupts = Interrupts()
        self._identity = identity()
        self._supervisor = Supervisor(plan, self._line, self)

    def keep(self) -> int:
        """Start the run and supervise it to its end; returns its exit code. Blocks."""
        code, reason = 1, ""
        supervisor, pulse = self._supervisor, threading.Thread(target=self._pulse, name="dps heartbeat", daemon=True)
        with self._interrupts:
            self._note(self.states.begin)
            pulse.start()
            try:
                supervisor.start()
                self._note(lambda at: self.states.listening(supervisor.target, at))
                self._greet()
                code = supervisor.wait(self._interrupts)
                reason = self._said if code else ""
            except DpsError as error:
                code, reason = error.exit_code, str(error)
                raise
            finally:
                supervisor.stop()
                self._over.set()
                pulse.join()
                self._mark_killing()
                self._note(lambda at: self.states.finish(code, reason, at))
                for log in self._logs.values():
                    log.close()
        return code

    def _greet(self) -> None:
        run, chief = os.path.basename(self.path), self._supervisor.target
        self._supervisor.say(f"chief at {chief}; look at this run with: dps status {run}")

    # -- the supervisor's watch -----------------------------------------------------------------------------------

    def started(self, name: str, pid: int) -> None:
        """Note that a task runs."""
        self._note(lambda at: self.states.started(name, pid, start_of(pid), at))

    def ended(self, name: str, code: int) -> None:
        """Note that a task has ended."""
        self._mark_killing()
        self._note(lambda at: self.states.ended(name, code, at))

    def _mark_killing(self) -> None:
        if self._interrupts.count:
            self.states.killing()

    # -- what is written ------------------------------------------------------------------------------------------

    def _note(self, change: Callable[[float], None]) -> None:
        """Apply a change to the states and write them."""
        change(wall())
        values = self.states.values | {"keeper": self._identity}
        self._try(lambda: folder.write(os.path.join(self.path, "state.json"), values))

    def _line(self, name: str, text: str) -> None:
        if name == "dps":
            self._said = text
        with self._writing:
            self._try(lambda: self._log(name).write(wall(), text))
        if self._show is not None:
            self._show(name, text)

    def _log(self, name: str) -> Log:
        if name not in self._logs:
            self._logs[name] = Log(os.path.join(self.path, "logs"), name)
        return self._logs[name]

    def _try(self, write: Callable[[], None]) -> None:
        """Write something; a full disk does not end a run, and is told once."""
        try:
            write()
        except OSError as error:
            if not self._trouble and self._show is not None:
                self._show("dps", f"{self.path} cannot be written: {error.strerror}; the run goes on")
            self._trouble = str(error)

    # -- signs of life and orders -----------------------------------------------------------------------------------

    def _pulse(self) -> None:
        beat_at = now()
        while True:
            if now() >= beat_at:
                beat_at = now() + BEAT_S
                self._try(lambda: folder.replace(os.path.join(self.path, "heartbeat"), utc(wall()) + "\n"))
            self._heed_orders()
            self._interrupts.look()
            if self._over.wait(LOOK_S):
                return

    def _heed_orders(self) -> None:
        for path in kill_orders(self.path):
            if path not in self._seen:
                self._seen.add(path)
                with contextlib.suppress(ValueError, OSError):
                    self._interrupts.ask(float(folder.read(path).get("grace_s", GRACE_S)))

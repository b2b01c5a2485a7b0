"""Runs all tasks of a cluster as child processes: merges their output, restarts ps and chief once, ends all of them.

No large module is imported before the tasks have been started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
from collections.abc import Mapping, Sequence
from typing import Protocol

from dps import descriptors
from dps.config import allowed_cpus, deal_cpus, format_cpus
from dps.errors import DeadlineExceeded, DpsError, TaskLost
from dps.launch.engines.engine import Engine, Order, Started
from dps.launch.engines.local import LocalEngine
from dps.launch.interrupts import Interrupts
from dps.launch.moving import Moving
from dps.launch.outcome import describe, outcome
from dps.launch.output import Output, Print, without_name
from dps.launch.plan import EVALUATOR, STDIN, Plan, host_of, runs_program
from dps.launch.tails import Tails
from dps.transport.clock import now

START_S = 30.0
ALONE_S = 0.5
"""How long ps and chief may take to end by themselves before the chief is asked, which requires importing zmq."""
ASKS, ASK_S = 5, 0.2
"""How often the chief is asked while it runs, and the timeout of each request."""
END_S = 6.0
"""How long ps and chief may take to end by themselves when all workers have ended, and workers when a ps is lost."""
CHIEFLESS_S = 1.0
"""How long workers may take to end by themselves when the chief is lost for good."""
EVALUATE_S = 120.0
"""How long an evaluator may take to end when the run has ended: it evaluates the last checkpoint."""
SAVE_S = 120.0
"""How long they may take if the chief says that it is ending the run: it writes the last checkpoint."""
KILL_S = 3.0
TOLD_S = 2.0
"""How long the chief may take to end itself and the ps after it was told to."""
SAY_S = 5.0
"""How long the evaluator may take until a line says that it is waited for."""
PINNED = ("ps:", "worker:")
"""Tasks that keep to processors of their own. The chief has none, because it has little work."""
NEVER_AGAIN = (0, 2, 3)
"""Exit codes after which a task is not started again: it is done, was started wrongly, or the run is over."""


class Watch(Protocol):
    """Is told of the tasks of a supervisor, on its thread."""

    def started(self, task: Started) -> None:
        """A task runs, for the first time or again."""

    def ended(self, name: str, code: int) -> None:
        """A task has ended, with this exit code or by this signal (negative)."""


class Supervisor:
    """Starts the tasks of a plan. `start` blocks until the chief listens; `finish` until the run is over.

    A ps or chief that died (by a signal or a crash, not with exit code 0, 2 or 3) is started again as often as its
    `restarts` say, and so is a worker that a signal ended.
    """

    def __init__(
        self, plan: Plan, line: Print | None = None, watch: Watch | None = None, engine: Engine | None = None
    ) -> None:
        """Raises ConfigError if tasks are to be pinned to processors and that is impossible."""
        self.plan = plan
        self.children: dict[str, Started] = {}
        self.states: dict[str, str] = {}
        self.target = ""
        self._engine = engine or LocalEngine()
        self._keys = {"DPS_KEYS": os.environ["DPS_KEYS"]} if os.environ.get("DPS_KEYS") else {}
        self._bind = ""
        """Where the chief listens."""
        self._crashed: dict[str, int] = {}
        """Exit codes of ps and chief that died before the run had ended; the latest last."""
        self._reason = ""
        """Why the chief has ended the run, in its last words."""
        self._listening = False
        """Whether the current chief has said that it listens."""
        self._untold: list[tuple[int, str, int]] = []
        """Workers of whose end the chief has not been told yet: task, how it ended, exit code."""
        self._interrupts, self._heeded, self._killed = Interrupts(), 0, False
        self._told_to_end: list[str] = []  # workers that ran on when their run was lost
        self._left: dict[str, int] = {}
        """How often each task may still be started again."""
        self._print = line or Output().line
        self._watch = watch
        self._tails = Tails()
        self.cpus = deal_cpus([n for n in plan.tasks() if n.startswith(PINNED)], allowed_cpus()) if plan.pin else {}
        self._events: queue.Queue[Started] = queue.Queue()
        self._ready: queue.Queue[str] = queue.Queue()
        self._ending = False
        self.moving = Moving(self.children, self.say)

    # -- starting ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start chief and ps and all tasks that have a program, all at once: they load their modules while the chief
        starts, and then get its address. Nobody waits for an evaluator while the training goes on.

        Raises DeadlineExceeded or TaskLost if the chief does not start, and ConfigError if the system lets processes
        open too few files, or a task wants more than there is.
        """
        descriptors.check("each task of this run", descriptors.needed_to_launch(self.plan.ps, self.plan.workers))
        self._engine.check(self.plan)
        self._bind = self._engine.open(self.plan, self._line, self.moving.notice)
        for name in self.plan.tasks():
            if not runs_program(name) or self.plan.job(name).run:
                self._spawn(name, self._flags(name, STDIN), waits=name != "chief")
        try:
            self.target = self._ready.get(timeout=START_S)
        except queue.Empty:
            self.stop()
            raise DeadlineExceeded(
                f"the chief did not begin to listen within {START_S:.0f} s; its output may say why, else try again"
            ) from None
        if not self.target:
            self.stop()
            raise TaskLost("the chief ended while it was started; its output says why")
        for child in self.children.values():
            child.tell(self.target)

    def start_worker(
        self, task: int, program: str, arguments: Sequence[str] = (), extra: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Started:  # fmt: skip
        """Start a worker that runs a program as its task."""
        name = f"worker:{task}"
        return self._spawn(name, self._flags(name, self.target, (program, *arguments)), extra, pass_fds)

    def _flags(self, name: str, chief: str, run: Sequence[str] = ()) -> list[str]:
        if name == "chief":
            return self.plan.chief_flags(self._bind)
        pinned = ["--cpus", format_cpus(self.cpus[name])] if name in self.cpus else []
        return [*pinned, *self.plan.flags(name, chief, run)]

    def _spawn(
        self, name: str, arguments: list[str], extra: Mapping[str, str] | None = None, pass_fds: Sequence[int] = (),
        waits: bool = False,
    ) -> Started:  # fmt: skip
        env = {**self._keys, **self.plan.environment(name), **(extra or {})}
        order = Order(name, arguments, env, self.plan.folder, waits, pass_fds)
        child = self._engine.start(order, self._line, self._events.put)
        self.children[name] = child
        self.states[name] = "running"
        if self._watch is not None:
            self._watch.started(child)
        return child

    def _line(self, name: str, text: str) -> None:
        if text.startswith("dps chief at ") and name == "chief":
            self._listening = True
            self._ready.put(text.removeprefix("dps chief at "))
            return
        if text.startswith("dps: ") and name == "chief":
            self._reason = text.removeprefix("dps: ")
        if runs_program(name):
            self._tails.note(name, text)
        if not text.startswith(f"dps {name} at "):
            self._print(name, without_name(name, text))

    def say(self, text: str) -> None:
        """Print a line of the launcher."""
        self._print("dps", text)

    # -- running ----------------------------------------------------------------------------------------------

    def turn(self, wait_s: float) -> None:
        """Handle a task that ended, and restart it if it may be restarted. Blocks up to `wait_s`."""
        self._tell_ends()
        self.moving.heed()
        try:
            child = self._events.get(timeout=wait_s)
        except queue.Empty:
            return
        code, name = child.code, child.name
        assert code is not None
        if self.children.get(name) is not child:
            return
        self.states[name] = "done" if code == 0 else f"failed ({describe(code)})"
        if self._watch is not None:
            self._watch.ended(name, code)
        if name == "chief":
            self._listening = False
            if not self.target:
                self._ready.put("")
        if not (self._ending or runs_program(name) or code in NEVER_AGAIN):
            self._crashed.pop(name, None)
            self._crashed[name] = code
        if self._may_start_again(child, code) and self._start_again(child, code):
            return
        self._note_end(name, code)
        if name == EVALUATOR and code and not self._ending:
            goes_on = "the workers that serve it end, too" if self.plan.serves else "the training goes on"
            self.say(f"{name} ended with {describe(code)}; {goes_on}")

    def _may_start_again(self, child: Started, code: int) -> bool:
        """Whether a task that has ended is started again. A program that has failed by itself is not."""
        name = child.name
        if not self._ending and not self._heeded and self.moving.moves(child):
            return self.lost() in ("", name)
        if self._ending or code in NEVER_AGAIN or self._left.setdefault(name, self.plan.job(name).restarts) < 1:
            return False
        if runs_program(name):
            return code < 0 and not self._heeded and not self.lost() and not self._undriven()
        return self.plan.owned or bool(self.workers_alive())

    def _start_again(self, child: Started, code: int) -> bool:
        """Start a task again; returns whether there was a place for it."""
        name = child.name
        if not child.displaced:
            self._left[name] -= 1
        self.say(f"{name} ended with {describe(code)}; it is started again")
        flags = self._flags(name, self.target)
        if name == "chief":
            port = self.target.rpartition(":")[2]
            bind = self._bind if self._bind.startswith("ipc:") else f"{host_of(self._bind)}:{port}"
            flags = [*self.plan.chief_flags(bind), "--restarted"]
        try:
            self._spawn(name, flags)
        except DpsError as error:
            self.say(f"{name} cannot be started again: {error}")
            return False
        return True

    def _note_end(self, name: str, code: int) -> None:
        """Have the chief told how a worker's process ended, unless its session or its role has reported a good end."""
        told = code == 0 or (
            self.plan.owned and code > 0
        )  # the next worker of an owned cluster may have started already
        if name.startswith("worker") and not told and not self._ending:
            how = f"ended with {describe(code)}" if code > 0 else f"was killed ({describe(code)})"
            self._untold.append((int(name.partition(":")[2]), how, code))
            self._tell_ends()

    def _tell_ends(self) -> None:
        """Tell the chief which workers have ended; one that is being restarted is told once it listens."""
        untold = self._untold if self._listening and self.target else []
        while untold:
            from dps.launch.leaving import leave

            task, how, code = untold.pop(0)
            if not self.children[f"worker:{task}"].alive:  # else the next run's worker has taken its place
                leave(self.target, task, how, code)

    def _workers_running(self) -> bool:
        """Whether a worker runs, or has ended and that was not handled yet."""
        return any(name.startswith("worker") and state == "running" for name, state in self.states.items())

    def workers_alive(self) -> list[str]:
        return [n for n, c in self.children.items() if n.startswith("worker") and c.alive]

    def servers_alive(self) -> list[str]:
        return [n for n, c in self.children.items() if not runs_program(n) and c.alive]

    def wait(self, interrupts: Interrupts | None = None) -> int:
        """Wait until all workers have ended, and then chief and ps; returns the run's exit code. Blocks."""
        self._interrupts = interrupts or self._interrupts
        while self._workers_running() or not self._events.empty():
            self.turn(0.2)
            self._heed()
            if not self._ending and self.workers_alive() and self.lost():
                why = self._reason or f"{self.lost()} is lost for good"
                patience_s = CHIEFLESS_S if self.lost() == "chief" else END_S
                self.say(f"{why}; the workers have {patience_s:.0f} s to end")
                self._give_up(patience_s)
            elif not self._ending and self._undriven():
                for name in self.workers_alive():
                    self.children[name].tell_to_end()
                self._give_up(END_S)
        return self._teardown()

    def _undriven(self) -> bool:
        """Whether the workers serve a program that has failed or was killed: nobody will call them."""
        return self.plan.serves and self.states.get(EVALUATOR, "").startswith("failed")

    def lost(self) -> str:
        """The first ps or chief that failed and was not restarted; "" if there is none."""
        failed = [
            n for n, c in self.children.items()
            if not runs_program(n) and not c.alive and self.states[n].startswith("failed")
        ]  # fmt: skip
        return next((n for n in reversed(self._crashed) if n in failed), failed[0] if failed else "")

    def _give_up(self, patience_s: float) -> None:
        """End the run, because a ps, the chief or the program that drives the workers is lost for good."""
        self._ending = True
        deadline = now() + patience_s
        while self.workers_alive() and now() < deadline:
            self.turn(0.1)
            self._heed()
        self._told_to_end = self.workers_alive()
        for name in self._told_to_end:
            self.children[name].tell_to_end()
        deadline = now() + KILL_S
        while self.workers_alive() and now() < deadline:
            self.turn(0.05)
        for name in self.workers_alive():
            self.children[name].end(0.0)

    def _heed(self) -> None:
        """Handle Ctrl-C: the first one drains the workers, the second one kills all tasks."""
        if self._interrupts.count <= self._heeded:
            return
        self._heeded = self._interrupts.count
        if self._heeded == 1:
            doing = "stopping after this step" if self.workers_alive() else "the run is ending"
            self.say(f"{doing}; Ctrl-C once more kills all tasks")
            for child in self.children.values():
                if runs_program(child.name) and child.alive:
                    child.signal(signal.SIGINT)
        else:
            self._ending = self._killed = True
            for child in self.children.values():
                child.signal(signal.SIGKILL)

    def _teardown(self) -> int:
        if not self.plan.owned:
            self._let_end(ALONE_S)
            self._let_end(self._patience_s())
            self._let_evaluator_end()
        late = self.servers_alive()
        self.stop()
        return self._exit_code(late)

    def _let_end(self, patience_s: float) -> None:
        """Wait for ps and chief to end by themselves. Blocks."""
        deadline = now() + patience_s
        while self.servers_alive() and now() < deadline:
            self.turn(0.05)
            self._heed()

    def _let_evaluator_end(self) -> None:
        """Wait for the evaluator, which the chief has told of the run's end. Blocks."""
        evaluator = self.children.get(EVALUATOR)
        if evaluator is None or not evaluator.alive or self._ending:
            return
        deadline, told_at = now() + EVALUATE_S, now() + SAY_S
        while evaluator.alive and now() < deadline and not self._killed:
            self.turn(0.05)
            self._heed()
            if now() >= told_at:
                told_at = deadline
                self.say(f"waits for {EVALUATOR}, at most {EVALUATE_S:.0f} s")

    def _patience_s(self) -> float:
        """How long ps and chief may take when no worker is left. This depends on the chief's answer."""
        if not self.servers_alive() or self.lost() == "chief":
            return 0.0
        from dps.actors.caller import Caller
        from dps.actors.ref import Ref
        from dps.chief.phase import END, GATHER, OPEN
        from dps.run_protocol import CHIEF, AskStats, Stats
        from dps.transport.current import keys_for, runtime

        caller, answer = Caller(runtime(), "dps launch", keys_for(self.target, "operator", "worker")), None
        for _ in range(ASKS):
            if answer is None and "chief" in self.servers_alive():
                with contextlib.suppress(DpsError):
                    answer = caller.ask(Ref(self.target, CHIEF), AskStats(), ASK_S)
        caller.close()
        phase = answer.values["phase"] if isinstance(answer, Stats) else ""
        if phase in (GATHER, OPEN):
            return 0.0  # no worker ever opened a session
        return SAVE_S if phase == END else END_S

    def _exit_code(self, late: list[str]) -> int:
        """130 if all tasks were killed, else the code from `outcome`. Prints the last line."""
        if self._killed:
            return 130
        codes = {n: c.code or 0 for n, c in self.children.items() if n not in (*late, *self._told_to_end)}
        code, why = outcome(codes, self._crashed, self._reason, self._tails.found)
        if why:
            self.say(why)
        return code

    def stop(self) -> None:
        """End every task that still runs: first through the chief, then by a signal, then by SIGKILL. Blocks."""
        self._ending = True
        for child in self.children.values():
            child.tell("")
        for child in self.children.values():
            if runs_program(child.name) and child.alive:
                child.signal(signal.SIGTERM)
        chief = self.children.get("chief")
        if chief is not None and chief.alive:
            chief.tell_to_end()
            chief.wait(TOLD_S)
        for child in self.children.values():
            child.tell_to_end()
        for child in self.children.values():
            child.end(KILL_S)
        self._engine.close()

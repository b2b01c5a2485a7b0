"""Runs all tasks of a cluster as child processes: merges their output, restarts ps and chief once, ends all of them.

No large module is imported before the tasks have been started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
from collections.abc import Mapping, Sequence

from dps import descriptors
from dps.config import allowed_cpus, deal_cpus, format_cpus
from dps.errors import DeadlineExceeded, DpsError, TaskLost
from dps.launch.child import Child, runs_program
from dps.launch.interrupts import Interrupts
from dps.launch.outcome import describe, outcome
from dps.launch.output import Output, Print
from dps.transport.clock import now

START_S = 30.0
ALONE_S = 0.5
"""How long ps and chief may take to end by themselves before the chief is asked, which requires importing zmq."""
ASKS, ASK_S = 5, 0.2
"""How often the chief is asked while it runs, and the timeout of each request."""
END_S = 6.0
"""How long ps and chief may take to end by themselves when all workers have ended."""
EVALUATE_S = 120.0
"""How long an evaluator may take to end when the run has ended: it evaluates the last checkpoint."""
SAVE_S = 120.0
"""How long they may take if the chief says that it is ending the run: it writes the last checkpoint."""
KILL_S = 3.0
TOLD_S = 2.0
"""How long the chief may take to end itself and the ps after it was told to."""
SAY_S = 5.0
"""How long the evaluator may take until a line says that it is waited for."""
EVALUATOR = "evaluator:0"
STDIN = "-"
"""Stands for the chief's address if it comes on stdin."""


class Supervisor:
    """Chief, ps and workers. `start` blocks until the chief listens; `finish` until the run is over.

    A ps or chief that died (by a signal or a crash, not with exit code 0, 2 or 3) is started again, `restarts` times
    each. Workers are not restarted.
    """

    def __init__(
        self,
        ps: int,
        workers: int,
        update: str | None = None,
        owned: bool = False,
        restarts: int = 1,
        line: Print | None = None,
        extra: Mapping[str, str] | None = None,
        pin: bool = False,
        ps_flags: Sequence[str] = (),
    ) -> None:
        """`extra`: variables of each task's environment; `DPS_BIND` is the chief's. `pin`: each ps and worker keeps to
        processors of its own; raises ConfigError if that is impossible.
        `ps_flags`: more flags of each ps's role, such as --threads."""
        self.ps, self.workers, self.update, self.owned = ps, workers, update, owned
        self.children: dict[str, Child] = {}
        self.states: dict[str, str] = {}
        self.target = ""
        self._crashed: dict[str, int] = {}
        """Exit codes of ps and chief that died before the run had ended; the latest last."""
        self._reason = ""
        """Why the chief has ended the run, in its last words."""
        self._listening = False
        """Whether the current chief has said that it listens."""
        self._untold: list[tuple[int, str, int]] = []
        """Workers of whose end the chief has not been told yet: task, how it ended, exit code."""
        self._interrupts, self._heeded = Interrupts(), 0
        self._killed = False
        self._restarts = restarts
        self._left: dict[str, int] = {}
        self._print = line or Output().line
        keys = {"DPS_KEYS": os.environ["DPS_KEYS"]} if os.environ.get("DPS_KEYS") else {}
        self._extra, self._ps_flags = {**keys, **(extra or {})}, list(ps_flags)
        self._bind = self._extra.get("DPS_BIND", "127.0.0.1:0")
        """Where the chief listens. The other tasks listen on the same host, on ports of their own."""
        self._advertise = self._extra.get("DPS_ADVERTISE", "")
        hosts = {"DPS_BIND": f"{host_of(self._bind)}:0", "DPS_ADVERTISE": host_of(self._advertise)}
        self._extra |= {name: value for name, value in hosts.items() if name in self._extra}
        tasks = [*(f"ps:{task}" for task in range(ps)), *(f"worker:{task}" for task in range(workers))]
        self.cpus = deal_cpus(tasks, allowed_cpus()) if pin else {}
        self._events: queue.Queue[Child] = queue.Queue()
        self._ready: queue.Queue[str] = queue.Queue()
        self._ending = False

    # -- starting ---------------------------------------------------------------------------------------------

    def start(self, program: str | None = None, arguments: Sequence[str] = (), evaluator: str | None = None) -> None:
        """Start chief and ps and, if there are programs, workers and evaluator, all at once: they load their modules
        while the chief starts, and then get its address. `evaluator`: a program and its arguments, as a shell splits
        them; nobody waits for it while the training goes on.

        Raises DeadlineExceeded or TaskLost if the chief does not start, and ConfigError if the system lets processes
        open too few files.
        """
        descriptors.check("each task of this run", descriptors.needed_to_launch(self.ps, self.workers))
        self._spawn("chief", self._chief_arguments(self._bind))
        for task in range(self.ps):
            self._spawn(f"ps:{task}", self._ps_arguments(task, STDIN), waits=True)
        for task in range(self.workers if program is not None else 0):
            assert program is not None
            self._spawn(f"worker:{task}", self._worker_arguments(task, program, arguments, STDIN), waits=True)
        if evaluator is not None:
            evaluates, *rest = shlex.split(evaluator)
            self._spawn(EVALUATOR, self._program_arguments("evaluator", 0, evaluates, rest, STDIN), waits=True)
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
    ) -> Child:  # fmt: skip
        """Start a worker that runs a program as its task."""
        flags = self._worker_arguments(task, program, arguments, self.target)
        return self._spawn(f"worker:{task}", flags, extra, pass_fds)

    def _worker_arguments(self, task: int, program: str, arguments: Sequence[str], chief: str) -> list[str]:
        return self._program_arguments("worker", task, program, arguments, chief)

    def _program_arguments(self, job: str, task: int, program: str, arguments: Sequence[str], chief: str) -> list[str]:
        flags = ["--job", job, "--task", str(task), "--chief", chief, *self._pinned(f"{job}:{task}")]
        flags += ["--ps", str(self.ps), "--workers", str(self.workers)]  # for the program's TF_CONFIG
        return [*flags, "--program", program, "--", *arguments]

    def _ps_arguments(self, task: int, chief: str) -> list[str]:
        flags = ["--job", "ps", "--task", str(task), "--chief", chief, *self._pinned(f"ps:{task}")]
        return [*flags, *self._ps_flags]

    def _pinned(self, name: str) -> list[str]:
        """The flags that keep a task on its processors. The chief has none, because it has little work."""
        return ["--cpus", format_cpus(self.cpus[name])] if name in self.cpus else []

    def _chief_arguments(self, bind: str) -> list[str]:
        flags = ["--job", "chief", "--bind", bind, "--ps", str(self.ps), "--workers", str(self.workers)]
        flags += ["--update", self.update] if self.update else []
        flags += ["--advertise", self._advertise] if self._advertise else []
        return flags + (["--owned"] if self.owned else [])

    def _spawn(
        self, name: str, arguments: list[str], extra: Mapping[str, str] | None = None, pass_fds: Sequence[int] = (),
        waits: bool = False,
    ) -> Child:  # fmt: skip
        child = Child(name, arguments, self._line, self._events.put, {**self._extra, **(extra or {})}, pass_fds, waits)
        self.children[name] = child
        self.states[name] = "running"
        return child

    def _line(self, name: str, text: str) -> None:
        if text.startswith("dps chief at ") and name == "chief":
            self._listening = True
            self._ready.put(text.removeprefix("dps chief at "))
            return
        if text.startswith("dps: ") and name == "chief":
            self._reason = text.removeprefix("dps: ")
        if not text.startswith(f"dps {name} at "):
            self._print(name, text.removeprefix(f"{name}: "))  # the task's log also begins with its name

    def say(self, text: str) -> None:
        """Print a line of the launcher."""
        self._print("dps", text)

    # -- running ----------------------------------------------------------------------------------------------

    def turn(self, wait_s: float) -> None:
        """Handle a task that ended, and restart it if it may be restarted. Blocks up to `wait_s`."""
        self._tell_ends()
        try:
            child = self._events.get(timeout=wait_s)
        except queue.Empty:
            return
        code, name = child.code, child.name
        assert code is not None
        if self.children.get(name) is not child:
            return
        self.states[name] = "done" if code == 0 else f"failed ({describe(code)})"
        if name == "chief":
            self._listening = False
            if not self.target:
                self._ready.put("")
        self._note_end(name, code)
        if name == EVALUATOR and code and not self._ending:
            self.say(f"{name} ended with {describe(code)}; the training goes on")
        if runs_program(name) or code in (0, 2, 3) or self._ending:
            return
        self._crashed.pop(name, None)
        self._crashed[name] = code
        if self._left.setdefault(name, self._restarts) > 0 and (self.owned or self.workers_alive()):
            self._left[name] -= 1
            self.say(f"{name} ended with {describe(code)}; it is started again")
            if name == "chief":
                bind = f"{host_of(self._bind)}:{self.target.rpartition(':')[2]}"
                arguments = [*self._chief_arguments(bind), "--restarted"]
            else:
                arguments = self._ps_arguments(int(name.partition(":")[2]), self.target)
            self._spawn(name, arguments)

    def _note_end(self, name: str, code: int) -> None:
        """Have the chief told how a worker's process ended, unless its session or its role has reported a good end."""
        told = code == 0 or (self.owned and code > 0)  # the next worker of an owned cluster may have started already
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

    def workers_alive(self) -> list[str]:
        return [n for n, c in self.children.items() if n.startswith("worker") and c.alive]

    def servers_alive(self) -> list[str]:
        return [n for n, c in self.children.items() if not runs_program(n) and c.alive]

    def wait(self, interrupts: Interrupts | None = None) -> int:
        """Wait until all workers have ended, and then chief and ps; returns the run's exit code. Blocks."""
        self._interrupts = interrupts or self._interrupts
        while self.workers_alive() or not self._events.empty():
            self.turn(0.2)
            self._heed()
            if not self._ending and self.lost():
                why = self._reason or f"{self.lost()} is lost for good"
                self.say(f"{why}; the workers have {END_S:.0f} s to end")
                self._give_up(END_S)
        return self._teardown()

    def lost(self) -> str:
        """The first ps or chief that failed and was not restarted; "" if there is none."""
        failed = [
            n for n, c in self.children.items()
            if not runs_program(n) and not c.alive and self.states[n].startswith("failed")
        ]  # fmt: skip
        return next((n for n in reversed(self._crashed) if n in failed), failed[0] if failed else "")

    def _give_up(self, patience_s: float) -> None:
        """End the run, because a ps or the chief is lost for good."""
        self._ending = True
        deadline = now() + patience_s
        while self.workers_alive() and now() < deadline:
            self.turn(0.1)
            self._heed()
        for name in self.workers_alive():
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
        if not self.owned:
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
        if not self.servers_alive():
            return 0.0
        from dps.actors.caller import Caller
        from dps.actors.ref import Ref
        from dps.chief.phase import END, GATHER, OPEN
        from dps.run_protocol import CHIEF, AskStats, Stats
        from dps.transport.current import environment_keys, runtime

        caller, answer = Caller(runtime(), "dps launch", environment_keys("operator", "worker")), None
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
        codes = {n: c.code or 0 for n, c in self.children.items() if n not in late}
        code, why = outcome(codes, self._crashed, self._reason)
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


def host_of(address: str) -> str:
    """The host of "HOST" or "HOST:PORT"."""
    return address if address.endswith("]") else address.rpartition(":")[0] or address


def launch(
    ps: int, workers: int, program: str, arguments: Sequence[str], update: str | None = None, restarts: int = 1,
    pin: bool = False, ps_flags: Sequence[str] = (), evaluator: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> int:  # fmt: skip
    """`dps launch`: run a program on every worker of a cluster on this machine; returns the exit code. Blocks."""
    supervisor = Supervisor(ps, workers, update, restarts=restarts, extra=extra, pin=pin, ps_flags=ps_flags)
    with Interrupts() as interrupts:
        try:
            supervisor.start(os.fspath(program), arguments, evaluator)
            supervisor.say(
                f"chief at {supervisor.target}; look at the run with: dps status --chief {supervisor.target}"
            )
            return supervisor.wait(interrupts)
        finally:
            supervisor.stop()

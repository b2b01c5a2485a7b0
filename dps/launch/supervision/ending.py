"""Ends a launched run: after its workers, by Ctrl-C, or when a task is lost that it cannot do without."""

from __future__ import annotations

import signal
from collections.abc import Callable
from math import inf

from dps.launch.supervision.chief import LaunchedChief
from dps.launch.supervision.interrupts import Interrupts
from dps.launch.supervision.outcome import OVER
from dps.launch.supervision.plan import EVALUATOR, runs_program
from dps.launch.supervision.tasks import Tasks
from dps.transport.clock import now

ALONE_S = 0.5
"""How long ps and chief may take to end by themselves before the chief is asked, which requires importing zmq."""
END_S = 6.0
"""How long ps and chief may take to end by themselves when all workers have ended, and workers when a ps is lost."""
CHIEFLESS_S = 1.0
"""How long workers may take to end by themselves when the chief is lost for good."""
EVALUATE_S = 120.0
"""How long an evaluator may take to end when the run has ended: it evaluates the last checkpoint."""
SAVE_S = 120.0
"""How long they may take if the chief says that it is ending the run: it writes the last checkpoint."""
KILL_S = 3.0
"""How long tasks that were told to end may take until SIGKILL."""
TOLD_S = 2.0
"""How long the chief may take to end itself and the ps after it was told to."""
DISMISSED_S = 1.0
"""How long workers may take to end that a program has called and told to end."""
SAY_S = 5.0
"""How long the evaluator may take until a line says that it is waited for."""


class TasksEnding:
    """Ends the tasks. `turn` handles a task that has ended, and blocks up to the given seconds."""

    def __init__(
        self, tasks: Tasks, chief: LaunchedChief, turn: Callable[[float], None], say: Callable[[str], None]
    ) -> None:
        self.begun = False
        """Whether the remaining tasks are being ended: none is started again."""
        self.interrupted = 0
        """How many interrupts were handled."""
        self.killed = False
        """Whether a second interrupt has killed all tasks."""
        self.told: list[str] = []
        """Workers that ran on when their run was lost, until they were told to end."""
        self._tasks, self._chief, self._turn, self._say = tasks, chief, turn, say
        self._interrupts = Interrupts()
        self._tell_at: float | None = None
        """When workers are told to end that the program which called them could not tell; None while it runs."""

    def use_interrupts(self, interrupts: Interrupts) -> None:
        """Handle these interrupts from now on."""
        self._interrupts = interrupts

    def handle_interrupts(self) -> None:
        """Handle Ctrl-C: the first one drains the workers, the second one kills all tasks."""
        if self._interrupts.count <= self.interrupted:
            return
        self.interrupted = self._interrupts.count
        children = self._tasks.children.values()
        if self.interrupted == 1:
            doing = "stopping after this step" if self._tasks.workers_alive() else "the run is ending"
            self._say(f"{doing}; Ctrl-C once more kills all tasks")
            for child in children:
                if runs_program(child.name) and child.is_alive:
                    child.send_signal(signal.SIGINT)
        else:
            self.begun = self.killed = True
            for child in children:
                child.send_signal(signal.SIGKILL)

    def end_if_lost(self) -> None:
        """End the run if a ps, the chief or the program that drives the workers is lost for good. Blocks."""
        tasks = self._tasks
        if self.begun:
            return
        if tasks.workers_alive() and (lost := tasks.lost_task()):
            why = self._chief.reason or f"{lost} is lost for good"
            timeout_s = CHIEFLESS_S if lost == "chief" else END_S
            self._say(f"{why}; the workers have {timeout_s:.0f} s to end")
            self._give_up(timeout_s)
        elif tasks.is_undriven():
            self._tell_workers()
            self._give_up(END_S)
        elif tasks.is_dismissed():
            self._tell_late_workers()

    def _tell_late_workers(self) -> None:
        """Tell the workers to end that came to the run after the program that called them had ended."""
        if self._tell_at is None:
            self._tell_at = now() + DISMISSED_S
        elif now() >= self._tell_at:
            self._tell_at = inf
            self._tell_workers()

    def _tell_workers(self) -> list[str]:
        """Tell the workers that run to end; returns their names."""
        running = self._tasks.workers_alive()
        for name in running:
            self._tasks.children[name].tell_to_end()
        return running

    def _give_up(self, timeout_s: float) -> None:
        """End the workers: let them end by themselves, then tell them to, then kill them. Blocks."""
        tasks, self.begun = self._tasks, True
        self._wait_while(tasks.workers_alive, timeout_s)
        self.told = self._tell_workers()
        deadline = now() + KILL_S
        while tasks.workers_alive() and now() < deadline:
            self._turn(0.05)
        for name in tasks.workers_alive():
            tasks.children[name].end_task(0.0)

    def _wait_while(self, alive: Callable[[], object], timeout_s: float) -> None:
        """Wait for the end of tasks, while interrupts are handled. Blocks."""
        deadline = now() + timeout_s
        while alive() and now() < deadline:
            self._turn(0.05)
            self.handle_interrupts()

    def wait_for_servers(self) -> None:
        """Wait for ps, chief and evaluator, which end by themselves when no worker is left. Blocks."""
        self._wait_while(self._tasks.servers_alive, ALONE_S)
        self._wait_while(self._tasks.servers_alive, self._servers_timeout_s())
        self._wait_for_evaluator()

    def _wait_for_evaluator(self) -> None:
        """Wait for the evaluator, which the chief has told of the run's end. Blocks."""
        evaluator = self._tasks.children.get(EVALUATOR)
        if evaluator is None or not evaluator.is_alive or self.begun:
            return
        deadline, told_at = now() + EVALUATE_S, now() + SAY_S
        while evaluator.is_alive and now() < deadline and not self.killed:
            self._turn(0.05)
            self.handle_interrupts()
            if now() >= told_at:
                told_at = deadline
                self._say(f"waits for {EVALUATOR}, at most {EVALUATE_S:.0f} s")

    def _servers_timeout_s(self) -> float:
        """How long ps and chief may take when no worker is left. This depends on the chief's answer."""
        tasks = self._tasks
        if not tasks.servers_alive() or tasks.lost_task() == "chief":
            return 0.0
        from dps.messages.runs import END, GATHER, OPEN

        phase = self._chief.ask_phase(lambda: "chief" in tasks.servers_alive())
        if phase in (GATHER, OPEN):
            return 0.0  # no worker ever opened a session
        return SAVE_S if phase == END else END_S

    def end_all(self) -> None:
        """End every task that still runs: first through the chief, then by a signal, then by SIGKILL. Blocks."""
        self.begun = True
        children = self._tasks.children
        for child in children.values():
            child.send_chief("")
        for child in children.values():
            if runs_program(child.name) and child.is_alive:
                child.send_signal(signal.SIGTERM)
        chief = children.get("chief")
        if chief is not None and chief.is_alive:
            chief.tell_to_end()
            chief.wait(TOLD_S)
        for child in children.values():
            child.tell_to_end()
        for child in children.values():
            child.end_task(KILL_S)


AGAIN_S, SELDOM_S = 0.2, 60.0
"""When the programs are told again: after the first time, which doubles each time up to the second."""
"""How long programs may take until a line says that they are waited for."""


class EndNotifier:
    """Tells the programs: one that stood still when the chief told all tasks, or that has started since, would look for
    the chief for a minute. docs/decisions/0073."""

    def __init__(self, tasks: Tasks, say: Callable[[str], None]) -> None:
        self._tasks, self._say = tasks, say
        self._since: float | None = None
        """When the chief was seen to have ended well; None before."""
        self._again_s, self._again_at = AGAIN_S, 0.0
        self._said = False

    def tell_programs(self) -> None:
        """Called several times a second."""
        tasks, at = self._tasks, now()
        if not tasks.has_ended_well():
            return
        self._since = at if self._since is None else self._since
        if at >= self._again_at:
            self._again_at, self._again_s = at + self._again_s, min(2 * self._again_s, SELDOM_S)
            for name in tasks.programs_alive():
                tasks.children[name].send_signal(OVER)
        waits = tasks.workers_alive()
        if at >= self._since + SAY_S and waits and not self._said:
            self._said = True
            self._say(f"the run has ended; waits for the program{'s' * (len(waits) > 1)} of {', '.join(waits)}")

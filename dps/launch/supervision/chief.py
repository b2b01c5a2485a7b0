"""The chief of a run as its launcher knows it: its address, its last words, and the ends of workers to report to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

from dps.cluster.address import at_port, parse
from dps.errors import DpsError
from dps.launch.supervision.engine import Started
from dps.launch.supervision.outcome import describe
from dps.launch.supervision.plan import RunPlan

ASKS, ASK_S = 5, 0.2
"""How often the chief is asked while it runs, and the timeout of each request."""
LISTENS = "dps chief at "
"""Begins the line in which the chief says where it listens."""


class LaunchedChief:
    """The chief. `take_line` and `record_end` may be called on any thread, everything else on the supervisor's."""

    def __init__(self) -> None:
        self.address = ""
        """Where it listens; "" until it does. A chief that is started again listens at the same address."""
        self.reason = ""
        """Why it has ended the run, in its last words."""
        self._bind = ""
        self._listening = False
        """Whether the current process has said that it listens."""
        self._decided = threading.Event()
        """Set when it listens, or has ended before that."""
        self._untold: list[tuple[int, str, int]] = []
        """Workers of whose end it has not been told yet: task, how it ended, exit code."""

    def bind_to(self, address: str) -> None:
        """Have it listen at this address."""
        self._bind = address

    def flags(self, plan: RunPlan) -> list[str]:
        """The flags of its process: of the first one, or of one that takes the place of one that has ended."""
        if not self.address:
            return plan.chief_flags(self._bind)
        bind = self._bind if self._bind.startswith("ipc:") else at_port(self._bind, parse(self.address).port)
        return [*plan.chief_flags(bind), "--restarted"]

    def take_line(self, text: str) -> None:
        """Take a line of its output."""
        if text.startswith(LISTENS):
            self.address = self.address or text.removeprefix(LISTENS)
            self._listening = True
            self._decided.set()
        elif text.startswith("dps: "):
            self.reason = text.removeprefix("dps: ")

    def record_end(self) -> None:
        """Its process has ended, and all its lines were heard."""
        self._listening = False
        self._decided.set()

    def wait_listening(self, timeout_s: float) -> bool:
        """Wait until it listens, or has ended before that; returns False if neither comes in time. Blocks."""
        return self._decided.wait(timeout_s)

    def note_end(self, worker: str, code: int) -> None:
        """A worker has ended whose session has not said so; `tell_ends` tells the chief."""
        how = f"ended with {describe(code)}" if code > 0 else f"was killed ({describe(code)})"
        self._untold.append((int(worker.partition(":")[2]), how, code))

    def tell_ends(self, children: Mapping[str, Started]) -> None:
        """Tell it which workers have ended, once it listens."""
        while self._untold and self._listening and self.address:
            from dps.launch.programs.leaving import report_end

            task, how, code = self._untold.pop(0)
            if not children[f"worker:{task}"].is_alive:  # else the next run's worker has taken its place
                report_end(self.address, task, how, code)

    def ask_phase(self, runs: Callable[[], bool]) -> str:
        """The phase of its run; "" if it does not say. `runs`: whether its process runs. Blocks up to a second."""
        from dps.actors.caller import Caller
        from dps.actors.ref import Ref
        from dps.messages.runs import CHIEF, AskStats, Stats
        from dps.transport.current import keys_for, runtime

        caller, answer = Caller(runtime(), "dps launch", keys_for(self.address, "operator", "worker")), None
        for _ in range(ASKS):
            if answer is None and runs():
                with contextlib.suppress(DpsError):
                    answer = caller.ask(Ref(self.address, CHIEF), AskStats(), ASK_S)
        caller.close()
        return answer.values["phase"] if isinstance(answer, Stats) else ""

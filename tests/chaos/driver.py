"""One chaos run from start to end: launch, train, do the faults, see training go on, finish, gather the evidence."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

from tests.chaos.cases import FILL, FOR_GOOD, KILL, STOP, TERM, Case, Fault
from tests.chaos.cluster import ROOT, Launched, marked
from tests.chaos.disk import SmallDisk
from tests.chaos.evidence import Evidence, Strike, checkpoints
from tests.chaos.ledger import Ended, Sent, Settled, Tail, of
from tests.chaos.worker import Order

SLACK = 3.0
"""All bounds are this much wider than what dps promises on a quiet machine, for campaigns run on busy ones."""
START_S = 20 * SLACK
RESUME_S = 5 * SLACK
"""After a pause or a killed worker."""
RESTART_S = 10 * SLACK
"""After a fault that costs a ps or the chief: a process is started, and the run rolled back."""
FINISH_S = 15 * SLACK
GONE_S = 1 * SLACK
AFTER_S = 3.0
"""How long it trains on after the faults, so that there is somebody who leads and something to save."""
AFTER_CHIEF_S = 8.0
"""The same where workers train on while another chief is started: it has to know what the first one knew."""
TERM_S = 1.0
"""A task that is asked to end may still serve for so long."""
LOOK_S = 0.05
LOCK = "run.lock"
"""In a checkpoint_dir while a run uses it."""


class Run:
    """`folder` is made and gets everything that the run writes."""

    def __init__(self, case: Case, folder: Path, mark: str) -> None:
        self.case, self.folder, self.mark = case, folder, mark
        self.evidence = Evidence(case)
        self.disk: SmallDisk | None = None
        self._ledgers = {task: Tail(folder / f"worker-{task}.jsonl") for task in range(case.workers)}
        self._pauses: list[threading.Thread] = []

    def go(self) -> Evidence:
        """Run it. Blocks until nothing of it runs any more, whatever happened."""
        self.folder.mkdir(parents=True)
        self.checkpoint_dir = self._checkpoint_dir()
        before = _shared_names()
        self.launched = Launched(self._flags(), self.mark, self.folder)
        try:
            if self._starts(0.0):
                self._meet_faults()
                if self.case.saves and self.evidence.struck(KILL, "launcher"):
                    self._launch_again(before)
            self._finish()
            self._gather(before)
        finally:
            self._tidy()
        return self.evidence

    def _starts(self, since_s: float) -> bool:
        """Wait until all workers train."""
        if self._wait(lambda: self._trained(since_s), START_S):
            return True
        self.evidence.stalled = f"did not start training within {START_S:.0f} s: {self._late(since_s)}"
        return False

    def _launch_again(self, before: set[str]) -> None:
        """The launcher was killed: nothing of the run may be left, and another one goes on from its checkpoints."""
        self.launched.wait(GONE_S)
        self.evidence.left += self._leftovers(before)
        self.evidence.lines += self.launched.lines
        self.launched.leave_nothing()
        began = time.monotonic()
        self.launched = Launched(self._flags(), self.mark, self.folder)
        self.launched.note("launched again")
        if self._starts(began):
            self._wait(self._over, AFTER_S)

    # -- before ---------------------------------------------------------------------------------------------------

    def _checkpoint_dir(self) -> Path | None:
        if not self.case.saves:
            return None
        if self.case.fills_disk:
            self.disk = SmallDisk(self.folder / "disk")
            return self.disk.path
        made = self.folder / "checkpoints"
        made.mkdir()
        return made

    def _flags(self) -> list[str]:
        case = self.case
        order = Order(
            str(self.folder.resolve()), str(self.checkpoint_dir.resolve()) if self.checkpoint_dir else "", case.save_s,
            case.workers, case.update if ":" in case.update and case.mode == "sync" else "", case.pushes, case.loop,
            case.rows, case.pace_s, os.getpid(),
        )  # fmt: skip
        numbers = ["--ps", str(case.ps), "--workers", str(case.workers), "--restarts", str(case.restarts)]
        program = str(ROOT / "tests/chaos/worker.py")
        update = [] if order.update else ["--update", case.launcher_mode]
        return [*numbers, *update, program, "--", order.text()]

    # -- faults ---------------------------------------------------------------------------------------------------

    def _meet_faults(self) -> None:
        """Do all faults, then wait until training goes on, and a little longer."""
        time.sleep(self.case.quiet_s)
        for fault in self.case.faults:
            time.sleep(fault.after_s)
            self._strike(fault)
        for pause in self._pauses:
            pause.join()
        evidence = self.evidence
        over = max((strike.over_s for strike in evidence.strikes), default=time.monotonic())
        over += TERM_S * any(strike.fault.what == TERM for strike in evidence.strikes)
        bound = RESTART_S if self._costs_a_server() else RESUME_S
        if self._wait(lambda: self._trained(over), bound):
            evidence.recovery_s = max(0.0, self._resumed_s(over) - over)
            self._wait(self._over, AFTER_CHIEF_S if evidence.struck(KILL, "chief") else AFTER_S)
        else:
            evidence.stalled = f"no training within {bound:.0f} s of the fault: {self._late(over)}"

    def _strike(self, fault: Fault) -> None:
        self.launched.note(str(fault))
        began = time.monotonic()
        if fault.what == FILL:
            self._fill(fault, began)
            return
        pids = self.launched.pids(fault.target)
        number = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP, TERM: signal.SIGTERM}[fault.what]
        told = self.launched.signal(pids, number)
        if not told:
            self.launched.note(f"{fault.target} was not there")
            return
        if fault.what != STOP:
            done = time.monotonic()
            self.evidence.strikes.append(Strike(fault, done, done, tuple(told)))
            return
        self._later(fault, began, tuple(told), lambda: self.launched.signal(told, signal.SIGCONT))

    def _fill(self, fault: Fault, began: float) -> None:
        assert self.disk is not None
        self.disk.fill()
        if fault.seconds == FOR_GOOD:
            self.evidence.strikes.append(Strike(fault, began, began, ()))
        else:
            self._later(fault, began, (), self.disk.empty)

    def _later(self, fault: Fault, began: float, pids: tuple[int, ...], mend: Callable[[], object]) -> None:
        """The end of a fault that lasts."""

        def end() -> None:
            time.sleep(fault.seconds)
            mend()
            self.launched.note(f"{fault} is over")
            self.evidence.strikes.append(Strike(fault, began, time.monotonic(), pids))

        thread = threading.Thread(target=end)
        thread.start()
        self._pauses.append(thread)

    def _costs_a_server(self) -> bool:
        """Whether a ps or the chief has ended, or has to: a ps that was away for long in a run without checkpoints."""
        return any(
            s.fault.whom not in ("worker", "workers", "disk") and (s.fault.what != STOP or not self.case.saves)
            for s in self.evidence.strikes
        )

    # -- what the workers do, by their ledgers --------------------------------------------------------------------

    def _staying(self) -> list[int]:
        """The workers that no fault has ended."""
        gone = {
            s.fault.task for s in self.evidence.strikes if s.fault.whom == "worker" and s.fault.what in (KILL, TERM)
        }
        return [task for task in range(self.case.workers) if task not in gone]

    def _over(self) -> bool:
        return self.launched.process.poll() is not None

    def _trained(self, since_s: float) -> bool:
        """Whether the run has ended, or every worker that stays has the result of a push that it sent since then."""
        return self._over() or all(self._resumed(task, since_s) is not None for task in self._staying())

    def _resumed(self, task: int, since_s: float) -> float | None:
        """When a worker got the result of its first accepted push that was sent since then."""
        entries, sent = self._ledgers[task].look(), set[int]()
        for entry in entries[bisect_left(entries, since_s, key=lambda entry: entry.at_s) :]:
            if isinstance(entry, Sent):
                sent.add(entry.number)
            elif isinstance(entry, Settled) and entry.accepted and entry.number in sent:
                return entry.at_s
        return None

    def _resumed_s(self, since_s: float) -> float:
        if self._over():
            return time.monotonic()
        return max((self._resumed(task, since_s) or since_s for task in self._staying()), default=since_s)

    def _late(self, since_s: float) -> str:
        late = [f"worker:{task}" for task in self._staying() if self._resumed(task, since_s) is None]
        return ", ".join(late) or "nobody"

    def _wait(self, done: Callable[[], bool], patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while not done():
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_S)
        return True

    # -- after ----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Have the workers end, and wait for the launcher. A run that stalled is not waited for."""
        (self.folder / "finish").touch()
        self.launched.note("finish")
        code = self.launched.wait(1.0 if self.evidence.stalled else FINISH_S)
        self.evidence.code = code
        if code is None and not self.evidence.stalled:
            late = [t for t in range(self.case.workers) if not of(Ended, self._ledgers[t].look())]
            who = ", ".join(f"worker:{t}" for t in late) or "the launcher, all workers have ended"
            self.evidence.stalled = f"did not end within {FINISH_S:.0f} s: {who}"

    def _gather(self, before: set[str]) -> None:
        evidence = self.evidence
        if evidence.code is not None:
            evidence.left += self._leftovers(before)
        evidence.lines += self.launched.lines
        evidence.ledgers = {task: self._ledgers[task].look() for task in range(self.case.workers)}
        if self.checkpoint_dir is not None:
            evidence.saved = checkpoints(self.checkpoint_dir, self.case.workers)
            if self.disk is not None:
                shutil.copytree(self.checkpoint_dir, self.folder / "checkpoints")

    def _leftovers(self, before: set[str]) -> list[str]:
        """What the run has left behind: processes, shared memory, temporary files. Blocks up to 3 s."""
        self._wait(lambda: not marked(self.mark), GONE_S)
        left = [f"process {pid}" for pid in marked(self.mark)]
        left += [f"/dev/shm/{name}" for name in sorted(_shared_names() - before)]
        for folder in (self.launched.work, self.launched.temporary):
            left += [str(path.relative_to(self.folder)) for path in sorted(folder.rglob("*"))]
        if self.checkpoint_dir is not None:
            left += [str(path.relative_to(self.checkpoint_dir)) for path in sorted(self.checkpoint_dir.glob(".*"))]
            if self.evidence.code == 0 and (self.checkpoint_dir / LOCK).exists():
                left.append(LOCK)
        return left

    def _tidy(self) -> None:
        for pause in self._pauses:
            pause.join()
        self.launched.leave_nothing()
        if self.disk is not None:
            self.disk.remove()


def _shared_names() -> set[str]:
    """What of dps's is in /dev/shm. Other programs may use it meanwhile."""
    return {name for name in os.listdir("/dev/shm") if "dps" in name} if os.path.isdir("/dev/shm") else set()

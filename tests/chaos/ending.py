"""How a chaos run may end: which exit codes its faults allow, and which task the last lines have to name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.chaos.cases import FILL, FOR_GOOD, KILL, STOP, TERM
from tests.chaos.evidence import Evidence, Strike
from tests.chaos.ledger import Ended, of

LAST_LINES = 25
SPEAKER = re.compile(r"^\[[^]]*\] (?:dps: )?(?:(?:chief|ps:\d+|worker:\d+): )?")
"""[who] and "who: " at the beginning of a line."""
PROGRAM_FAILED, SAVE_FAILED, TASK_LOST = 1, 2, 3
FULL = "journal", "No space left"


@dataclass(frozen=True)
class End:
    """An exit code, and texts of which one must stand in the last lines; no texts: nothing need be said."""

    code: int
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}" + (f" that names {' or '.join(self.names)}" if self.names else "")


def judge_end(evidence: Evidence) -> list[str]:
    """The run ended within its time, with the right exit code, and said why; no worker failed that was not struck."""
    if evidence.stalled:
        return [evidence.stalled]
    ends = allowed(evidence)
    last = "\n".join(said(line.text) for line in evidence.lines[-LAST_LINES:])
    if not any(end.code == evidence.code and (not end.names or any(n in last for n in end.names)) for end in ends):
        return [f"exit code {evidence.code}; right is {', or '.join(map(str, ends))}"]
    return _judge_workers(evidence) if evidence.code == 0 else []


def said(text: str) -> str:
    """A line of the launcher's output without the names of those who say it; "" for a checkpoint that was saved."""
    rest = SPEAKER.sub("", text)
    return "" if rest.startswith("saved ") else rest


def _judge_workers(evidence: Evidence) -> list[str]:
    found = []
    for task, entries in evidence.ledgers.items():
        ended = of(Ended, entries)
        if not ended or ended[-1].error:
            found.append(f"exit code 0, but worker:{task} {'failed: ' + ended[-1].error if ended else 'never ended'}")
    return found


def allowed(evidence: Evidence) -> list[End]:
    """The ends that the faults allow. A run that can go on has to."""
    case = evidence.case
    if evidence.struck(KILL, "launcher"):
        return [End(0 if case.saves else -9)]  # with checkpoints it is launched again
    if case.fills_disk:
        return _with_a_full_disk(evidence)
    killed = {s.fault.target for s in evidence.struck(KILL, "worker")}
    well = End(PROGRAM_FAILED) if killed else End(0)
    if len(killed) == case.workers:
        return [End(PROGRAM_FAILED), End(TASK_LOST, tuple(sorted(killed)))]
    gone = [*_killed_servers(evidence), *evidence.struck(TERM, "ps")]  # a chief that is told to end saves, and ends all
    lost = End(TASK_LOST, tuple(strike.fault.target for strike in gone))
    if gone and (case.restarts == 0 or not (case.saves or all(s.fault.whom == "chief" for s in gone))):
        return [lost]
    return [well, *_after_pauses(evidence)]


def _killed_servers(evidence: Evidence) -> list[Strike]:
    return [strike for whom in ("ps", "chief") for strike in evidence.struck(KILL, whom)]


def _after_pauses(evidence: Evidence) -> list[End]:
    """A pause may cost a ps its place in a run without checkpoints; so long a one of all workers, the run."""
    ends = []
    paused = evidence.struck(STOP)
    if not evidence.case.saves and (names := [s.fault.target for s in paused if s.fault.whom == "ps"]):
        ends.append(End(TASK_LOST, tuple(names)))
    if not evidence.case.saves and any(s.fault.whom == "everything" for s in paused):
        ends.append(End(TASK_LOST, tuple(f"ps:{task}" for task in range(evidence.case.ps))))
    if any(s.fault.whom == "workers" and s.fault.seconds > 10 for s in paused):
        ends.append(End(TASK_LOST, tuple(f"worker:{task}" for task in range(evidence.case.workers))))
    return ends


def _with_a_full_disk(evidence: Evidence) -> list[End]:
    """A disk that stays full: the last checkpoint cannot be written. One that was full for a while changes nothing,
    unless a server had to begin anew just then."""
    servers = _killed_servers(evidence)
    ends = [] if servers and evidence.case.restarts == 0 else [End(0)]
    if any(s.fault.seconds == FOR_GOOD for s in evidence.struck(FILL)):
        ends = [End(SAVE_FAILED, ("checkpoint",)), End(TASK_LOST, ("checkpoint", "journal"))]
    if servers:
        names = tuple(s.fault.target for s in servers)
        ends += [End(TASK_LOST, (*names, *FULL)), End(PROGRAM_FAILED, FULL), End(SAVE_FAILED, FULL)]
    return ends

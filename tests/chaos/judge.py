"""Whether a chaos run kept what dps promises: each promise is a function from the evidence to what was wrong."""

from __future__ import annotations

import re
from itertools import pairwise

from tests.chaos import model
from tests.chaos.books import Book, base, book, counted, counts, seen
from tests.chaos.cases import FILL, KILL
from tests.chaos.ending import judge_end
from tests.chaos.evidence import Evidence, Saved
from tests.chaos.ledger import Led, NothingNew, Opened, RolledBack, Saw, Settled, of

SHOWN = 3
"""So many complaints of one kind are told, and how many more there are."""
LOST = re.compile(r"run epoch (\d+).*?(at least )?(\d+) steps? (?:were |was |are )?lost")
TOLD = 120
"""So many characters of a line are told."""
SETTLE_S = 1.5
"""How long after the faults there may be no leader."""


def judge(evidence: Evidence) -> list[str]:
    """All that was wrong with a run; an empty list when nothing was."""
    promises = (
        judge_end, judge_what_workers_saw, judge_checkpoints, judge_last_checkpoint, judge_announcements, judge_leaders,
        judge_leftovers,
    )  # fmt: skip
    return [text for promise in promises for text in _shortened(promise(evidence))]


def _shortened(found: list[str]) -> list[str]:
    more = len(found) - SHOWN
    return found if more <= 0 else [*found[:SHOWN], f"... and {more} more of this kind"]


# -- counts -------------------------------------------------------------------------------------------------------


def judge_what_workers_saw(evidence: Evidence) -> list[str]:
    """A pull has all of this worker's accepted pushes of the epoch in it, once each, on top of the epoch's start."""
    found = []
    for task, entries in evidence.ledgers.items():
        starts: dict[int, dict[str, float]] = {}
        for saw, account in seen(evidence, entries, Saw):
            if saw.epoch not in starts:
                starts[saw.epoch] = _start(evidence, saw.epoch, task)
            own = counts({name: saw.values[name] for name in counted(evidence)})
            if isinstance(own, str):
                found.append(f"worker:{task} in epoch {saw.epoch}: {own}")
                continue
            for name, count in own.items():
                least = starts[saw.epoch][name] + account.sure - account.pending
                more = account.pending + account.open
                if not least <= count <= least + more:
                    found.append(
                        f"worker:{task} in epoch {saw.epoch} saw {count:g} of its pushes in {name}; "
                        f"{_range(least, more)} are right, {account.sure} of them accepted in this epoch"
                    )
        found += [
            f"worker:{task} in epoch {entry.epoch}: if_newer_than said that nothing changed after a push"
            for entry, account in seen(evidence, entries, NothingNew)
            if not account.pending
        ]
    return found


def judge_checkpoints(evidence: Evidence) -> list[str]:
    """Every checkpoint has no more in it than was sent since its epoch began; in sync it is one step."""
    found, books = [], _books(evidence)
    for saved in evidence.saved:
        for task, own_book in books.items():
            account = own_book.account(saved.epoch)
            found += _between(evidence, saved, task, 0, account.sure + account.open)
        if evidence.case.mode == "sync":
            found += _one_step(evidence, saved)
    return found


def judge_last_checkpoint(evidence: Evidence) -> list[str]:
    """A run that ended as it should has saved its last step: all accepted pushes of the last epoch are in it."""
    if not (evidence.case.saves and _ended_well(evidence)) or evidence.stalled:
        return []
    if not evidence.saved:
        return ["the run ended well and wrote no checkpoint"]
    books = _books(evidence)
    last = max(epoch for own_book in books.values() for epoch in own_book.epochs)
    saved = evidence.saved[-1]
    if saved.epoch < last:
        return [f"the last checkpoint is {saved.name}; the run ended in epoch {last}"]
    found = []
    for task, own_book in books.items():
        account = own_book.account(saved.epoch)
        found += _between(evidence, saved, task, account.sure, account.sure + account.open)
    return found


def _between(evidence: Evidence, saved: Saved, task: int, least: int, most: int) -> list[str]:
    """Complaints unless a checkpoint has so many pushes of a worker in it that its epoch began without."""
    start = _start(evidence, saved.epoch, task)
    own = counts({name: saved.values[task][name] for name in counted(evidence)})
    if isinstance(own, str):
        return [f"checkpoint {saved.name}, worker:{task}: {own}"]
    return [
        f"checkpoint {saved.name} has {count:g} pushes of worker:{task} in {name}; "
        f"{_range(start[name] + least, most - least)} are right"
        for name, count in own.items()
        if not start[name] + least <= count <= start[name] + most
    ]


def _one_step(evidence: Evidence, saved: Saved) -> list[str]:
    """In sync all ps save the same step, and dense gradients add up to one of `model.DENSE` for each step."""
    found = []
    for task, values in enumerate(saved.values):
        own = counts({name: values[name] for name in counted(evidence)})
        if not isinstance(own, str) and len(set(own.values())) > 1:
            found.append(f"checkpoint {saved.name} is no single step: worker:{task} has {own} pushes in it")
    for name in model.DENSE_NAMES if evidence.case.pushes == "both" else ():
        total = -sum(values[name][0] for values in saved.values)
        if total != model.DENSE * saved.step:
            found.append(f"checkpoint {saved.name}: {name} holds {total / model.DENSE:g} steps")
    return found


def _start(evidence: Evidence, epoch: int, task: int) -> dict[str, float]:
    """How many of a worker's pushes a run epoch began with."""
    saved = base(evidence, epoch)
    if saved is None:
        return dict.fromkeys(counted(evidence), 0.0)
    return {name: -saved.values[task][name][0] / model.unit(name) for name in counted(evidence)}


def _books(evidence: Evidence) -> dict[int, Book]:
    return {task: book(evidence, entries) for task, entries in evidence.ledgers.items()}


def _range(least: float, more: float) -> str:
    return f"{least:g}" if not more else f"{least:g} to {least + more:g}"


def _ended_well(evidence: Evidence) -> bool:
    """Exit code 0, or 1 for no other reason than a worker that was killed."""
    for_good = [s for s in evidence.struck(FILL) if s.at_s == s.over_s]
    return evidence.code == 0 or (evidence.code == 1 and bool(evidence.struck(KILL, "worker")) and not for_good)


# -- what people are told -----------------------------------------------------------------------------------------


def judge_announcements(evidence: Evidence) -> list[str]:
    """Each rollback is told to every worker that goes on, with the step and how many steps are lost."""
    found = []
    entered: dict[int, set[int]] = {}
    for task, entries in evidence.ledgers.items():
        told = {entry.epoch for entry in of(RolledBack, entries)}
        opened = {entry.epoch for entry in of(Opened, entries)}
        for epoch in sorted({entry.epoch for entry in of(Settled, entries) if entry.accepted} - opened):
            entered.setdefault(epoch, set()).add(task)
            if epoch not in told:
                found.append(f"worker:{task} trained in epoch {epoch} and was not told of its rollback")
        for entry in of(RolledBack, entries):
            saved = base(evidence, entry.epoch)
            if entry.step != (saved.step if saved else 0):
                start = f"{saved.name}, the newest checkpoint" if saved else "the start"
                found.append(f"worker:{task} was told that epoch {entry.epoch} begins at {entry.step}, not {start}")
    for epoch in sorted(entered):
        found += _judge_lost(evidence, epoch)
    return found


def _judge_lost(evidence: Evidence, epoch: int) -> list[str]:
    """The announced number of lost steps: exact, or less where it says "at least"."""
    saved = base(evidence, epoch)
    least, most = lost(evidence, epoch, saved.step if saved else 0)
    found = []
    for line in evidence.lines:
        told = LOST.search(line.text)
        if told is None or int(told[1]) != epoch:
            continue
        number, at_least = int(told[3]), bool(told[2])
        if number > most or (number < least and not at_least):
            right = f"{least}" if least == most else f"{least} to {most}"
            found.append(f"{right} steps were lost before epoch {epoch}; this was said: {line.text[:TOLD]}")
    return found


def lost(evidence: Evidence, epoch: int, step: int) -> tuple[int, int]:
    """The least and the most steps that can be lost when `epoch` begins at `step`, by what the workers wrote down."""
    books = _books(evidence)
    before = max((e for own in books.values() for e in own.epochs if e < epoch), default=None)
    if before is None:
        return 0, 0
    start = base(evidence, before)
    if evidence.case.mode == "sync":
        settled = [entry for entries in evidence.ledgers.values() for entry in of(Settled, entries)]
        reached = max((entry.step for entry in settled if entry.accepted and entry.epoch == before), default=step)
        return max(0, reached - step), max(0, reached + 1 - step)
    accounts = [own.account(before) for own in books.values()]
    sure = (start.step if start else 0) + sum(account.sure for account in accounts)
    return max(0, sure - step), max(0, sure + sum(account.open for account in accounts) - step)


def judge_leaders(evidence: Evidence) -> list[str]:
    """Never two workers with `is_chief` at one time, and somebody who has it when the faults are over."""
    found = []
    asked = {task: of(Led, entries) for task, entries in evidence.ledgers.items()}
    for task, answers in asked.items():
        others = [entry for other, entries in asked.items() if other > task for entry in entries if entry.leads]
        for one, two in pairwise(answers):
            led = one.leads and two.leads and one.incarnation == two.incarnation
            if led and any(one.at_s < entry.asked_s and entry.at_s < two.asked_s for entry in others):
                found.append(f"worker:{task} and another one both had is_chief after {one.at_s:.2f} s")
    if evidence.recovery_s is not None and evidence.strikes and _ended_well(evidence):
        over = max(strike.over_s for strike in evidence.strikes) + evidence.recovery_s + SETTLE_S
        late = [entry for answers in asked.values() for entry in answers if entry.asked_s > over]
        if late and not any(entry.leads for entry in late):
            found.append(f"no worker had is_chief from {SETTLE_S:g} s after the recovery on; asked {len(late)} times")
    return found


def judge_leftovers(evidence: Evidence) -> list[str]:
    """Nothing is left when a run is over."""
    return [f"left behind: {', '.join(evidence.left)}"] if evidence.left else []

"""The judge of chaos runs: a run without a fault in its books passes, and each broken promise is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos import model
from tests.chaos.cases import FILL, FOR_GOOD, KILL, STOP, TERM, Case, Fault, draw
from tests.chaos.cluster import Line
from tests.chaos.evidence import Evidence, Saved, Strike
from tests.chaos.judge import judge
from tests.chaos.ledger import Ended, Entry, Led, NothingNew, Opened, RolledBack, Saw, Sent, Settled, Values

NAMES = ("dense0", "dense1")


class Writer:
    """Writes a worker's ledger as the worker program does; counts what it says that the ps must hold."""

    def __init__(self) -> None:
        self.entries: list[Entry] = [Opened(0.0, 1, 0)]
        self.epoch, self.incarnation, self.number, self.count = 1, 7, 0, 0

    @property
    def now(self) -> float:
        return float(len(self.entries))

    def push(self, times: int = 1) -> Writer:
        for _ in range(times):
            self.send()
            self.count += 1
            self.entries.append(Settled(self.now, self.number, True, self.count, self.epoch, self.incarnation))
            self.see(self.count)
        return self

    def send(self) -> Writer:
        self.number += 1
        self.entries.append(Sent(self.now, self.number, self.epoch, self.incarnation))
        return self

    def see(self, count: int) -> Writer:
        self.entries.append(Saw(self.now, self.epoch, values(count)))
        return self

    def roll_back(self, count: int, step: int, lost: int) -> Writer:
        self.epoch, self.incarnation, self.count = self.epoch + 1, self.incarnation + 1, count
        self.entries.append(RolledBack(self.now, self.epoch, step, lost))
        return self

    def end(self) -> Writer:
        self.entries.append(Ended(self.now, ""))
        return self


def values(count: int, names: tuple[str, ...] = NAMES) -> Values:
    return {name: (-model.unit(name) * count, -model.unit(name) * count) for name in names}


def case(mode: str = "async", **fields: object) -> Case:
    made = replace(draw(f"{KILL} ps", mode, 1), ps=2, workers=2, pushes="dense", saves=True, restarts=2, seed=1)
    return replace(made, **fields)  # type: ignore[arg-type]


def strike(what: str = KILL, whom: str = "ps", seconds: float = 0.0, over_s: float = 10.5) -> Strike:
    return Strike(Fault(what, whom, seconds), 10.5, over_s, (1,))


def evidence() -> Evidence:
    """ps:0 is killed after 5 and 4 pushes; the checkpoint has 3 and 2 of them; then 2 and 3 more."""
    workers = [
        Writer().push(5).roll_back(3, step=5, lost=4).push(2).end(),
        Writer().push(4).roll_back(2, step=5, lost=4).push(3).end(),
    ]
    return Evidence(
        case(),
        {task: writer.entries for task, writer in enumerate(workers)},
        [Saved(1, 5, (values(3), values(2))), Saved(2, 10, (values(5), values(5)))],
        [Line(11.0, "[worker:0] worker:0: rolled back to step 5 in run epoch 2, 4 steps lost")],
        [strike()],
        code=0,
        recovery_s=1.0,
    )


def test_a_run_that_kept_its_promises_passes() -> None:
    assert judge(evidence()) == []


def complaint(found: Evidence, *texts: str) -> None:
    """There is at least one complaint, and each text stands in one of them."""
    said = "\n".join(judge(found))
    assert said, "the judge found nothing"
    for text in texts:
        assert text in said


def test_an_update_applied_twice_is_found_by_the_worker() -> None:
    found = evidence()
    found.ledgers[0] = Writer().push(2).see(3).end().entries
    complaint(found, "saw 3 of its pushes in dense0; 2 are right")


def test_an_accepted_push_that_is_gone_without_a_rollback_is_found() -> None:
    found = evidence()
    found.ledgers[0] = Writer().push(2).see(1).end().entries
    complaint(found, "saw 1 of its pushes in dense0; 2 are right")


def test_a_push_without_a_result_may_be_there_or_not() -> None:
    for count in (2, 3):
        found = evidence()
        found.ledgers[0] = Writer().push(2).send().see(count).entries
        assert not [text for text in judge(found) if "saw" in text]


def test_a_push_accepted_around_a_rollback_is_in_the_epoch_before_or_after() -> None:
    for saved in (2, 3):
        found, worker = evidence(), Writer().push(2).send()
        worker.roll_back(saved, saved, 0).entries.append(Settled(9.0, 3, True, 3, 2, 8))
        found.ledgers[0] = worker.see(3).entries
        found.saved = [Saved(1, saved, (values(saved), values(3)))]
        assert not [text for text in judge(found) if "worker:0 in epoch 2 saw" in text]


def test_a_run_epoch_that_is_used_twice_is_found() -> None:
    found = evidence()
    twice = Writer().push(5)
    twice.count = 3
    found.ledgers[0] = twice.push(1).end().entries
    complaint(found, "worker:0 in epoch 1 saw 4 of its pushes")


def test_an_update_that_is_half_applied_is_found() -> None:
    found = evidence()
    found.ledgers[0][3] = Saw(3.0, 1, {"dense0": (-6.0, 0.0), "dense1": (-6.0, -6.0)})
    complaint(found, "dense0 is torn")


def test_a_checkpoint_with_more_than_was_sent_is_found() -> None:
    found = evidence()
    found.saved[0] = Saved(1, 5, (values(6), values(2)))
    complaint(found, "has 6 pushes of worker:0")


def test_a_last_checkpoint_without_the_last_pushes_is_found() -> None:
    found = evidence()
    found.saved[-1] = Saved(2, 9, (values(5), values(4)))
    complaint(found, "has 4 pushes of worker:1 in dense0; 5 are right")


def test_a_last_epoch_without_a_checkpoint_is_found() -> None:
    found = evidence()
    del found.saved[-1]
    complaint(found, "the last checkpoint is step 5 of epoch 1; the run ended in epoch 2")


def test_the_last_checkpoint_of_a_run_that_failed_is_not_asked_for() -> None:
    found = evidence()
    found.code, found.case = 3, case(restarts=0)
    found.lines.append(Line(12.0, "[dps] the run is over: ps:0 was lost (SIGKILL)"))
    del found.saved[-1]
    assert judge(found) == []


def test_a_worker_that_was_killed_leaves_exit_code_1_and_the_last_checkpoint_all_the_same() -> None:
    found = evidence()
    found.strikes.append(strike(KILL, "worker"))
    found.code = 1
    found.ledgers[0] = found.ledgers[0][:-1]
    assert judge(found) == []
    del found.saved[-1]
    complaint(found, "the run ended in epoch 2")


def test_too_few_announced_losses_are_found_and_at_least_says_so() -> None:
    found = evidence()
    found.lines = [Line(11.0, "rolled back to step 5 in run epoch 2, 3 steps lost")]
    complaint(found, "4 steps were lost before epoch 2")
    found.lines = [Line(11.0, "rolled back to step 5 in run epoch 2, at least 3 steps lost")]
    assert judge(found) == []
    found.lines = [Line(11.0, "rolled back to step 5 in run epoch 2, at least 5 steps lost")]
    complaint(found, "4 steps were lost before epoch 2")


def test_a_rollback_that_nobody_was_told_of_is_found() -> None:
    found = evidence()
    found.ledgers[1] = [entry for entry in found.ledgers[1] if not isinstance(entry, RolledBack)]
    complaint(found, "worker:1 trained in epoch 2 and was not told of its rollback")


def test_a_rollback_to_another_step_than_the_newest_checkpoints_is_found() -> None:
    found = evidence()
    found.ledgers[0] = Writer().push(5).roll_back(3, step=4, lost=4).push(2).end().entries
    complaint(found, "was told that epoch 2 begins at 4, not step 5 of epoch 1")


def test_two_leaders_at_one_time_are_found() -> None:
    found = evidence()
    found.ledgers[0] += [Led(30.0, 30.0, True, 1), Led(31.0, 31.0, True, 1)]
    found.ledgers[1] += [Led(30.5, 30.4, True, 2)]
    complaint(found, "both had is_chief")


def test_one_who_led_before_it_was_lost_and_after_it_came_back_is_no_second_leader() -> None:
    found = evidence()
    found.ledgers[0] += [Led(30.0, 30.0, True, 1), Led(31.0, 31.0, True, 3)]
    found.ledgers[1] += [Led(30.5, 30.4, True, 2)]
    assert judge(found) == []


def test_a_run_without_a_leader_is_found() -> None:
    found = evidence()
    for entries in found.ledgers.values():
        entries.append(Led(30.0, 30.0, False, 1))
    complaint(found, "no worker had is_chief")


def test_nothing_new_after_an_accepted_push_is_found() -> None:
    found = evidence()
    found.ledgers[0].append(NothingNew(20.0, 2))
    complaint(found, "if_newer_than said that nothing changed")


def test_nothing_is_new_after_a_push_for_a_step_that_is_not_complete() -> None:
    found = Evidence(case("sync", pushes="rows"), {0: [], 1: []}, code=1)
    for step, right in ((0, True), (1, False)):
        worker = Writer().send()
        worker.entries += [Settled(3.0, 1, True, step, 1, 7), NothingNew(4.0, 1)]
        found.ledgers[0] = worker.entries
        assert (not [text for text in judge(found) if "if_newer_than" in text]) == right


def test_a_stall_is_told_and_its_exit_code_is_not_asked_for() -> None:
    found = evidence()
    found.code, found.recovery_s, found.stalled = None, None, "no training within 15 s of the fault: worker:1"
    assert judge(found) == [found.stalled]


def test_what_is_left_behind_is_found() -> None:
    found = evidence()
    found.left = ["process 12", "tmp/socket"]
    complaint(found, "left behind: process 12, tmp/socket")


def test_a_synchronous_checkpoint_has_to_be_one_step_on_all_ps() -> None:
    found = Evidence(case("sync", pushes="both"), {0: [], 1: []}, code=1)
    names = ("dense0", "dense1", "rows0", "rows1")
    whole = values(2, names) | dict.fromkeys(NAMES, (-6.0, -6.0))
    found.ledgers = {task: Writer().entries + [Sent(1.0, n, 1, 7) for n in range(9)] for task in range(2)}
    found.saved = [Saved(1, 2, (whole, whole))]
    assert not [text for text in judge(found) if "checkpoint" in text]
    found.saved = [Saved(1, 2, (whole | {"rows1": (-3.0, -3.0)}, whole))]
    complaint(found, "is no single step")
    found.saved = [Saved(1, 2, (whole | {"dense0": (-12.0, -12.0)}, whole))]
    complaint(found, "dense0 holds 3 steps")


def test_two_pushes_of_a_worker_in_one_synchronous_step_count_once_in_rows() -> None:
    found = Evidence(case("sync", pushes="rows"), {0: [], 1: []}, code=1)
    for step, counts in ((1, (0, 1)), (0, (0,))):
        worker = Writer()
        for number in (1, 2):
            result = step if number == 2 else 0
            worker.send().entries.append(Settled(worker.now, number, True, result, 1, 7))
        for count in range(3):
            found.ledgers[0] = [*worker.entries, Saw(9.0, 1, values(count, ("rows0", "rows1")))]
            right = not [text for text in judge(found) if "saw" in text]
            assert right == (count == 1 or (step == 0 and count in counts))


@pytest.mark.parametrize(
    ("struck", "fields", "code", "line", "right"),
    [
        (strike(), {}, 0, "", True),
        (strike(), {}, 3, "ps:0 was lost", False),
        (strike(), {"saves": False}, 3, "ps:0 was lost", True),
        (strike(), {"saves": False}, 3, "the chief was lost", False),
        (strike(), {"saves": False}, 0, "", False),
        (strike(), {"restarts": 0}, 0, "", False),
        (strike(TERM), {}, 0, "", True),
        (strike(TERM), {}, 3, "ps:0 was told to end", False),
        (strike(TERM), {"saves": False}, 3, "ps:0 was told to end", True),
        (strike(TERM), {"saves": False}, 3, "the chief was silent", False),
        (strike(TERM, "chief"), {"saves": False}, 0, "", True),
        (strike(TERM, "chief"), {}, 3, "the chief was told to end", False),
        (strike(KILL, "chief"), {"saves": False}, 0, "", True),
        (strike(STOP, "ps", 5.0), {}, 3, "ps:0 was lost", False),
        (strike(STOP, "ps", 5.0), {"saves": False}, 3, "ps:0 was lost", True),
        (strike(STOP, "worker", 30.0), {}, 1, "", False),
        (strike(STOP, "workers", 30.0), {}, 3, "worker:0, worker:1 were lost", True),
        (strike(STOP, "workers", 30.0), {}, 0, "", True),
        (strike(KILL, "launcher"), {}, 0, "", True),
        (strike(KILL, "launcher"), {"saves": False}, -9, "", True),
        (strike(KILL, "worker"), {}, 0, "", False),
        (strike(TERM, "worker"), {}, 0, "", True),
        (strike(FILL, "disk", 3.0), {}, 0, "", True),
        (strike(FILL, "disk", 3.0), {}, 2, "the last checkpoint could not be written", False),
        (strike(FILL, "disk", FOR_GOOD), {}, 2, "the last checkpoint could not be written", True),
        (strike(FILL, "disk", FOR_GOOD), {}, 0, "", False),
    ],
)
def test_which_ends_the_faults_allow(
    struck: Strike, fields: dict[str, object], code: int, line: str, right: bool
) -> None:
    found = evidence()
    found.case = case(faults=(struck.fault,), **fields)  # type: ignore[arg-type]
    found.strikes, found.code = [struck], code
    found.lines.append(Line(20.0, line))
    assert (not [text for text in judge(found) if "exit code" in text]) == right

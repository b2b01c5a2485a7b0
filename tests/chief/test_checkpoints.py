"""Checkpoints of the run: all shards at one cut, written, committed; one at a time, and none after the epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.actors.ref import Ref
from dps.checkpoint import MemoryStorage, load, write_shard
from dps.checkpoint.files import tensor_name
from dps.chief.checkpoints import Checkpoints
from dps.errors import Aborted, CheckpointError, DeadlineExceeded
from dps.messages.runs import CutShard, SaveShard, ShardCut, ShardSaved
from dps.variables.plan import VariableSpec, make_plan
from tests.chief.desk import Desk, Question
from tests.variables.models import ADAM

SPECS = [VariableSpec("a", (2,), "<f4", ADAM), VariableSpec("b", (3,), "<i8", None)]
PLAN = make_plan(SPECS, (0, 1), lambda name, *_: "ab".index(name), None)
VALUES: list[list[Any]] = [[np.ones(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)], [np.arange(3)]]
NAMES = [
    [tensor_name("a", 0, 1, slot) for slot in (None, "first_moment", "second_moment")],
    [tensor_name("b", 0, 1, None)],
]


class Run:
    """A chief's checkpoints, with ps that cut and write when the test says so."""

    def __init__(self, keep: int = 5, before_write: Any = None) -> None:
        self.storage = MemoryStorage(before_write)
        self.desk = Desk(self.storage)
        node: Any = self.desk
        refs = {ps: Ref(f"ps:{ps}", "ps") for ps in PLAN.ps}
        self.checkpoints = Checkpoints(node, 2, PLAN, refs, "run", keep, {"update": "async"})
        self.results: list[tuple[str | Exception, int]] = []

    def save(self, position: bytes = b"", asker: Any = None) -> None:
        self.checkpoints.save(lambda name, step: self.results.append((name, step)), position, asker)

    def position(self, name: str) -> bytes:
        return bytes(self.storage.read(f"run/{name}/input.json"))

    def cut(
        self, steps: tuple[int, int], counters: tuple[int, int] = (9, 7), counted: tuple[int, int] | None = None
    ) -> list[Question]:  # fmt: skip
        """Both shards are copied; what the ps are asked next. `counted` None: the step ps counts all steps."""
        about = zip(steps, counters, ([4], [0]), counted or (steps[0], 0), strict=True)
        for question, (step, counter, applied, own) in zip(self.desk.take(), about, strict=True):
            assert isinstance(question.message, CutShard) and question.message.epoch == 2
            question.answer(ShardCut(step, counter, applied, counted=own))
        return self.desk.take()

    def write(self, questions: list[Question]) -> None:
        for ps, question in enumerate(questions):
            message = question.message
            assert isinstance(message, SaveShard)
            tensors = dict(zip(NAMES[ps], VALUES[ps], strict=True))
            file = write_shard(self.storage, f"{message.checkpoint_dir}/{message.name}", ps, 2, tensors, {})
            question.answer(ShardSaved(file.file, file.nbytes, file.digest))


def test_all_shards_are_cut_then_written_then_committed() -> None:
    run = Run()
    run.save()
    assert run.checkpoints.is_busy
    run.write(run.cut((12, 12)))
    name = "step-000000000012-epoch-000002"
    assert run.results == [(name, 12)] and not run.checkpoints.is_busy
    assert (run.checkpoints.saved_name, run.checkpoints.saved_at) == (name, 1.7e9)
    manifest = load(run.storage, "run", name)
    assert [shard.version for shard in manifest.shards] == [9, 7]
    a, b = manifest.variables
    assert (a.parts[0].t, a.slots, a.shape) == (4, ("first_moment", "second_moment"), (2,))
    assert (b.slots, b.optimizer, b.dtype) == ((), None, "int64")


def test_a_large_shard_has_the_time_that_a_slow_disk_takes_for_it() -> None:
    def longest_s(elements: int) -> set[float]:
        run, made = Run(), make_plan([VariableSpec("a", (elements,), "<f4", ADAM)], (0, 1), lambda *_: 0, None)
        run.checkpoints.plan = made
        run.save()
        return {question.timeout_s for question in run.cut((1, 1))}

    (small,), (large,) = longest_s(10), longest_s(25 * 10**9)  # 100 GB, and two slots of Adam
    assert 120 <= small < 121 and large > 300e9 / 10e6


def test_the_step_of_an_async_checkpoint_is_that_of_the_step_ps_and_versions_are_each_shards_own() -> None:
    run = Run()
    run.save()
    run.write(run.cut((12, 10), (12, 10)))
    manifest = load(run.storage, "run", "step-000000000012-epoch-000002")
    assert manifest.step == 12 and [shard.version for shard in manifest.shards] == [12, 10]


def test_the_step_is_what_all_shards_count_and_where_another_ps_counts_they_are_not_said_to_be_even() -> None:
    run = Run()
    run.save()
    run.write(run.cut((14, 13), counted=(12, 3)))  # the step ps has heard of two of the three
    manifest = load(run.storage, "run", "step-000000000015-epoch-000002")
    assert manifest.step == run.results[0][1] == 15 and not manifest.even
    run.save()
    run.write(run.cut((16, 15), (10, 8), counted=(16, 0)))
    assert load(run.storage, "run", "step-000000000016-epoch-000002").even


def test_a_step_that_is_saved_is_not_written_again() -> None:
    run = Run()
    run.save()
    run.write(run.cut((12, 12)))
    run.save()
    assert run.cut((12, 12)) == []
    assert run.results == [("step-000000000012-epoch-000002", 12)] * 2


def test_whoever_asks_during_a_save_gets_the_next_one_together() -> None:
    run = Run()
    for _ in range(3):
        run.save()
    run.write(run.cut((12, 12)))
    assert [step for _, step in run.results] == [12] and run.checkpoints.is_busy
    run.write(run.cut((15, 15)))
    assert [step for _, step in run.results] == [12, 15] and run.checkpoints.is_busy
    assert run.cut((15, 15)) == []  # the third asks anew, and that step is saved
    assert [step for _, step in run.results] == [12, 15, 15] and not run.checkpoints.is_busy


def test_a_request_that_is_sent_again_makes_no_second_checkpoint() -> None:
    run = Run()
    for asker in ((1, 7), (1, 7), (2, 3), (1, 7), (2, 3)):
        run.save(asker=asker)
    run.write(run.cut((12, 12)))
    assert [step for _, step in run.results] == [12] and run.checkpoints.is_busy  # to the last of the three
    run.write(run.cut((15, 15)))
    assert [step for _, step in run.results] == [12, 15] and not run.checkpoints.is_busy
    run.save(asker=(2, 3))  # its answer was lost
    assert [step for _, step in run.results] == [12, 15, 15] and run.desk.take() == []
    run.save(asker=(2, 4))
    run.write(run.cut((18, 18)))
    assert [step for _, step in run.results] == [12, 15, 15, 18]


def test_a_save_that_is_asked_for_when_one_is_done_is_begun_once() -> None:
    run = Run()
    run.checkpoints.save(lambda name, step: run.save())
    run.write(run.cut((12, 12)))
    run.write(run.cut((15, 15)))
    assert [step for _, step in run.results] == [15] and not run.checkpoints.is_busy and run.desk.take() == []


@pytest.mark.parametrize("error", [DeadlineExceeded("ps:1 did not answer"), CheckpointError("No space left")])
def test_a_ps_that_fails_fails_the_save_and_the_next_one_is_new(error: Exception) -> None:
    run = Run()
    run.save()
    first, second = run.desk.take()
    second.answer(error)
    first.answer(ShardCut(12, 9, [4], counted=12))
    assert run.results == [(error, -1)] and not run.checkpoints.is_busy and run.desk.take() == []
    run.save()
    run.write(run.cut((13, 13)))
    assert run.results[-1][1] == 13


def test_a_save_that_fails_again_in_the_same_way_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    full = CheckpointError("cannot write step-12: No space left")
    for error in (full, full, CheckpointError("cannot write step-13: No space left"), full):
        run.save()
        first, second = run.desk.take()
        first.answer(error)
        second.answer(error)
    said = [record.getMessage().partition("write ")[2][:7] for record in caplog.records]
    assert said == ["step-12", "step-13", "step-12"]


def test_a_disk_that_refuses_the_manifest_fails_the_save() -> None:
    def no_manifest(path: str, nbytes: int) -> None:
        if "manifest" in path:
            raise OSError(28, "No space left on device")

    run = Run(before_write=no_manifest)
    run.save()
    run.write(run.cut((12, 12)))
    ((error, step),) = run.results
    assert isinstance(error, CheckpointError) and step == -1 and run.checkpoints.saved_name == ""


def test_the_newest_are_kept() -> None:
    run = Run(keep=2)
    for step in (3, 4, 5):
        run.save()
        run.write(run.cut((step, step)))
    kept = [name for name in run.storage.names("run") if name.startswith("step-")]
    assert kept == ["step-000000000004-epoch-000002", "step-000000000005-epoch-000002"]


def test_a_disk_that_lets_nobody_remove_old_checkpoints_fails_no_save(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(path: str) -> None:
        raise CheckpointError(f"cannot remove {path}: Permission denied")

    run = Run(keep=1)
    monkeypatch.setattr(run.storage, "remove_tree", refused)
    for step in (3, 4, 5):
        run.save()
        run.write(run.cut((step, step), (step, step)))
    assert run.results == [(f"step-{step:012}-epoch-000002", step) for step in (3, 4, 5)]
    assert run.checkpoints.saved_name == "step-000000000005-epoch-000002"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "chief: older checkpoints than the last 1 stay: cannot remove "
        "run/step-000000000003-epoch-000002/manifest.json: Permission denied"
    ]


def test_a_new_epoch_cuts_a_save_short_and_late_answers_do_nothing() -> None:
    run = Run()
    run.save()
    run.save()
    questions = run.cut((12, 12))
    run.checkpoints.stop_saving()
    assert [type(error) for error, _ in run.results] == [Aborted, Aborted]
    run.write(questions)
    assert len(run.results) == 2 and run.checkpoints.saved_name == ""


def test_a_checkpoint_has_the_position_of_the_save_that_it_was_cut_for() -> None:
    run = Run()
    run.save(b"first")
    writes = run.cut((4, 4))
    run.save(b"second")  # this one waits: its position may be ahead of what was cut
    run.write(writes)
    name = str(run.results[-1][0])
    assert run.position(name) == b"first"
    run.cut((4, 4))  # the same versions: nothing is written but the position
    assert run.results == [(name, 4), (name, 4)] and run.position(name) == b"second"


def test_a_checkpoint_that_was_not_finished_lends_its_position_to_no_other() -> None:
    run = Run()
    run.save()
    run.write(run.cut((0, 0)))
    run.save(b"ahead")
    run.cut((4, 4), (10, 8))  # its shards are never written
    assert run.storage.exists(f"run/{run.results[-1][0]}/manifest.json")
    assert not run.storage.exists(f"run/{run.results[-1][0]}/input.json")


def test_a_position_that_is_too_long_is_refused() -> None:
    run = Run()
    with pytest.raises(ValueError, match="got 1048577 bytes, at most 1048576 are kept"):
        run.save(bytes((1 << 20) + 1))
    run.save()
    assert run.cut((1, 1))

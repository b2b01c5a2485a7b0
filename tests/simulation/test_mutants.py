"""Planted bugs that the checker must find: a checker that finds nothing proves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from dps.actors import authorization as tickets
from dps.chief import admission, epochs, takeover
from dps.chief import checkpoint_folder as journaling
from dps.chief import epoch as losses
from dps.chief.run import write_journal
from dps.client import at_once, pushing, waiting
from dps.client import loading as assigning
from dps.client.push_operations import PostedPush
from dps.errors import CheckpointError
from dps.messages.replies import Push
from dps.ps import server, shard
from dps.ps.intake import ledger
from dps.ps.intake import ledger as staged
from dps.ps.modes import asynchronous as modes
from dps.ps.modes import clocks, quorum, sync, whole_pushes
from dps.ps.modes.combine import combined
from dps.ps.serving import lookups as answers
from dps.ps.serving import streaming_pull
from dps.ps.store import draft, store
from tests.simulation import scenario as scenarios
from tests.simulation.scenario import (
    Scenario,
    crowded,
    run,
    scenario,
    spoilt,
    with_a_forger,
    with_a_killed_chief,
    with_a_lost_ps,
)
from tests.without_leases import drop_leases

pytestmark = pytest.mark.slow

SEEDS = 400


def never_stopped(mode: str, seed: int) -> Scenario:
    """Without pauses."""
    return scenario(mode, seed, stops=False)


def caught(mode: str, words: str, first: int = 0, of: Callable[[str, int], Scenario] = never_stopped) -> int:
    """The first seed from `first` on that finds the bug, in words of the promise that it breaks."""
    for seed in range(first, first + SEEDS):
        if any(words in text for text in run(of(mode, seed))):
            return seed
    raise AssertionError(f"none of {SEEDS} seeds noticed in {mode} that {words!r}")


def test_a_ps_that_forgets_what_it_has_applied_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply_at_once(self: modes.AsyncMode, push: staged.Staged, sender: Any) -> None:
        found = self.shard.ledgers[push.push.incarnation]
        self.shard.node.answer(sender, self._apply_push(found, push))
        found.staged.clear()
        self.shard.reading.answer_waiting()

    for question in ("has_result", "is_complete"):
        monkeypatch.setattr(ledger.Ledger, question, lambda self, number: False)
    monkeypatch.setattr(ledger.Ledger, "check_reach", lambda self, number: None)
    monkeypatch.setattr(modes.AsyncMode, "accept_push", apply_at_once)
    caught("async", "was applied twice", 10)


def test_a_set_that_is_not_frozen_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply_what_is_there(self: sync.SyncMode, chosen: list[quorum.PushId], step: int) -> None:
        if self.quorum is None:
            ledgers = self.shard.ledgers.items()
            chosen = [(g.task, i, n) for i, g in ledgers for n in g.staged]
        frozen(self, sorted(chosen), step)

    frozen: Callable[..., None] = sync.SyncMode._apply_step
    monkeypatch.setattr(sync.SyncMode, "_apply_step", apply_what_is_there)
    caught("sync", "has the set")


def test_a_step_that_does_not_wait_for_a_worker_that_has_not_come_yet_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_those_there(self: quorum.Quorum, members: Any, expected: Any, gone: int, absent: Any = ()) -> Any:
        return set_members(self, members, [], gone)

    set_members: Callable[..., Any] = quorum.Quorum.set_members
    monkeypatch.setattr(quorum.Quorum, "set_members", of_those_there)
    caught("sync", "is below the quota", 35)


def test_a_standstill_that_makes_a_smaller_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(self: quorum.Quorum) -> None:
        self._excused += [-1] * (self.aggregate - len(self._held))

    monkeypatch.setattr(quorum.Quorum, "_let_more_come", lower)
    caught("sync", "is below the quota", 30)


@pytest.mark.nightly
def test_initial_tokens_that_are_thrown_away_with_each_step_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def discard(self: quorum.Quorum) -> None:
        self.tokens.clear()
        add(self)

    add: Callable[..., None] = quorum.Quorum._add_tokens
    monkeypatch.setattr(quorum.Quorum, "_add_tokens", discard)
    caught("tokens", "a token of step")


def test_a_push_counted_before_it_is_whole_everywhere_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def soon(self: quorum.Quorum, ps: int, *push: Any) -> list[Any]:
        return [action for every in self.ps for action in report(self, every, *push)]

    def apply_what_is_there(self: sync.SyncMode, chosen: list[quorum.PushId], step: int) -> None:
        ledgers = self.shard.ledgers
        apply(self, [p for p in chosen if p[2] in ledgers[p[1]].staged], step)

    report: Callable[..., list[Any]] = quorum.Quorum.report_push
    apply: Callable[..., None] = sync.SyncMode._apply_step
    monkeypatch.setattr(quorum.Quorum, "report_push", soon)
    monkeypatch.setattr(sync.SyncMode, "_apply_step", apply_what_is_there)
    caught("sync", "has the set")


def test_a_missing_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_leases(monkeypatch)
    caught("async", "differ", of=lambda _, seed: crowded(seed))


def test_a_missing_lease_is_caught_where_pushes_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_leases(monkeypatch)
    caught("at once", "differ", 275)


def test_a_push_applied_ahead_to_a_version_that_is_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft.Draft, "is_valid", True)
    caught("async", "differ", 65)


def test_a_session_that_waits_for_the_step_ps_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = property(lambda self: self.rolled_back or all(t.complete for t in self.deciding))
    monkeypatch.setattr(pushing.PushOp, "complete", alone)
    caught("sync", "without its own push", 39)


def test_an_answer_that_is_overwritten_while_it_is_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_what_is_read(self: answers.LookupMemory, nbytes: int) -> Any:
        self._free += [memory for _, memory in self._given.values()]
        return take(self, nbytes)

    take: Callable[..., Any] = answers.LookupMemory.take_memory
    monkeypatch.setattr(answers.LookupMemory, "take_memory", take_what_is_read)
    caught("async", "looked up")


@pytest.mark.nightly
def test_a_session_that_goes_on_before_its_rows_are_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged.Staged, "copy_borrowed", lambda self: None)
    caught("sync", "differ", 5)


def test_a_rollback_that_restores_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_step(store: store.Store, plan: Any, ps: int, node: Any, checkpoint_dir: str, manifest: Any) -> None:
        store.step = manifest.step

    monkeypatch.setattr(server, "restore", only_the_step)
    caught("async", "cells", 95)


@pytest.mark.nightly
def test_a_push_that_is_said_to_have_survived_a_rollback_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def accepted(self: pushing.PushOp, step: int, apart: bool = False) -> Push:
        told = read_result(self, step, apart)
        return Push(step, True) if self.rolled_back else told

    read_result: Callable[..., Push] = pushing.PushOp.read_result
    monkeypatch.setattr(pushing.PushOp, "read_result", accepted)
    caught("async", "was acknowledged and is not on", 95)


def test_a_checkpoint_that_is_cut_at_different_steps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: sync.SyncMode, cut: str) -> None:
        self.shard.saving.perform_cut(cut)

    monkeypatch.setattr(sync.SyncMode, "schedule_cut", at_once)
    tuned = scenarios.tuned
    monkeypatch.setattr(scenarios, "tuned", lambda chosen: tuned(chosen).where(serving__kept_saves=4))
    caught("sync", "was copied at step", 45)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_a_cut_that_forgets_a_session_is_caught(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: shard.Shard) -> tuple[list[list[int]], int]:
        return results(self)[0][1:], 0

    results: Callable[..., tuple[list[list[int]], int]] = shard.Shard.results
    monkeypatch.setattr(shard.Shard, "results", forgets)
    caught(mode, "says that its shards have the same pushes")


def test_a_reader_that_is_let_in_one_step_too_far_ahead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(self: clocks.Clocks, incarnation: int) -> bool:
        own = self.now().get(incarnation)
        return own is None or own - self.lowest() <= self.bound + 1

    monkeypatch.setattr(clocks.Clocks, "may_read", wider)
    caught("bounded", "ahead of the slowest")


@pytest.mark.parametrize("mode", ["steps", "at once"])
def test_a_push_that_goes_the_ordinary_way_under_another_number_is_caught(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, add = at_once.AtOnce._go_on, PostedPush._add_transfer

    def renumbered(self: at_once.AtOnce, asked: Any, heard: Any, loss: Any) -> Any:
        others = {n: (peer, (*sent[:2], sent[2] + 1, *sent[3:]), run) for n, (peer, sent, run) in asked.items()}
        return go_on(self, others, {}, loss)

    monkeypatch.setattr(at_once.AtOnce, "_go_on", renumbered)
    monkeypatch.setattr(PostedPush, "_add_transfer", lambda self, ps, posted: add(self, ps))  # sent again
    caught(mode, "was applied, which sent")


def test_a_kept_push_that_stays_kept_when_it_is_reported_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit(books: Any, row: Any, number: int, step: int, is_whole: bool) -> str:
        books.kept = [push for push in books.kept if push.row is not row or push.number >= number]
        if number == row.done + 1 and is_whole and books.wanted:
            return "apply" if len(books.kept) + 1 == books.wanted else "keep"
        return admitted(books, row, number, step, is_whole)

    admitted: Any = whole_pushes.admit_push
    monkeypatch.setattr(whole_pushes, "admit_push", admit)
    monkeypatch.setattr(whole_pushes.WholePushes, "_end_keeping", lambda self: list(self.books.kept))
    caught("steps", "applied twice", 12)


@pytest.mark.nightly
@pytest.mark.parametrize("others", [{"sum": "mean"}, {"mean": "sum"}])
def test_a_sum_that_is_divided_and_a_mean_that_is_not_are_caught(
    monkeypatch: pytest.MonkeyPatch, others: dict[str, str]
) -> None:
    def confused(gradients: Any, layout: Any, reduction: str) -> Any:
        return combined(gradients, layout, others.get(reduction, reduction))

    monkeypatch.setattr(sync, "combined", confused)
    caught("sync", ": cells ")


@pytest.mark.nightly
def test_kept_pushes_that_are_never_reported_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_pushes.WholePushes, "stage_kept", lambda self: None)
    caught("steps", "a push took more than", 5)


def test_a_step_in_one_go_that_does_not_wait_for_its_last_push_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(books: Any, *given: Any) -> str:
        verdict: str = admitted(books, *given)
        return "apply" if verdict == "keep" and len(books.kept) + 2 == books.wanted else verdict

    admitted: Any = whole_pushes.admit_push
    monkeypatch.setattr(whole_pushes, "admit_push", hasty)
    caught("steps", "is below the quota")


@pytest.mark.nightly
def test_an_admitted_push_of_which_no_result_is_recorded_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: modes.AsyncMode, pushes: Any, step: int, counter: int) -> None:
        done = pushes[0].row.done
        commit(self, pushes, step, counter)
        pushes[0].row.done = done  # the answer leaves, and the push that comes again is a new one

    commit = modes.AsyncMode.commit_pushes
    monkeypatch.setattr(modes.AsyncMode, "commit_pushes", forget)
    monkeypatch.setattr(ledger.Ledger, "is_complete", lambda self, number: number <= self.done or number in self.staged)
    caught("at once", "applied twice", 59)


def test_a_push_that_is_admitted_ahead_of_others_that_are_staged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = whole_pushes.WholePushes.take_push

    def hasty(self: whole_pushes.WholePushes, push: Any, row: Any, *given: Any) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row, "done", push.number - 1)
            patch.setattr(row, "staged", {})
            return take(self, push, row, *given)

    monkeypatch.setattr(whole_pushes.WholePushes, "take_push", hasty)
    caught("at once", "applied twice", 3)


def test_a_push_that_is_admitted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(books: Any, row: Any, number: int, step: int, is_whole: bool) -> str:
        verdict: str = admitted(books, row, number, step, is_whole)
        return "apply" if verdict == "again" and is_whole and books.wanted == 1 and not books.is_sync else verdict

    admitted: Any = whole_pushes.admit_push
    monkeypatch.setattr(whole_pushes, "admit_push", forgetful)
    caught("at once", "applied twice")


@pytest.mark.parametrize("mode", ["at once", "async"])
def test_a_pass_over_memory_that_does_not_see_nan_is_caught(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: draft.Draft, update: Any) -> bool:
        write(self, update)
        return True

    write = draft.Draft.write
    monkeypatch.setattr(draft.Draft, "write", blind)
    caught(mode, "differ from row", 25, of=spoilt)


def test_values_that_leave_for_a_version_that_never_was_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def send_all(self: streaming_pull.StreamingPull) -> None:
        if self._begun is not None:
            self._begun[0].send_all()

    monkeypatch.setattr(streaming_pull.StreamingPull, "dropped", send_all)
    caught("async", "differ", of=lambda _, seed: crowded(seed))


def test_a_chief_that_does_not_ask_what_the_ps_serve_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover.Takeover, "ask_ps", lambda self, task, address: None)
    caught("async", "chief ended with 3", 206, of=with_a_killed_chief)


def test_a_chief_that_forgets_to_take_up_the_sessions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission.Admission, "take_over_sessions", lambda self: None)
    caught("async", "still runs at the end", 3, of=with_a_killed_chief)


def test_an_epoch_that_begins_without_being_written_down_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: journaling.Journaling, checkpoint_dir: str, epoch: int, ended: bool = False) -> bool:
        with contextlib.suppress(CheckpointError):
            write_journal(self._node.runtime.storage, checkpoint_dir, epoch, self._members, ended)
        return True

    monkeypatch.setattr(journaling.Journaling, "write", write)
    monkeypatch.setattr(epochs.Epochs, "record_epoch", lambda self, number: None)
    caught("async", "began after", of=with_a_killed_chief)


@pytest.mark.nightly
def test_an_announced_loss_that_forgets_sessions_that_have_closed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses.LostSteps, "record_close", lambda self, session, epoch, step: None)
    caught("async", "steps lost in epoch", 36, of=with_a_lost_ps)


def test_an_announced_loss_that_is_one_short_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = waiting.Loss
    monkeypatch.setattr(waiting, "Loss", lambda steps, certain: whole(max(0, steps - 1), certain))
    caught("async", "steps lost in epoch", 12, of=with_a_lost_ps)


def test_values_that_are_set_before_the_gradients_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(self: draft.Draft, update: Any) -> None:
        for part, value in (update.values or {}).items():
            self._set_part(part, value.reshape(-1))
        update.values = None
        write(self, update)

    write: Callable[..., None] = draft.Draft.write
    monkeypatch.setattr(draft.Draft, "write", backwards)
    caught("sync", " v: row 0 on ps:")


def test_values_of_the_highest_task_that_win_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(pushes: Any) -> Any:
        return {index: value for staged in pushes for index, value in (staged.sound().values or {}).items()}

    monkeypatch.setattr(sync, "assigned", last)
    caught("sync", " v: row 0 on ps:", 15)


def test_values_that_are_lost_with_a_push_that_came_too_late_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: Callable[..., None] = assigning.Assigned.record_outcome
    monkeypatch.setattr(
        assigning.Assigned, "record_outcome", lambda self, values, accepted: settled(self, values, True)
    )
    caught("sync", "pushed without", 15)


def test_values_that_are_set_again_in_each_later_push_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    begin: Callable[..., None] = pushing.Pushes._begin

    def kept(self: pushing.Pushes, operation: pushing.PushOp, numbers: Any, *_: Any) -> None:
        begin(self, operation, numbers)

    monkeypatch.setattr(pushing.Pushes, "_begin", kept)
    caught("sync", "had to be set")


def test_values_that_are_set_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: modes.AsyncMode, found: ledger.Ledger, push: staged.Staged) -> Any:
        result = assign(self, found, push)
        self.shard.node.after(0.2, lambda: None if self.shard.ended else assign(self, found, push))
        return result

    assign: Callable[..., Any] = modes.AsyncMode._assign_values
    monkeypatch.setattr(modes.AsyncMode, "_assign_values", again)
    caught("async", "was applied twice")


def test_a_clock_that_counts_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = property(lambda self: self.done, lambda self, count: None)
    monkeypatch.setattr(ledger.Ledger, "applied", counts, raising=False)
    caught("bounded", "ahead of the slowest", 5)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_ps_that_believes_the_header_is_caught(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Every(frozenset[int]):
        def __contains__(self, claim: object) -> bool:
            return True

    monkeypatch.setattr(tickets.STRANGER, "claims", Every())
    caught(mode, "", of=with_a_forger)

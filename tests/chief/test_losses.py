"""How far a run epoch got, from what its sessions and its step ps tell, in whatever order."""

from __future__ import annotations

from dps.chief.epoch import LostSteps


def over(*sessions: int) -> LostSteps:
    """Run epoch 3 has trained from step 40 on and is over; these sessions took part to the end."""
    losses = LostSteps()
    losses.begin_epoch(3, 40)
    losses.end_epoch(sessions)
    return losses


def told(losses: LostSteps, epoch: int = 3) -> tuple[int, bool]:
    return losses.reached, losses.is_certain(epoch)


def test_it_is_certain_when_all_sessions_have_come_back() -> None:
    losses = over(1, 2)
    losses.record_join(1, 3, 47)
    assert told(losses) == (47, False)
    losses.record_join(2, 3, 49)
    assert told(losses) == (49, True)


def test_a_session_that_closed_before_the_end_or_after_it_counts() -> None:
    losses = LostSteps()
    losses.begin_epoch(3, 40)
    losses.record_close(1, 3, 48)
    losses.end_epoch([2, 3])
    losses.record_join(2, 3, 46)
    losses.record_close(3, 3, 47)
    assert told(losses) == (48, True)


def test_the_step_ps_knows_of_all_also_of_sessions_that_are_lost() -> None:
    losses = over(1, 2)
    losses.record_join(1, 3, 47)
    losses.record_last_step(2, 90)  # of an earlier epoch
    assert told(losses) == (47, False)
    losses.record_last_step(3, 50)
    assert told(losses) == (50, True)


def test_who_was_last_in_an_earlier_epoch_is_told_no_certain_number() -> None:
    losses = over(1)
    losses.record_join(1, 3, 47)
    losses.record_join(2, 2, 60)
    assert told(losses, 2) == (47, False) and told(losses, 3) == (47, True)


def test_an_epoch_that_never_trained_changes_nothing() -> None:
    losses = over(1)
    losses.end_epoch([])
    losses.record_join(1, 3, 47)
    assert told(losses) == (47, True)


def test_another_chiefs_epoch_is_certain_only_where_its_step_ps_tells() -> None:
    losses = LostSteps()
    losses.record_join(1, 3, 47)
    assert told(losses) == (47, False)
    losses.record_last_step(3, 48)
    assert told(losses) == (48, True)


def test_a_session_that_closes_in_the_epoch_after_says_nothing_of_the_one_before() -> None:
    """It took part in the first without ever hearing of it, and then made 60 steps in the second."""
    losses = over(1, 2)
    losses.record_join(1, 3, 47)
    losses.record_join(2, 0, 0)
    losses.begin_epoch(4, 40)
    losses.record_close(2, 4, 60)
    assert told(losses) == (47, True)
    losses.end_epoch([1])
    assert losses.reached == 60


def test_a_session_that_was_lost_before_the_end_may_have_been_told_of_more() -> None:
    losses = LostSteps()
    losses.begin_epoch(3, 10)
    losses.add_lost(7)
    losses.end_epoch([8])
    losses.record_join(8, 3, 15)
    assert told(losses) == (15, False)
    losses.record_close(7, 3, 18)  # it was only thought to be lost
    assert told(losses) == (18, True)


def test_a_chief_that_was_started_again_is_certain_of_no_epoch_before_the_one_that_it_goes_on_with() -> None:
    """Session 1 stood apart while epoch 3 ended and another session, which was told of more, went on in epoch 4."""
    losses = LostSteps()
    losses.begin_epoch(4, 40, unknown=True)
    losses.record_join(1, 3, 41)
    assert told(losses, 3) == (0, False)
    assert told(losses, 4) == (0, True) and told(losses, 0) == (0, True)

"""ShardLookups on one shard: answered at once, or the moment that the step which the asker must see is there."""

from __future__ import annotations

import numpy as np

from dps.actors.answers import Waiting
from dps.messages.sessions import Lookup, RowsAnswer
from dps.training.update_modes import Async
from tests.ps.test_modes import Ps, sender


def test_a_lookup_that_waits_for_a_step_is_answered_when_it_is_made_though_no_pull_waits() -> None:
    ps = Ps(Async())
    ps.shard.reading.lookups.answer_lookup(sender(2, 9), Lookup(1, 1, 0, arrays=(np.array([1, 0]),)))
    assert ps.desk.take() == [(2, Waiting("ps:0 is at step 0, step 1 is wanted: "))]
    (_, answer), _ = sorted(ps.push(1, 1), key=lambda found: not isinstance(found[1], RowsAnswer))
    assert isinstance(answer, RowsAnswer) and answer.counter == 1 and answer.arrays[0].tolist() == [[-1.0], [-1.0]]


def test_a_lookup_that_waits_is_answered_once() -> None:
    ps = Ps(Async())
    ps.shard.reading.lookups.answer_lookup(sender(2, 9), Lookup(1, 1, 0, arrays=(np.array([0]),)))
    ps.push(1, 1)
    assert [type(answer) for _, answer in ps.push(1, 2)].count(RowsAnswer) == 0


def test_a_lookup_of_a_session_that_has_ended_is_not_answered() -> None:
    ps = Ps(Async())
    ps.shard.reading.lookups.answer_lookup(sender(2, 9), Lookup(1, 1, 0, arrays=(np.array([0]),)))
    ps.members(1)
    ps.desk.take()
    assert [incarnation for incarnation, _ in ps.push(1, 1)] == [1]

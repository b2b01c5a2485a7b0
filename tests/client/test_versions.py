"""Published versions as a session sees them: in every mode one cut, by number, until a newer one takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dps
from dps.checkpoint import LocalStorage, candidates, load
from tests.in_process import cluster, on_all

SGD = dps.optim.SGD(1.0)
ONE = {"a": -np.ones(4, np.float32), "b": {"c": -np.ones(3)}}


def zeros() -> dict[str, Any]:
    return {"a": np.zeros(4, np.float32), "b": {"c": np.zeros(3)}}


def same(values: Any, number: float) -> None:
    assert values["a"].dtype == np.float32
    np.testing.assert_array_equal(values["a"], np.full(4, number))
    np.testing.assert_array_equal(values["b"]["c"], np.full(3, number))


def pull_until_gone(session: dps.Session, number: int) -> None:
    """The ps drop a version a moment after a newer one was published."""
    while True:
        session.pull(published=number)


@pytest.mark.thinned
@pytest.mark.parametrize("update", [dps.Async(), dps.Bounded(1), dps.SyncReplicas(), dps.Local(1)], ids=str)
@pytest.mark.parametrize("ps", [1, 2])
def test_a_published_version_stays_while_training_goes_on(update: Any, ps: int) -> None:
    with (
        cluster(ps=ps, workers=1, update=update) as (worker,),
        dps.Session(worker, zeros(), optimizer=SGD) as session,
        dps.Session(worker.target) as reader,
    ):
        session.push(ONE)
        first = session.publish("first")
        assert (first.number, first.label, first.step) == (1, "first", 1)
        assert session.publish("again") == first, "the values are published already"
        session.push(ONE)
        same(reader.pull(published=first), 1)
        same(session.pull(), 2)
        same({**session.pull(["a"], published=1), **session.pull(["b/c"], published=1)}, 1)
        out = zeros()
        assert session.pull(out=out, published=first) is out
        same(out, 1)
        second = session.publish()
        assert (second.run, second.number, second.label) == (first.run, 2, "")
        same(reader.pull(published=second), 2)
        with pytest.raises(ValueError, match=r"published version 1 is not kept any more.* ps:. has version 2 \(''\)"):
            pull_until_gone(session, 1)
        assert session.stats()["chief"]["published"][:3] == [2, "", 2]


def test_a_label_for_values_that_have_another_one_leads_to_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It was dropped without a word."""
    with cluster(workers=1) as (worker,), dps.Session(worker, zeros(), optimizer=SGD) as session:
        for label in ("step-0", "step-0", "", "final"):
            assert session.publish(label).label == "step-0"
    (said,) = [r.message for r in caplog.records if "publish" in r.message and r.levelname == "WARNING"]
    assert said == (
        "worker:0: publish: no version gets the label 'final': these values are version 1 already, with the label "
        "'step-0'"
    )


def test_what_is_no_version_of_this_run_is_refused() -> None:
    with cluster(workers=1) as (worker,), dps.Session(worker, zeros(), optimizer=SGD) as session:
        with pytest.raises(ValueError, match="ps:0 has no published version"):
            session.pull(published=7)
        for wrong in (0, -1, True, "first", 1.5):
            with pytest.raises(ValueError, match="wanted a dps.Published or its number"):
                session.pull(published=wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is of another run than this"):
            session.pull(published=dps.Published("elsewhere", 1, "", 0))
        with pytest.raises(ValueError, match="got a label of 201 characters"):
            session.publish("x" * 201)
        with pytest.raises(TypeError, match="as label, wanted text"):
            session.publish(7)  # type: ignore[arg-type]


def test_numbers_go_on_in_the_next_run_of_the_folder_under_the_same_name(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with (
            cluster(ps=2, workers=1, owned=False) as (worker,),
            dps.Session(worker, zeros(), optimizer=SGD, checkpoint_dir=tmp_path) as session,
        ):
            session.push(ONE)
            found.append(session.publish())
            before = session.global_step
            session.push(ONE)
            session.restore()
            session.push(ONE)
            found.append(session.publish(f"after {before}"))
    assert [published.number for published in found] == [1, 2, 3, 4]
    assert len({published.run for published in found}) == 1
    storage = LocalStorage()
    assert load(storage, str(tmp_path), candidates(storage, str(tmp_path))[0]).settings["run"] == found[0].run


def test_two_workers_in_sync_publish_each_step_once() -> None:
    def work(server: dps.Server) -> list[dps.Published]:
        with dps.Session(server, zeros(), optimizer=SGD) as session:
            found = []
            for step in range(1, 6):
                session.push(ONE)
                found.append(session.publish(f"step-{step}"))
                same(session.pull(published=found[-1]), step)
        return found

    with cluster(ps=2, workers=2, update=dps.SyncReplicas()) as workers:
        first, second = on_all(workers, work)
    assert first == second and [published.number for published in first] == [1, 2, 3, 4, 5]

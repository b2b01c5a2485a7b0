"""Small asynchronous pulls and pushes in one round trip, through sessions: they bring what others bring."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import dps
from dps.actors.caller import Caller
from dps.client import at_once
from dps.client.lanes import Lane
from dps.errors import Unavailable
from dps.messages.replies import Push
from dps.ps.serving.reading import ShardReads
from examples.mnist import initial_params
from tests.in_process import cluster
from tests.interrupting import at_some_lines, interrupted_at
from tests.tuned import RESENT_SOON, tune

Asked = list[str]
SHAPES = {"w": (100, 170), "c": (77,)}


def ones(value: float = 1.0) -> dict[str, Any]:
    return {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}


def session(server: Any, **settings: Any) -> dps.Session:
    return dps.Session(
        server, **{"params": ones(0.0), "optimizer": dps.optim.SGD(1.0), "update": "async", "timeout": 60} | settings
    )


@contextmanager
def trained(**settings: Any) -> Iterator[dps.Session]:
    with cluster(1, 1) as (server,), session(server, **settings) as s:
        yield s


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, client__step_patience_s=5.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The kinds of messages that a session sends in its main loop."""
    asked: Asked = []
    post, post_plain, send = Caller.post, Caller.post_plain, Caller.send

    def posted(self: Caller, to: Any, message: Any, number: int = 0) -> int:
        asked.append(f"{type(message).__name__} at once")
        return post(self, to, message, number)

    def posted_plain(self: Caller, to: Any, form: Any, integers: Any) -> None:
        asked.append(f"{form.cls.__name__} at once")
        post_plain(self, to, form, integers)

    def sent(self: Caller, request: Any, message: Any) -> None:
        asked.append(type(message).__name__)
        send(self, request, message)

    monkeypatch.setattr(Caller, "post", posted)
    monkeypatch.setattr(Caller, "post_plain", posted_plain)
    monkeypatch.setattr(Caller, "send", sent)
    return asked


def values(s: dps.Session) -> tuple[float, float]:
    found = s.pull()
    return float(found["w"][99, 169]), float(found["c"][76])


@pytest.mark.parametrize("optimizer", [dps.optim.Adam(0.1), dps.optim.Momentum(0.1, 0.9)], ids=["adam", "momentum"])
@pytest.mark.parametrize("in_place", [False, True], ids=["own arrays", "in place"])
def test_the_bits_are_those_of_the_ordinary_way(optimizer: Any, in_place: bool, asked: Asked) -> None:
    def run(shared: bool) -> list[np.ndarray[Any, Any]]:
        rng, found = np.random.default_rng(7), []
        with trained(optimizer=optimizer, shared_memory=shared) as s:
            given = s.gradients() if in_place else ones()
            for number in range(12):
                for array in given.values():
                    array[...] = rng.normal(size=array.shape)
                if number % 3 == 0:
                    found.append(s.step(given)["w"])
                else:
                    s.push(given)
                    found.append(s.pull()["c"])
        return found

    small = run(True)
    assert asked.count("Push at once") == 12 and asked.count("Pull at once") == 8
    assert "Push" not in asked and "Pull" not in asked
    for one, other in zip(small, run(False), strict=True):
        np.testing.assert_array_equal(one, other)


SEVERAL = {
    "w": dps.Variable(np.ones((30, 20), np.float32), optimizer=dps.optim.Momentum(0.1, 0.9)),
    "mean": dps.Variable(np.full(7, 5.0, np.float32), trainable=False),
    "d": dps.Variable(np.ones(9), optimizer=dps.optim.SGD(0.5)),
    "b": np.ones((11,), np.float32),
}


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_shard_of_several_dtypes_and_optimizers_goes_at_once_with_the_same_bits(update: str, asked: Asked) -> None:
    def run(shared: bool) -> list[Any]:
        rng, found = np.random.default_rng(7), []
        with trained(params=SEVERAL, optimizer=dps.optim.Adam(0.01), shared_memory=shared, update=update) as s:
            for number in range(6):
                grads = {"w": rng.normal(size=(30, 20)).astype("f"), "d": rng.normal(size=9), "b": np.ones(11, "f")}
                found.append(s.step(grads) if number % 2 else (s.push(grads), s.pull())[1])
            with s.view() as seen:
                found.append({name: value.copy() for name, value in seen.items()})
            bad = {**grads, "d": np.full(9, np.nan)}
            with pytest.raises(ValueError, match="the gradient of d has NaN"):
                s.push(bad)
        return found

    small = run(True)
    assert asked.count("Push at once") == 7 and "Push" not in asked  # what is refused is told by the same answer
    assert asked.count("Pull") == (0 if update == "async" else 1)  # in sync a view brings no values of a push
    for one, other in zip(small, run(False), strict=True):
        assert one.keys() == SEVERAL.keys() and (one["mean"] == 5.0).all()
        for name in SEVERAL:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.thinned
@pytest.mark.parametrize("partitioner", [None, lambda shape, dtype: 2], ids=["whole", "in parts"])
@pytest.mark.parametrize("in_place", [False, True], ids=["own arrays", "in place"])
@pytest.mark.parametrize("update", ["async", "sync"])
def test_several_ps_are_asked_at_once_with_the_same_bits(
    update: str, partitioner: Any, in_place: bool, asked: Asked
) -> None:
    def run(shared: bool) -> list[Any]:
        rng, found = np.random.default_rng(7), list[Any]()
        settings = {"optimizer": dps.optim.Adam(0.1), "partitioner": partitioner, "update": update}
        with cluster(2, 1) as (server,), session(server, shared_memory=shared, **settings) as s:
            given = s.gradients() if in_place else ones()
            for number in range(6):
                for array in given.values():
                    array[...] = rng.normal(size=array.shape)
                found.append(s.step(given) if number % 2 else (s.push(given), s.pull())[1])
                assert s.global_step == number + 1
                assert s.version.counters == ((0, number + 1), (1, number + 1))
            with s.view() as seen:
                found.append({name: value.copy() for name, value in seen.items()})
            assert s.stats()["ps:0"]["applied"] == s.stats()["ps:1"]["applied"] == 6
        return found

    small = run(True)
    assert asked.count("Push at once") == 12 and "Push" not in asked
    assert asked.count("Pull") == (0 if update == "async" else 2)  # in sync a view brings no values of a push
    for one, other in zip(small, run(False), strict=True):
        assert_same(one, other)


def assert_same(one: Any, other: Any) -> None:
    for name in SHAPES:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("ps", [1, 2])
def test_the_model_of_the_demo_goes_this_way(ps: int, asked: Asked) -> None:
    params = initial_params()
    with cluster(ps, 1) as (server,), session(server, params=params) as s:
        s.step(params)
        s.pull()
    assert [kind for kind in asked if kind.startswith(("Push", "Pull"))] == ps * ["Push at once"] + ps * [
        "Pull at once"
    ]


def test_of_several_ps_none_gets_a_push_with_nan(asked: Asked) -> None:
    with cluster(2, 1) as (server,), session(server) as s:
        s.push(ones())
        asked.clear()
        bad = ones()
        bad["c"][3] = np.nan
        with pytest.raises(ValueError, match="the gradient of c has NaN or infinite values"):
            s.push(bad)
        assert not asked and values(s) == (-1.0, -1.0)


@pytest.mark.parametrize("update", ["async", "sync"])
def test_of_several_ps_one_that_does_not_answer_gets_the_same_push_again(
    update: str, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    hear = Caller.hear
    with cluster(2, 1) as (server,), session(server, update=update) as s:
        s.push(ones())
        for deaf in (0, 1):
            with monkeypatch.context() as patch:

                def forgetful(self: Caller, numbers: Any, usual: Any, wait_s: float, deaf: int = deaf) -> Any:
                    answers = hear(self, numbers, usual, wait_s)
                    answers.pop([*numbers][deaf], None)
                    return answers

                patch.setattr(Caller, "hear", forgetful)
                assert float(s.step(ones())["w"][0, 0]) == -2.0 - deaf
        assert values(s) == (-3.0, -3.0) and s.push(ones()).step == 4
        assert s.stats()["ps:0"]["applied"] == s.stats()["ps:1"]["applied"] == 4


def test_a_result_of_several_ps_says_the_largest_staleness() -> None:
    with cluster(2, 2) as servers, session(servers[0]) as one, session(servers[1]) as other:
        one.pull()
        other.pull()
        assert other.push({"w": ones()["w"]}).staleness == 0
        assert one.push(ones()).staleness == 1


def test_a_result_says_its_step_and_how_many_came_in_between(asked: Asked) -> None:
    with cluster(1, 2) as servers, session(servers[0]) as one, session(servers[1]) as other:
        one.pull()
        other.pull()
        asked.clear()
        assert [other.push(ones()) for _ in range(2)] == [Push(1, True, 0), Push(2, True, 1)]
        assert one.push(ones()) == Push(3, True, 2)
        assert values(one) == (-3.0, -3.0) and one.global_step == 3 and one.version.counters == ((0, 3),)
        assert one.push(ones()) == Push(4, True, 0)
        assert set(asked) == {"Pull at once", "Push at once"}


def test_a_pull_sees_what_others_have_pushed_since(asked: Asked) -> None:
    with cluster(1, 2) as servers, session(servers[0]) as one, session(servers[1]) as other:
        for count in range(1, 40):  # more than a ps keeps versions
            one.push(ones())
            other.step(ones())
            assert values(one) == (-2.0 * count, -2.0 * count)
            with one.view() as seen:
                assert float(seen["w"][0, 0]) == -2.0 * count


def test_a_pull_fills_the_arrays_that_it_is_given() -> None:
    with trained() as s:
        s.push(ones())
        out = ones(9.0)
        assert s.pull(out=out) is out and (out["w"] == -1.0).all() and (out["c"] == -1.0).all()
        with pytest.raises(ValueError, match="out has"):
            s.pull(out={"w": out["w"], "c": np.zeros(3, np.float32)})
        assert values(s) == (-1.0, -1.0)


def test_pulled_arrays_are_the_callers_own() -> None:
    with trained() as s:
        first = s.pull()
        first["w"][...] = 5.0
        assert not np.shares_memory(first["w"], s.pull()["w"])
        s.push(ones())
        assert values(s) == (-1.0, -1.0) and (first["w"] == 5.0).all()


def test_a_pull_goes_beside_pushes_that_are_under_way() -> None:
    with trained() as s:
        replies = [s.push_async(ones()) for _ in range(3)]
        assert values(s)[0] in (0.0, -1.0, -2.0, -3.0)
        assert [reply.result().step for reply in replies] == [1, 2, 3]
        assert values(s) == (-3.0, -3.0)


def test_some_of_the_gradients_go_the_ordinary_way_and_keep_their_place(asked: Asked) -> None:
    with trained() as s:
        s.push(ones())
        s.push({"c": ones()["c"]})
        assert s.push(ones()).step == 3 and values(s) == (-2.0, -3.0)
        assert [kind for kind in asked if "Push" in kind] == ["Push at once", "Push", "Push at once"]


def test_a_refused_gradient_is_told_and_changes_nothing() -> None:
    with trained() as s:
        bad = ones()
        bad["c"][3] = np.nan
        for call in (s.push, s.step):
            with pytest.raises(ValueError, match="the gradient of c has NaN or infinite values"):
                call(bad)
        assert values(s) == (0.0, 0.0) and s.push(ones()).step == 1


def test_without_the_look_for_nan_it_passes() -> None:
    with trained(check_finite=False) as s:
        s.push(ones(np.nan))
        assert np.isnan(values(s)).all()


@pytest.mark.parametrize(
    ("update", "wanted"),
    [
        (dps.Async(max_staleness=0), [Push(1, True, 0), Push(1, False, 1)]),
        (dps.Async(damping=1.0), [Push(1, True, 0), Push(2, True, 1)]),
        (dps.Async(compensation=0.5), [Push(1, True, 0), Push(2, True, 1)]),
    ],
    ids=["dropped", "damped", "compensated"],
)
def test_what_is_made_of_staleness_is_made_of_it(update: Any, wanted: list[Push]) -> None:
    with trained(update=update) as s:
        s.pull()
        assert [s.push(ones(2.0)) for _ in range(2)] == wanted
        second = {0.0: -2.0, 1.0: -3.0, 0.5: -2.0 - (2.0 + 0.5 * 4.0 * -2.0)}  # dropped; half; g + lambda g² (w - w0)
        assert values(s)[0] == second[update.damping or update.compensation]


def test_a_reader_without_params_sees_the_values_of_now(asked: Asked) -> None:
    with cluster(1, 2) as servers, session(servers[0]) as s, dps.Session(servers[1]) as reader:
        s.push(ones())
        asked.clear()
        assert values(reader) == (-1.0, -1.0) and asked == ["Pull at once", "Release"]
        assert reader.global_step == 1


def test_where_there_is_no_room_for_a_reader_the_values_are_sent(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    with trained() as s:
        monkeypatch.setattr(ShardReads, "lend_version", lambda *_: None)
        assert values(s) == (0.0, 0.0)
        assert float(s.step(ones())["w"][0, 0]) == -1.0
        assert asked[-4:] == ["Pull", "Push at once", "Pull at once", "Pull"]


def test_where_the_values_cannot_be_read_sockets_are_used(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    def gone(self: Lane, name: list[int]) -> Any:
        raise Unavailable("the memory of process 1 cannot be reached from here: no such process")

    with trained() as s:
        monkeypatch.setattr(Lane, "attach", gone)
        assert values(s) == (0.0, 0.0) and asked[-2:] == ["Pull at once", "Pull"]
        asked.clear()
        assert float(s.step(ones())["w"][0, 0]) == -1.0 and "Pull at once" not in asked


@pytest.mark.parametrize("ps", [1, 2])
def test_a_late_answer_counts_and_nothing_is_sent_again(ps: int, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(ps, 1) as (server,), session(server) as s:
        values(s)
        tune(monkeypatch, client__step_patience_s=0.0)
        asked.clear()
        assert s.push(ones()).step == 1 and asked == ["Push at once"] * ps
        assert values(s) == (-1.0, -1.0)
        asked.clear()
        assert float(s.step(ones())["w"][0, 0]) == -2.0 and asked == ["Push at once"] * ps  # the values come with it
        with s.step_in_place(ones()) as read:
            assert float(read["w"][0, 0]) == -3.0 and asked == ["Push at once"] * 2 * ps
        assert s.stats()["ps:0"]["applied"] == 3
        bad = ones()
        bad["c"][3] = np.nan
        with pytest.raises(ValueError, match="the gradient of c has NaN"):
            s.push(bad)
        assert values(s) == (-3.0, -3.0)


def test_only_the_ps_whose_answer_was_lost_is_asked_again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    hear = Caller.hear

    def without_the_last(self: Caller, numbers: Any, usual: Any, wait_s: float) -> Any:
        answers = hear(self, numbers, usual, wait_s)
        answers.pop([*numbers][-1], None)
        return answers

    with cluster(2, 1) as (server,), session(server) as s:
        values(s)
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Caller, "hear", without_the_last)
            assert s.push(ones()) == Push(1, True, 0)
        assert [name for name in asked if "Push" in name] == ["Push at once"] * 2 + ["PushStatus"]
        assert values(s) == (-1.0, -1.0) and s.stats()["ps:1"]["applied"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ps", "update"), [(1, "async"), (2, "async"), (2, "sync")], ids=["one ps", "several ps", "several ps in sync"]
)
@at_some_lines
def test_ctrl_c_at_any_line_neither_loses_nor_doubles(
    ps: int, update: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    # with sockets it would be the ordinary way
    tune(monkeypatch, client__step_patience_s=5.0, client__probe_s=60.0, **RESENT_SOON)
    with cluster(ps, 1) as (server,), session(server, update=update) as s:
        for call in (lambda: s.step(ones(4.0)), lambda: s.push(ones(4.0)), s.pull):
            before, line, reached = values(s)[0], 1, True
            while reached and line < 900:
                reached = interrupted_at(line, call)
                s._pushes.drain()
                s.push(ones())
                after, other = values(s)
                assert before - after in (1.0, 5.0) and after == other, f"at line {line}"
                before, line = after, line + every
        assert ps > 1 or s.stats()["ps:0"]["leases"] <= 1  # none is kept for ever


@pytest.mark.parametrize("shared", [True, False], ids=["at once", "the ordinary way"])
def test_a_step_is_of_its_own_version_also_where_a_hook_has_pulled_a_later_one(shared: bool) -> None:
    class Pulls(dps.Hook):
        def after_run(self, session: Any, result: Any, loss: Any) -> None:
            if loss is not None:
                session.push(ones())
                session.pull()

    with trained(hooks=[Pulls()], shared_memory=shared) as s:
        for count in (1, 3):
            assert float(s.step(ones(), loss=0.0)["w"][0, 0]) == -count
            assert s.version.counters == ((0, count),)
            newer = s.pull(if_newer_than=s.version)
            assert newer is not None and float(newer["w"][0, 0]) == -count - 1


def test_readers_that_idle_keep_no_versions_from_others() -> None:
    with cluster(1, 4) as servers, session(servers[0]) as s:
        readers = [dps.Session(server) for server in servers[1:]]
        try:
            for reader in readers:
                s.push(ones())
                reader.pull()
                with reader.view():
                    pass
            assert s.stats()["ps:0"]["leases"] == 0
        finally:
            for reader in readers:
                reader.close()


def test_what_ctrl_c_leaves_behind_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: at_once.AtOnce, lent: Any) -> None:
        raise KeyboardInterrupt

    with trained() as s:
        for _ in range(5):
            with monkeypatch.context() as patch:
                patch.setattr(at_once.AtOnce, "note", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    s.pull()
        s.pull()
        s.push(ones())
        assert s.stats()["ps:0"]["leases"] == 0


def test_what_is_done_to_the_arrays_of_one_view_is_not_seen_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with trained() as s:
        with s.view() as seen, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy 2.5 advises against it
            seen["w"].shape = (-1,)
        with s.view() as seen:
            assert seen["w"].shape == (100, 170) and not seen["w"].flags.writeable
        assert s.pull(out=ones())["w"].shape == (100, 170)


@pytest.mark.parametrize("reads", ["view", "prefetch"])
def test_steps_go_on_as_usual_while_an_older_version_is_read_for_long(reads: str, asked: Asked) -> None:
    """A number that is still read keeps the next messages from telling that later ones are not."""
    with trained() as s, ExitStack() as stack:
        if reads == "view":
            seen = stack.enter_context(s.view())
        else:
            ahead = s.prefetch()
            seen = next(ahead)
        first = float(seen["w"][0, 0])
        for _ in range(60):
            s.step(ones())
        assert s.stats()["ps:0"]["leases"] <= 10 and float(seen["w"][0, 0]) == first
        assert "Pull" not in asked and asked.count("Release") <= 8
        stack.close()
        if reads == "prefetch":
            ahead.close()  # type: ignore[attr-defined]
        s.step(ones())
        s.push(ones())
        assert s.stats()["ps:0"]["leases"] == 0

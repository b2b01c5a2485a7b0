"""Memory of pulled values that is used again: never while anybody has it, or an array in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dps
from dps.client.assembly import Assembly
from dps.client.pulling import PullMemory, Recycled
from dps.variables.plan import Plan, VariableSpec, make_plan
from dps.variables.tree import Nesting, nested
from tests.in_process import cluster
from tests.variables.models import SGD


def plan_of(variables: int, ps: int = 1) -> Plan:
    names = [f"{'a' if i % 3 else 'b'}/v{i}" for i in range(variables)]
    specs = [VariableSpec(name, (2, 2) if i % 2 else (3,), "<f4", SGD) for i, name in enumerate(names)]
    turns = iter(range(variables))
    return make_plan(specs, tuple(range(ps)), lambda *_: next(turns) % ps, None)


class Puller:
    """Pulls values: all elements of the n-th are n."""

    def __init__(self, plan: Plan) -> None:
        self.layouts = plan.layouts
        self.assembly = Assembly(plan, Nesting(nested([spec.name for spec in plan.variables])))
        self.recycled = Recycled()
        self.number = 0

    def begin(self) -> PullMemory:
        """Memory for the next values, which are all its number."""
        memory = self.recycled.take(self.layouts)
        self.number += 1
        for ps, layout in self.layouts.items():
            memory.run(ps)[:] = 0
            for flat in layout.flats(memory.run(ps)):
                flat[:] = self.number
        return memory

    def pull(self) -> Any:
        return self.begin().tree(self.assembly)


def places(tree: Any) -> list[int]:
    return [leaf.__array_interface__["data"][0] for group in tree.values() for leaf in group.values()]


@pytest.mark.parametrize("variables", [2, 4, 8])
@pytest.mark.parametrize("ps", [1, 2])
def test_memory_that_nobody_has_comes_again(variables: int, ps: int) -> None:
    puller = Puller(plan_of(variables, ps))
    first = puller.pull()
    where = places(first)
    second = puller.pull()
    assert not set(places(second)) & set(where)
    del first
    assert places(puller.pull()) == where


def leaf_of(tree: Any) -> Any:
    return tree["a"]["v1"]


HOLDS: list[Callable[[Any], Any]] = [
    lambda tree: tree, leaf_of, lambda tree: leaf_of(tree)[1:], lambda tree: leaf_of(tree).T.reshape(-1),
    lambda tree: memoryview(leaf_of(tree)), lambda tree: leaf_of(tree).base, lambda tree: tree["b"],
]  # fmt: skip


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("variables", [2, 4, 8])
def test_memory_that_somebody_has_does_not_come_again(variables: int, hold: Callable[[Any], Any]) -> None:
    puller = Puller(plan_of(variables))
    held = hold(puller.pull())
    for _ in range(10):
        puller.pull()
    kept = held
    while isinstance(kept, dict):
        kept = next(iter(kept.values()))
    values = np.frombuffer(kept, np.float32) if isinstance(kept, memoryview) else np.asarray(kept).view(np.float32)
    assert (values[values != 0] == 1).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("variables", [2, 4, 8])
def test_what_a_caller_did_to_an_array_is_no_part_of_the_next_values(variables: int) -> None:
    puller = Puller(plan_of(variables))
    for _ in range(6):
        tree = puller.pull()
        leaf_of(tree).shape = (4,)
        next(iter(tree["b"].values())).flags.writeable = False
        tree = None
        tree = puller.pull()
        assert leaf_of(tree).shape == (2, 2) and all(leaf.flags.writeable for leaf in tree["b"].values())


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_held_ever_changes(seed: int) -> None:
    """Trees, arrays, slices are held and let go at random; so many trees are made that kept ones have to go."""
    chance = random.Random(seed)
    puller = Puller(plan_of(chance.choice([2, 8, 12, 20]), chance.choice([1, 2, 3])))
    held: list[tuple[int, Any]] = []
    for _ in range(150):
        tree = puller.pull()
        if chance.random() < 0.6:
            group = chance.choice(list(tree.values()))
            leaf = chance.choice(list(group.values()))
            held.append((puller.number, chance.choice([tree, group, leaf, leaf[1:], leaf.view()])))
            leaf = group = None
        tree = None
        chance.shuffle(held)
        del held[chance.randrange(9) :]
        for number, what in held:
            for values in _arrays(what):
                assert (values == number).all(), f"pulled {number}, now {values}"


def _arrays(what: Any) -> list[Any]:
    return [found for inner in what.values() for found in _arrays(inner)] if isinstance(what, dict) else [what]


def test_of_memory_that_is_always_held_only_some_is_known_again() -> None:
    puller = Puller(plan_of(8))
    held = [puller.pull() for _ in range(10)]
    assert len({place for tree in held for place in places(tree)}) == 80
    assert len(puller.recycled._made) == Recycled.KEPT


@pytest.mark.parametrize("seed", range(30))
def test_pulls_on_their_way_that_are_more_than_are_kept_have_arrays_of_their_own(seed: int) -> None:
    chance = random.Random(seed)
    puller = Puller(plan_of(8))
    under_way: list[tuple[int, PullMemory]] = []
    held: list[tuple[int, Any]] = []
    for _ in range(60):
        if chance.random() < 0.5 and len(under_way) < 7:
            under_way.append((puller.number + 1, puller.begin()))
        elif under_way:
            number, one = under_way.pop(0)
            held.append((number, one.tree(puller.assembly)))
            del one, held[:-2]
        for number, tree in held:
            assert all((values == number).all() for values in _arrays(tree))


@pytest.mark.parametrize("ps", [1, 3])
def test_memory_with_scalars_and_empty_arrays_is_free_when_nobody_has_any_of_it(ps: int) -> None:
    shapes, dtypes = [(), (0,), (3, 0, 2), (1,), (2, 2), (7,), (1, 1, 5)], ["<f4", "<f8", "<f2"]
    specs = [VariableSpec(f"v{i}", shapes[i % 7], dtypes[i % 3], SGD) for i in range(23)]
    turns = iter(range(len(specs)))
    plan = make_plan(specs, tuple(range(ps)), lambda *_: next(turns) % ps, None)
    memory, assembly = PullMemory(plan.layouts), Assembly(plan, Nesting(nested([spec.name for spec in specs])))
    for spec in specs:
        leaf = memory.tree(assembly)[spec.name]
        assert not memory.is_free and leaf.shape == spec.shape
        del leaf
        assert memory.is_free


def test_a_pull_of_some_names_has_memory_of_their_ps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[dict[int, int]] = []
    make = PullMemory.__init__

    def watch(self: PullMemory, layouts: Any) -> None:
        sizes.append({ps: layout.nbytes for ps, layout in layouts.items()})
        make(self, layouts)

    params = {"a": np.zeros(1000, np.float32), "huge": np.ones(1_000_000, np.float32)}
    with (
        cluster(ps=2, transport="inproc") as (server,),
        dps.Session(server, params, optimizer=dps.optim.SGD(1.0)) as session,
    ):
        monkeypatch.setattr(PullMemory, "__init__", watch)
        for _ in range(2):
            assert session.pull(["a"])["a"].tolist() == [0.0] * 1000
        assert sizes and all(sum(made.values()) < 10_000 for made in sizes), sizes
        assert session.pull()["huge"].tolist() == params["huge"].tolist()
        assert sum(sizes[-1].values()) > 4_000_000

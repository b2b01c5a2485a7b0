"""Datasets give the same elements in the same order for the same seed, and go on from any position."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import dps
from dps.data import Dataset
from dps.errors import ConfigError
from dps.transport.current import runtime
from dps.transport.sim import World


def numbers(count: int) -> Dataset:
    return dps.data.from_arrays(np.arange(count))


def counted(count: int) -> Dataset:
    return dps.data.from_generator(lambda: iter(range(count)))


def plain(element: Any) -> Any:
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, list | tuple):
        return [plain(value) for value in element]
    return np.asarray(element).tolist()


def all_of(dataset: Any) -> list[Any]:
    return [plain(element) for element in dataset]


# -- each stage ----------------------------------------------------------------------------------------------------


def test_arrays_are_read_row_by_row_in_the_nesting_that_they_have() -> None:
    tree = {"x": np.arange(4.0).reshape(2, 2), "y": [np.array([7, 8]), (np.array([True, False]),)]}
    assert all_of(dps.data.from_arrays(tree)) == [
        {"x": [0.0, 1.0], "y": [7, [True]]},
        {"x": [2.0, 3.0], "y": [8, [False]]},
    ]
    assert all_of(dps.data.from_arrays(np.arange(2), np.arange(2))) == [[0, 0], [1, 1]]


def test_batches_have_one_more_axis_and_the_last_is_shorter_or_left_out() -> None:
    x, y = np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5)
    batches = list(dps.data.from_arrays(x, y).batch(2))
    assert [b[0].shape for b in batches] == [(2, 2), (2, 2), (1, 2)]
    assert batches[0][0].dtype == np.float32
    assert len(list(dps.data.from_arrays(x, y).batch(2, drop_remainder=True))) == 2
    assert all_of(counted(5).batch(2)) == all_of(numbers(5).batch(2)) == [[0, 1], [2, 3], [4]]


def test_the_arrays_of_a_batch_are_the_callers_own() -> None:
    x = np.arange(4)
    for batch in dps.data.from_arrays(x).batch(2):
        batch += 100
    assert x.tolist() == [0, 1, 2, 3]


def test_a_function_of_two_arguments_gets_the_parts_of_a_tuple() -> None:
    dataset = dps.data.from_arrays(np.arange(3), np.arange(3) * 10)
    assert all_of(dataset.map(lambda x, y: x + y)) == [0, 11, 22]
    assert all_of(dataset.map(lambda pair: pair[1])) == [0, 10, 20]
    assert all_of(dataset.batch(3).map(lambda x, y: {"sum": x + y})) == [{"sum": [0, 11, 22]}]


def test_shards_are_disjoint_and_together_the_dataset() -> None:
    for of in (numbers(10), counted(10)):
        parts = [all_of(of.shard(3, i)) for i in range(3)]
        assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
        assert all_of(of.shard(3, 0).batch(3)) == [[0, 3, 6], [9]]


def test_a_shard_calls_functions_for_its_own_elements_only_and_its_position_is_kept() -> None:
    called: list[int] = []

    def noted(batch: Any) -> Any:
        called.append(int(batch[0]))
        return batch * 10

    dataset = numbers(10).batch(2).map(noted).map(lambda batch: batch + 1).shard(2, 1)
    batches = dataset.iterator()
    assert plain(next(batches)) == [21, 31]
    assert [plain(batch) for batch in dataset.iterator(batches.position)] == [[61, 71]]
    assert called == [2, 6]


def test_repeat_is_one_epoch_after_the_other() -> None:
    once, twice = numbers(7).shuffle(4, seed=3), numbers(7).shuffle(4, seed=3).repeat(2)
    first, second = all_of(once), all_of(once)
    assert first != second
    assert all_of(twice) == first + second
    third_and_fourth = all_of(once) + all_of(once)
    assert all_of(twice) == third_and_fourth
    endless = iter(numbers(3).repeat())
    assert [int(next(endless)) for _ in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert all_of(numbers(0).repeat()) == []


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    for name, size in (("a", 3), ("b", 0), ("c", 2)):
        np.save(tmp_path / f"{name}.npy", np.arange(size))
    paths = [tmp_path / f"{name}.npy" for name in "abc"]
    assert all_of(dps.data.from_files(paths, lambda path: dps.data.from_arrays(np.load(path)))) == [0, 1, 2, 0, 1]


# -- shuffles ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 5))
def test_a_shuffle_gives_each_element_once_and_none_before_it_could_be_in_the_buffer(
    count: int, buffer: int, seed: int
) -> None:
    found = all_of(numbers(count).shuffle(buffer, seed))
    assert sorted(found) == list(range(count))
    assert all(element < at + buffer for at, element in enumerate(found))
    assert all_of(counted(count).shuffle(buffer, seed)) == found


def test_any_order_is_as_likely_with_a_buffer_of_all() -> None:
    orders: dict[str, int] = {}
    for seed in range(6000):
        found = str(all_of(numbers(3).shuffle(3, seed)))
        orders[found] = orders.get(found, 0) + 1
    assert len(orders) == 6
    assert all(850 < count < 1150 for count in orders.values())


def test_without_a_seed_each_dataset_has_another_order() -> None:
    assert all_of(numbers(50).shuffle(50)) != all_of(numbers(50).shuffle(50))


def test_a_position_of_a_shuffle_without_a_seed_has_the_orders_of_all_later_epochs() -> None:
    def dataset() -> dps.data.Dataset:
        return dps.data.from_arrays(np.arange(20)).shuffle(20).repeat(4).batch(10)

    iterator = dataset().iterator()
    next(iterator)
    position = json.loads(json.dumps(iterator.position))
    wanted = [batch.tolist() for batch in iterator]
    assert [batch.tolist() for batch in dataset().iterator(position)] == wanted


def test_a_position_changes_the_order_of_no_other_iterator_or_dataset() -> None:
    """The seed of the position was set in the shuffle itself, which others use, too."""
    source = numbers(20).shuffle(20)
    dataset, other = source.repeat(3), source.batch(20)
    wanted, begun = all_of(source.repeat(3)), iter(dataset)
    taken = [int(next(begun)) for _ in range(5)]
    elsewhere = numbers(20).shuffle(20).repeat(3).iterator()
    next(elsewhere)
    assert all_of(dataset.iterator(elsewhere.position)) == all_of(elsewhere)
    assert taken + all_of(begun) == wanted
    assert [list(batch) for batch in other] == [wanted[:20]]


def test_parts_of_a_shuffle_without_a_seed_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    numbers = dps.data.from_arrays(np.arange(4))
    for quiet in numbers.shuffle(4, seed=1).shard(2, 0), numbers.shard(2, 1).shuffle(4), numbers.shuffle(4).shard(1, 0):
        assert len(list(quiet)) in (2, 4)
    assert not caplog.records
    numbers.shuffle(4).map(abs).repeat(2).shard(2, 1)
    assert "shard(2, 1) after a shuffle without a seed" in caplog.text and "give shuffle a seed" in caplog.text


def test_the_order_is_the_same_in_another_process() -> None:
    code = "import dps, numpy as np; print([int(i) for i in dps.data.from_arrays(np.arange(40)).shuffle(9, 5)])"
    told = subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout
    assert told.strip() == str(all_of(numbers(40).shuffle(9, 5)))


# -- positions -----------------------------------------------------------------------------------------------------

Step = Callable[[Dataset], Dataset]
small = st.integers(1, 9)
steps = st.one_of(
    st.tuples(small, st.integers(0, 3)).map(lambda a: lambda d: d.shuffle(*a)),
    st.just(lambda d: d.map(lambda element: element)),
    st.integers(1, 3).map(lambda n: lambda d: d.repeat(n)),
    st.integers(1, 3).map(lambda n: lambda d: d.shard(n, n - 1)),
    st.integers(1, 3).map(lambda n: lambda d: d.prefetch(n)),
)
sources = st.tuples(st.sampled_from(["arrays", "generator", "files"]), st.integers(0, 25))


def source(kind: str, count: int) -> Dataset:
    if kind == "arrays":
        return numbers(count)
    if kind == "generator":
        return counted(count)
    return dps.data.from_files([str(i) for i in range(0, count, 4)], lambda p: range(int(p), min(int(p) + 4, count)))


@given(sources, st.lists(steps, max_size=4), st.integers(0, 4), st.integers(0, 60), st.integers(0, 2))
def test_a_position_gives_what_follows(
    of: tuple[str, int], chain: list[Step], batch: int, taken: int, epochs: int
) -> None:
    def built() -> Dataset:
        dataset = source(*of)
        for step in chain:
            dataset = step(dataset)
        return dataset.batch(batch) if batch else dataset

    dataset = built()
    for _ in range(epochs):
        list(dataset)
    iterator = dataset.iterator()
    for _, _element in zip(range(taken), iterator, strict=False):
        pass
    position = json.loads(json.dumps(iterator.position))
    rest, again = all_of(iterator), built()
    restored = again.iterator(position)
    assert restored.position == position
    assert all_of(restored) == rest
    assert all_of(again) == all_of(dataset)  # and the epochs after it


def test_a_position_after_a_position_is_as_good() -> None:
    dataset = counted(100).shuffle(8, seed=1).batch(3).repeat(2)
    whole, found = all_of(numbers(100).shuffle(8, seed=1).batch(3).repeat(2)), []
    position: dict[str, Any] | None = None
    while True:
        iterator = dataset.iterator(position)
        batch = next(iterator, None)
        if batch is None:
            break
        found.append(batch.tolist())
        position = iterator.position
    assert found == whole


def test_a_position_reads_few_examples_again() -> None:
    read: list[int] = []

    def file(path: str) -> Iterator[int]:
        for number in range(int(path), int(path) + 10):
            read.append(number)
            yield number

    dataset = dps.data.from_files([str(i) for i in range(0, 10_000, 10)], file).shuffle(32, seed=2)
    iterator = dataset.iterator()
    for _ in range(9000):
        next(iterator)
    position = iterator.position
    read.clear()
    assert all_of(dataset.iterator(position)) == all_of(iterator)
    assert min(read) > 8000


def entries(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all entries of a position."""
    for key, value in state.items() if isinstance(state, dict) else ():
        yield (*path, key)
        yield from entries(value, (*path, key))


@pytest.mark.parametrize("kind", ["arrays", "generator", "files"])
def test_a_position_that_is_damaged_or_of_another_dataset_is_one_line(kind: str) -> None:
    """It was a KeyError or TypeError from inside, or other elements without a word."""
    dataset = source(kind, 20).shuffle(4).shard(2, 1).batch(2).repeat(3).prefetch(2)
    iterator = dataset.iterator()
    next(iterator)
    position = json.loads(json.dumps(iterator.position))
    missing = object()
    for path in entries(position):
        for value in (missing, None, -1, "x", 1.5, True, [1], {}, 10**4):
            other = json.loads(json.dumps(position))
            inner = other
            for key in path[:-1]:
                inner = inner[key]
            if value is missing:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            if value == 10**4 and path[-1] in ("epoch", "seed"):
                continue  # another epoch, and another shuffle without a seed
            with pytest.raises(dps.ConfigError, match="position: ") as caught:
                next(dataset.iterator(other))
            assert "\n" not in str(caught.value)
    assert all_of(dataset.iterator(position)) == all_of(iterator)


@pytest.mark.parametrize("other", [numbers(20).shuffle(5, seed=1), numbers(20).shuffle(4, seed=2)])
def test_a_position_of_another_shuffle_is_refused(other: Dataset) -> None:
    iterator = numbers(20).shuffle(4, seed=1).iterator()
    next(iterator)
    with pytest.raises(dps.ConfigError, match="position: shuffle: got "):
        other.iterator(iterator.position)


# -- prefetch ------------------------------------------------------------------------------------------------------


def test_prefetch_reads_ahead_no_further_than_it_may() -> None:
    made: list[int] = []
    dataset = counted(100).map(lambda i: made.append(i) or i).prefetch(4)
    iterator = iter(dataset)
    assert next(iterator) == 0
    deadline = runtime().now() + 10
    while len(made) < 6 and runtime().now() < deadline:
        runtime().sleep(0.001)
    assert len(made) == 6  # one taken, four in line, one in hand
    iterator.close()


def test_an_iterator_that_is_forgotten_ends_its_thread() -> None:
    iterator = iter(counted(1000).prefetch(2))
    next(iterator)
    assert [t for t in threading.enumerate() if t.name == "prefetch"]
    del iterator
    gc.collect()
    deadline = runtime().now() + 10
    while [t for t in threading.enumerate() if t.name == "prefetch"] and runtime().now() < deadline:
        runtime().sleep(0.001)
    assert not [t for t in threading.enumerate() if t.name == "prefetch"]


def test_an_error_comes_through_a_prefetch_in_its_place() -> None:
    iterator = iter(dps.data.from_generator(failing).prefetch(8))
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(dps.DataError, match=r"failing raised KeyError after 2 examples: 'no such word'"):
        next(iterator)
    with pytest.raises(dps.DataError, match="failing raised KeyError after 2 examples"):
        next(iterator)  # it has not ended


def test_prefetch_is_a_task_of_a_simulated_process() -> None:
    found: list[Any] = []

    def main() -> None:
        found.extend(all_of(numbers(20).shuffle(5, seed=1).batch(2).prefetch(3)))

    with World(1) as world:
        process = world.process("worker:0", main)
        world.run()
        assert process.error is None
    assert found == all_of(numbers(20).shuffle(5, seed=1).batch(2))


# -- bad use -------------------------------------------------------------------------------------------------------


def failing() -> Iterator[int]:
    yield 0
    yield 1
    raise KeyError("no such word")


def test_a_generator_that_raises_is_named_with_the_examples_before_it() -> None:
    with pytest.raises(dps.DataError, match=r"^from_generator: failing raised KeyError after 2 examples: ") as caught:
        list(dps.data.from_generator(failing).batch(4))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(dps.DataError, match=r"load\('none.npy'\) raised FileNotFoundError after 0 examples"):
        list(dps.data.from_files(["none.npy"], np.load))


def test_a_function_that_raises_is_named() -> None:
    def halve(x: int) -> float:
        raise ValueError("odd\nnumber")

    with pytest.raises(dps.DataError, match=r"halve raised ValueError: odd number$"):
        list(numbers(3).map(halve))


def test_a_shape_that_changes_in_a_batch_is_told_with_the_example() -> None:
    words = [{"word": np.zeros(3)}, {"word": np.zeros(3)}, {"word": np.zeros(4)}]
    with pytest.raises(dps.DataError, match=r"'word' of example 2 of a batch has shape \(4,\) .* example 0 has \(3,\)"):
        list(dps.data.from_generator(lambda: words).batch(3))
    with pytest.raises(dps.DataError, match="example 1 of a batch has y, example 0 has x"):
        list(dps.data.from_generator(lambda: [{"x": 1}, {"y": 1}]).batch(2))
    with pytest.raises(dps.DataError, match="wanted an array of numbers"):
        list(dps.data.from_generator(lambda: ["a", "b"]).batch(2))


def test_arguments_that_make_no_sense_say_what_was_wanted() -> None:
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: numbers(3).batch(0), "batch: n: got 0, wanted a whole number from 1"),
        (lambda: numbers(3).batch(True), "batch: n: got True"),
        (lambda: numbers(3).shuffle(-1), "shuffle: buffer: got -1"),
        (lambda: numbers(3).shard(2, 2), "shard: i: got 2, wanted 0 to 1"),
        (lambda: numbers(3).repeat(0), "repeat: n: got 0"),
        (lambda: numbers(3).map("f"), "map: got a str, wanted a function"),  # type: ignore[arg-type]
        (lambda: dps.data.from_generator(failing()), "from_generator: got a generator, wanted a function"),  # type: ignore[arg-type]
        (lambda: dps.data.from_files("a.npy", np.load), "got the path 'a.npy', wanted a list"),
        (lambda: dps.data.from_files(None, np.load), "from_files: got None, wanted a list of paths"),  # type: ignore[arg-type]
        (lambda: dps.data.from_files([3], np.load), "got the path 3, wanted text or a pathlib.Path"),  # type: ignore[list-item]
        (lambda: dps.data.from_arrays([[1, 2], [3, 4]]), r"has shape \(\), wanted rows; lists and tuples are nestings"),
        (lambda: dps.data.from_arrays(), "got no arrays"),
        (lambda: dps.data.from_arrays(np.zeros(3), np.zeros(4)), "'1' has 4 rows, wanted 3 rows as '0'"),
        (lambda: dps.data.from_arrays({"x": np.zeros(3), "y": 1.0}), r"'y' has shape \(\), wanted 3 rows as 'x'"),
        (lambda: numbers(3).iterator({"epoch": 0}), "wanted the position of an iterator"),
        (
            lambda: numbers(3).batch(2).iterator(numbers(3).iterator().position),
            "got 'from_arrays' where",
        ),
        (lambda: numbers(3).iterator(numbers(4).iterator().position), "arrays with 4 rows, these have 3"),
    ]
    for call, text in wrong:
        with pytest.raises(dps.ConfigError, match=text):
            call()


def test_a_dataset_of_one_element_has_the_arrays_as_they_are() -> None:
    x, y = np.arange(6).reshape(2, 3), np.float32(7)
    assert plain(list(dps.data.from_tensors(x))) == [[[0, 1, 2], [3, 4, 5]]]
    assert plain(list(dps.data.from_tensors({"x": x, "y": y}))) == [{"x": [[0, 1, 2], [3, 4, 5]], "y": 7}]
    batches = list(dps.data.from_tensors(np.ones(1), y).repeat(100).batch(10))
    assert [(a.shape, b.shape) for a, b in batches] == [((10, 1), (10,))] * 10
    assert plain(list(dps.data.from_tensors((x, y)))) == plain(list(dps.data.from_tensors(x, y)))
    with pytest.raises(ConfigError, match="from_tensors: got no arrays, wanted at least one"):
        dps.data.from_tensors()


@pytest.mark.parametrize(
    "after", [lambda d: d, lambda d: d.prefetch(2), lambda d: d.prefetch(1).shuffle(2, seed=1).batch(2).prefetch(1)]
)
def test_an_error_is_no_end_of_the_elements(after: Step) -> None:
    """The next call ended the pass, as if the elements were over."""

    def failing() -> Iterator[int]:
        yield from range(3)
        raise KeyError("no such word")

    iterator = iter(after(dps.data.from_generator(failing)))
    with pytest.raises(dps.DataError, match="no such word"):
        list(iterator)
    for _ in range(2):
        with pytest.raises(dps.DataError, match="no such word"):
            next(iterator)


def despite_errors(iterator: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """What a loop gets that goes on after errors (None stands for one), and the position after each."""
    while True:
        try:
            found = plain(next(iterator))
        except StopIteration:
            return
        except dps.DataError:
            found = None
        yield found, json.loads(json.dumps(iterator.position))  # type: ignore[attr-defined]


def but_for(*refused: int) -> Callable[[Any], Any]:
    def function(n: Any) -> Any:
        if n in refused:
            raise ValueError(f"no {n}")
        return n

    return function


@pytest.mark.parametrize("ahead", [lambda d: d, lambda d: d.prefetch(1), lambda d: d.prefetch(5)])
def test_a_loop_that_goes_on_after_an_error_of_a_function_misses_its_element_alone(ahead: Step) -> None:
    """The elements that were read for the same batch, shuffle buffer or shard were lost."""
    good = ahead(numbers(10).map(but_for(2, 3, 8)))
    assert [e for e, _ in despite_errors(iter(good))] == [0, 1, None, None, 4, 5, 6, 7, None, 9]
    batches = ahead(good.batch(3))
    assert [e for e, _ in despite_errors(iter(batches))] == [None, None, [0, 1, 4], [5, 6, 7], None, [9]]
    for size in (2, 4, 20):
        shuffled = [e for e, _ in despite_errors(iter(ahead(good.shuffle(size, seed=1))))]
        assert shuffled.count(None) == 3
        alone = dps.data.from_arrays(np.array([0, 1, 4, 5, 6, 7, 9])).shuffle(size, seed=1)
        assert [e for e in shuffled if e is not None] == all_of(alone)
    shards = [[e for e, _ in despite_errors(iter(ahead(good.batch(1).shard(2, i))))] for i in (0, 1)]
    assert [[e for e in shard if e] for shard in shards] == [[[0], [4], [6], [9]], [[1], [5], [7]]]
    twice = good.batch(4).repeat(2)
    assert [e for e, _ in despite_errors(iter(twice)) if e] == [[0, 1, 4, 5], [6, 7, 9]] * 2


@pytest.mark.parametrize("ahead", [lambda d: d, lambda d: d.prefetch(2)])
def test_a_position_after_an_error_gives_all_that_the_loop_has_not_got(ahead: Step) -> None:
    """Within a batch it is that before the batch, so that the error comes again."""
    refused = but_for(2, 8)
    batches = ahead(numbers(10).map(refused).batch(3).repeat(2))
    wanted = [[0, 1, 3], [4, 5, 6], [7, 9]] * 2
    found: list[Any] = []
    for element, position in despite_errors(iter(batches)):
        found += [element] if element is not None else []
        rest = [e for e, _ in despite_errors(batches.iterator(position)) if e is not None]
        assert found + rest == wanted


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_second_thread_that_uses_an_iterator_is_told_and_neither_gets_elements_of_the_other(prefetched: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(n: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return n

    dataset = dps.data.from_arrays(np.arange(3)).map(slow)
    iterator = iter(dataset.prefetch(1) if prefetched else dataset)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(iterator))
    thread.start()
    assert begun.wait(30)
    with pytest.raises(ConfigError, match="dataset: another thread uses this iterator; make one for each thread"):
        next(iterator)
    go_on.set()
    thread.join(30)
    assert [int(n) for n in found] == [0, 1, 2] and next(iterator, None) is None


def closings() -> Iterator[Dataset]:
    numbers = dps.data.from_arrays(np.arange(9))
    yield numbers
    yield numbers.shuffle(3, seed=1).batch(2)
    yield numbers.prefetch(2)
    yield dps.data.from_generator(lambda: range(9))


@pytest.mark.parametrize("begun", [False, True])
def test_a_closed_iterator_gives_nothing_more_and_nobody_waits(begun: bool) -> None:
    for dataset in closings():
        iterator = iter(dataset)
        if begun:
            next(iterator)
        iterator.close()
        iterator.close()
        assert list(iterator) == []


def test_a_thread_that_waits_for_an_element_ends_when_another_closes_the_iterator() -> None:
    go_on = threading.Event()

    def slow(n: Any) -> Any:
        assert n == 0 or go_on.wait(30)
        return n

    iterator = iter(dps.data.from_arrays(np.arange(3)).map(slow).prefetch(1))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(iterator))
    thread.start()
    while not found:
        assert thread.is_alive()
    iterator.close()
    thread.join(30)
    assert not thread.is_alive() and [int(n) for n in found] == [0]
    go_on.set()

"""The dataset: examples from arrays, files or a generator, and what is done to them, as a chain of stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from dps.checkpoint.files import is_path
from dps.data.arrays import Arrays
from dps.data.prefetching import Prefetch
from dps.data.sources import ArraySource, FileSource, GeneratorSource
from dps.data.stage import Cursor, OneReader, Stage, State, check_position
from dps.data.stages import BatchStage, Map, Repeat, Shuffle, has_drawn_order, read_example, sharded, with_seeds_of
from dps.errors import ConfigError
from dps.process.telemetry import log, timed_read
from dps.training.definition import whole_number
from dps.transport.current import runtime


class Iterator:
    """One pass over a dataset. It belongs to one thread at a time; a ConfigError tells another one.

    Made by `iter(dataset)` or `dataset.iterator(position)`.

    Args:
        stage: The last stage of the dataset.
        epoch: Which pass this is, from 0.
        at: Where to begin. None: at the beginning.

    Example:
        ```pycon
        >>> batches = dps.data.from_arrays(np.arange(6)).batch(2).iterator()
        >>> next(batches), batches.position["epoch"]
        (array([0, 1]), 0)
        ```
    """

    def __init__(self, stage: Stage, epoch: int, at: State | None) -> None:
        self._epoch = epoch
        self._cursor: Cursor = stage.open_cursor(epoch, at)
        self._arrays, self._now = stage.arrays, runtime().now
        self._one_reader, self._closed = OneReader("dataset"), False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        with self._one_reader:
            if self._closed:
                raise StopIteration
            found = timed_read(self._now, lambda: read_example(self._cursor, self._arrays))
        if not found:
            raise StopIteration
        return found[0]

    @property
    def position(self) -> dict[str, Any]:
        """Where this pass is, after the elements that it has given: numbers, text, lists and dicts, fit for JSON.

        `dataset.iterator(position)` gives what follows, also in another process.
        """
        return {"epoch": self._epoch, "at": self._cursor.state()}

    def close(self) -> None:
        """End the pass, and the task that reads ahead. Does not wait for it. No more elements come.

        A second call does nothing.
        """
        self._closed = True
        self._cursor.close()


class Dataset:
    """Examples and what is done to them. A dataset is not changed: each method returns another one.

    An example is an array or a number, or a dict, list or tuple of them, nested as variables are. Each `for` over a
    dataset is a pass of its own, an epoch: shuffles have another order in each, and for the same seed the same one in
    each process.

    Made by `from_arrays`, `from_generator` or `from_files`.

    Args:
        stage: The last stage.

    Example:
        ```pycon
        >>> x, y = np.arange(6.0).reshape(6, 1), np.arange(6)
        >>> dataset = dps.data.from_arrays(x, y).shuffle(6, seed=1).batch(4)
        >>> [labels.tolist() for _, labels in dataset]
        [[2, 4, 5, 0], [3, 1]]
        >>> [labels.tolist() for _, labels in dataset]
        [[5, 3, 0, 2], [1, 4]]
        ```
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._epoch = 0

    def map(self, function: Callable[..., Any]) -> Dataset:
        """Each element through a function; after `batch`, each batch.

        An iterator goes on after an error of the function: the next call leaves out this one element and no other, also
        where a batch or a shuffle's buffer was being filled.

        Args:
            function: Gets an element, and returns what takes its place. An element that is a tuple comes as several
                arguments where the function must be given as many.

        Returns:
            The dataset of the results.

        Raises:
            DataError: While it is read: the function has raised an error.
        """
        return Dataset(Map(self.stage, _callable("map", function)))

    def shuffle(self, buffer: int, seed: int | None = None) -> Dataset:
        """Elements in random order, another one in each epoch.

        Args:
            buffer: How many elements are kept and drawn from. With as many as the dataset has, any order is as likely.
            seed: Chooses the orders. None: another one for each dataset. `iterator(position)` then takes that of the
                position.

        Returns:
            The shuffled dataset.

        Raises:
            ConfigError: A buffer below 1, or a negative seed.
        """
        start = runtime().random.getrandbits(31) if seed is None else whole_number("shuffle: seed: got ", seed, 0)
        size = whole_number("shuffle: buffer: got ", buffer, 1)
        return Dataset(Shuffle(self.stage, size, start, drawn=seed is None))

    def batch(self, n: int, drop_remainder: bool = False) -> Dataset:
        """Consecutive examples stacked: each array gets an axis of `n` in front.

        Args:
            n: Examples in a batch.
            drop_remainder: Whether to leave out a last batch of fewer examples.

        Returns:
            The dataset of the batches. Their arrays are the caller's own.

        Raises:
            ConfigError: A size below 1.
            DataError: While it is read: examples of different nestings, shapes or dtypes.
        """
        return Dataset(BatchStage(self.stage, whole_number("batch: n: got ", n, 1), drop_remainder))

    def repeat(self, n: int | None = None) -> Dataset:
        """Several epochs one after the other.

        Args:
            n: How many. None: without end.

        Returns:
            The longer dataset.

        Raises:
            ConfigError: A number below 1.
        """
        return Dataset(Repeat(self.stage, None if n is None else whole_number("repeat: n: got ", n, 1)))

    def shard(self, n: int, i: int) -> Dataset:
        """Every n-th element, from element `i` on: the part of one of `n` workers. All parts together are the dataset.

        After `map`, the function is called for the elements of this part only. After a `shuffle` without a seed, which
        has another order in each process, a warning says that the parts overlap.

        Args:
            n: How many parts there are.
            i: Which one, from 0 to n - 1.

        Returns:
            The part.

        Raises:
            ConfigError: No such part.
        """
        whole_number("shard: n: got ", n, 1)
        if whole_number("shard: i: got ", i, 0) >= n:
            raise ConfigError(f"shard: i: got {i}, wanted 0 to {n - 1}")
        if n > 1 and has_drawn_order(self.stage):
            log.warning(
                "shard(%d, %d) after a shuffle without a seed: in another process the order is another one, so parts "
                "overlap, and elements are left out; give shuffle a seed, or call shard first", n, i
            )  # fmt: skip
        return Dataset(sharded(self.stage, n, i))

    def prefetch(self, n: int) -> Dataset:
        """Elements made ahead by a thread of their own, while others are used.

        Args:
            n: How many at most.

        Returns:
            The same elements.

        Raises:
            ConfigError: A number below 1.
        """
        return Dataset(Prefetch(self.stage, whole_number("prefetch: n: got ", n, 1)))

    def iterator(self, position: dict[str, Any] | None = None) -> Iterator:
        """Begin a pass, or go on with an earlier one.

        What lies before the position is not made again, but for elements that a shuffle's buffer holds, and those that
        a generator has to yield first.

        Args:
            position: The `position` of an iterator of such a dataset. The next pass begins the epoch after its own.
                None: the next epoch.

        Returns:
            The iterator.

        Raises:
            ConfigError: A position of another dataset, or what is none.
            DataError: The dataset cannot be read.
        """
        epoch, at, stage = self._epoch, None, self.stage
        if position is not None:
            check_position(position)
            epoch, at = position["epoch"], position["at"]
            stage = with_seeds_of(at, stage)
        iterator = Iterator(stage, epoch, at)
        self.stage, self._epoch = stage, epoch + 1
        return iterator

    def __iter__(self) -> Iterator:
        return self.iterator()


def from_arrays(*arrays: Any) -> Dataset:
    """A dataset of the rows of arrays, in their order.

    Args:
        arrays: One array or nesting of arrays, whose rows are the examples; several: an example is a tuple. All have
            the same number of rows. They are not copied, and must not change while they are read.

    Returns:
        The dataset.

    Raises:
        ConfigError: No arrays, or different numbers of rows.
        TypeError: What is no array of numbers.

    Example:
        ```pycon
        >>> list(dps.data.from_arrays({"x": np.arange(4).reshape(2, 2), "y": np.array([7, 8])}))
        [{'x': array([0, 1]), 'y': array(7)}, {'x': array([2, 3]), 'y': array(8)}]
        ```
    """
    return Dataset(ArraySource(Arrays(arrays[0] if len(arrays) == 1 else arrays)))


def from_tensors(*arrays: Any) -> Dataset:
    """A dataset of one element, as TensorFlow's: the arrays as they are. `repeat` makes more of it.

    Args:
        arrays: One array or nesting of arrays; several: the element is a tuple. Lists and tuples are nestings, and
            numbers in them are arrays of shape (). They are not copied, and must not change while they are read.

    Returns:
        The dataset.

    Raises:
        ConfigError: No arrays.
        TypeError: What is no array of numbers.

    Example:
        ```pycon
        >>> ones = dps.data.from_tensors(np.ones(1), np.ones(1)).repeat(100).batch(10)
        >>> [x.shape for x, y in ones] == [(10, 1)] * 10
        True
        ```
    """
    return Dataset(ArraySource(Arrays(arrays[0] if len(arrays) == 1 else arrays, "from_tensors")))


def from_generator(function: Callable[[], Iterable[Any]]) -> Dataset:
    """A dataset of what a generator yields.

    Args:
        function: Returns the examples, each time from the first on: a generator function, or one that opens something.

    Returns:
        The dataset.

    Raises:
        ConfigError: No function, such as a generator that has already begun.

    Example:
        ```pycon
        >>> def squares():
        ...     for i in range(5):
        ...         yield i * i
        >>> [batch.tolist() for batch in dps.data.from_generator(squares).batch(2)]
        [[0, 1], [4, 9], [16]]
        ```
    """
    return Dataset(GeneratorSource(_callable("from_generator", function)))


def from_files(paths: Sequence[str | os.PathLike[str]], read: Callable[[str], Iterable[Any]]) -> Dataset:
    """A dataset of the examples in files, file after file.

    Args:
        paths: The files, in their order. Give each of several readers some of them: `paths[i::n]`.
        read: Gets a path, and returns the examples of that file: a generator, a list, or a dataset.

    Returns:
        The dataset.

    Raises:
        ConfigError: A single path, what is no path, or no function.

    Example:
        ```python
        def read(path):
            return dps.data.from_arrays(np.load(path))

        for name in "a.npy", "b.npy":
            np.save(name, np.arange(3))
        numbers = dps.data.from_files(["a.npy", "b.npy"], read)
        assert [int(n) for n in numbers] == [0, 1, 2, 0, 1, 2]
        ```
    """
    if isinstance(paths, str | os.PathLike):
        raise ConfigError(f"from_files: got the path {os.fspath(paths)!r}, wanted a list of paths")
    if not isinstance(paths, Iterable):
        raise ConfigError(f"from_files: got {paths!r:.60}, wanted a list of paths")
    paths = list(paths)
    for path in paths:
        if not is_path(path):
            raise ConfigError(f"from_files: got the path {path!r:.60}, wanted text or a pathlib.Path")
    return Dataset(FileSource([os.fspath(path) for path in paths], _callable("from_files", read)))


def _callable(who: str, function: Any) -> Any:
    if not callable(function):
        raise ConfigError(f"{who}: got a {type(function).__name__}, wanted a function")
    return function

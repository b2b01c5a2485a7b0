"""Input of replicas: global batches split into parts, or datasets that a function makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.cluster.partition import split_rows
from dps.errors import ConfigError
from dps.process.record import record
from dps.strategy.values import each_leaf, regroup_results
from dps.training.definition import whole_number

if TYPE_CHECKING:
    from dps.strategy.strategy import Strategy


@record
class InputContext:
    """What a function that makes a dataset is told; see `strategy.distribute_datasets_from_function`.

    Args:
        num_input_pipelines: How many datasets are made for the replicas in sync: one in each process.
        input_pipeline_id: Which of them this one is, from 0.
        num_replicas_in_sync: How many replicas sum their gradients.

    Example:
        ```pycon
        >>> context = dps.strategy.InputContext(1, 0, 4)
        >>> context.get_per_replica_batch_size(100)
        25
        ```
    """

    num_input_pipelines: int
    input_pipeline_id: int
    num_replicas_in_sync: int

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The size of a replica's batches.

        Args:
            global_batch_size: How many examples all replicas have together.

        Returns:
            The size of one replica's part.

        Raises:
            ConfigError: The global batch does not divide by the number of replicas, or is no whole number from 1.
        """
        global_batch_size = whole_number("get_per_replica_batch_size: got ", global_batch_size, 1)
        if global_batch_size % self.num_replicas_in_sync:
            raise ConfigError(
                f"a global batch of {global_batch_size} does not divide by {self.num_replicas_in_sync} replicas; try "
                f"{global_batch_size - global_batch_size % self.num_replicas_in_sync or self.num_replicas_in_sync}"
            )
        return global_batch_size // self.num_replicas_in_sync


class Distributed:
    """Batches for replicas: each `for` over it is a pass. `strategy.distribute_dataset` makes it.

    Args:
        batches: Makes an iterator over what is given to the replicas at each step.

    Example:
        ```pycon
        >>> strategy = dps.strategy.Mirrored(["/cpu:0", "/cpu:1"])
        >>> for batch in strategy.distribute_dataset([np.arange(3)]):
        ...     print(batch)
        PerReplica(array([0, 1]), array([2]))
        ```
    """

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches()


def split_batch(batch: Any, parts: int) -> list[Any]:
    """Split a global batch into parts by the first axis of its arrays. The first `size mod parts` parts have one
    example more. Raises ConfigError for arrays of different lengths, and for a number in place of an array.
    """
    sizes: dict[str, int] = {}

    def measure(path: str, leaf: Any) -> Any:
        array = leaf if hasattr(leaf, "shape") else np.asarray(leaf)
        if not array.shape:
            raise ConfigError(
                f"the global batch has {leaf!r:.60} at {path or 'its top'!r}, wanted arrays with a first axis"
            )
        sizes[path] = array.shape[0]
        return array

    arrays = each_leaf(measure, batch)
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{path}: {size}" for path, size in sizes.items())
        raise ConfigError(f"the arrays of a global batch have different numbers of examples: {said}")
    found, start = [], 0
    for rows in split_rows(next(iter(sizes.values()), 0), parts):
        found.append(each_leaf(lambda path, leaf, a=start, b=start + rows: leaf[a:b], arrays))
        start += rows
    return found


def split_batches(strategy: Strategy, dataset: Iterable[Any], to_device: bool) -> Distributed:
    """Global batches, of which each replica of this process gets its part."""
    if not hasattr(dataset, "__iter__"):
        raise ConfigError(f"distribute_dataset: got {type(dataset).__name__}, wanted an iterable of global batches")

    def batches() -> Iterator[Any]:
        for batch in dataset:
            parts = split_batch(batch, strategy.num_replicas_in_sync) if strategy.num_replicas_in_sync > 1 else [batch]
            yield [parts[strategy.first_replica + i] for i in range(strategy.local_replicas)]

    return Distributed(lambda: _placed_inputs(strategy, batches(), to_device))


def batches_of_function(strategy: Strategy, function: Callable[[InputContext], Any], to_device: bool) -> Distributed:
    """Batches of one dataset of this process: each replica in turn gets the next one whole, at an uneven end an empty
    one."""
    what = f"the dataset of {getattr(function, '__name__', function)!r:.60}"
    local = strategy.local_replicas
    context = InputContext(*strategy.input_pipelines, strategy.num_replicas_in_sync)

    def batches() -> Iterator[Any]:
        iterator, like = iter(function(context)), list[Any]()
        while strategy.any_goes_on(bool(found := list(itertools.islice(iterator, local)))):
            like = found[-1:] or like
            if not like:
                raise ConfigError(f"{what} has no batch on this worker, and others have; give each at least one")
            yield found + [empty_batch(like[0], what) for _ in range(local - len(found))]

    return Distributed(lambda: _placed_inputs(strategy, batches(), to_device))


def empty_batch(batch: Any, what: str) -> Any:
    """A batch like another one, without examples."""

    def leaf(path: str, of: Any) -> Any:
        if not getattr(of, "shape", ()):
            raise ConfigError(
                f"{what} ends in the middle of a step, and {of!r:.60} at {path or 'its top'!r} has no first axis, so "
                "there is no empty one for the other replicas; give arrays, or as many batches as divide"
            )
        return of[:0]

    return each_leaf(leaf, batch)


def _placed_inputs(strategy: Strategy, batches: Iterator[list[Any]], to_device: bool) -> Iterator[Any]:
    """The inputs as `run` takes them. `to_device`: arrays are copied to the replicas' GPUs, one step ahead; not ahead
    from a remote dataset, where asking for a batch says that the one before it is finished."""
    if not to_device:
        yield from map(regroup_results, batches)
        return
    from dps.data.remote_dataset import has_batch_in_use

    ahead: Any = None
    for parts in batches:
        now, ahead = ahead, regroup_results([strategy.on_device(i, part) for i, part in enumerate(parts)])
        if now is not None:
            yield now
        if has_batch_in_use():
            now, ahead = ahead, None
            yield now
    if ahead is not None:
        yield ahead

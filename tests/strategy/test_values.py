"""Reductions, input and variables of strategies: uneven parts, nested values, on_read and on_write variables, rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dps
from dps.errors import ConfigError
from dps.strategy import Mirrored, OneDevice, PerReplica, average_loss, get_replica_context, get_strategy
from dps.transport.dtypes import dtype_of
from tests.strategy.test_replicas import here, made, mirrored

# -- reductions -----------------------------------------------------------------------------------------------------


def test_a_reduction_over_an_axis_counts_elements_not_replicas() -> None:
    strategy, value = mirrored(), PerReplica([np.array([1.0, 2.0, 3.0]), np.array([10.0])])
    assert strategy.reduce("mean", value, axis=0) == 4.0
    assert strategy.reduce("sum", value, axis=0) == 16.0
    assert strategy.reduce("max", value, axis=0) == 10.0
    assert strategy.gather(value, axis=0).tolist() == [1, 2, 3, 10]
    two = PerReplica([np.ones((2, 3)), np.ones((1, 3))])
    assert strategy.reduce("Sum", {"a": two}, axis=0)["a"].tolist() == [3, 3, 3]
    with pytest.raises(ConfigError, match="has no axis 1"):
        strategy.reduce("sum", value, axis=1)
    with pytest.raises(ConfigError, match="no replica has an element along the axis"):
        strategy.reduce("max", PerReplica([np.zeros(0), np.zeros(0)]), axis=0)
    with pytest.raises(ConfigError, match="no axis 0"):
        strategy.gather(PerReplica([1, 2]), axis=0)


@pytest.mark.parametrize("mask", [[False, True], [False, False]])
def test_masked_arrays_are_refused_where_their_mask_would_be_lost(mask: list[bool]) -> None:
    """Masked elements counted as numbers."""
    masked, strategy = np.ma.masked_array([1.0, 100.0], mask), Mirrored(["/gpu:0", "/cpu:0"])
    values = PerReplica([np.ones(2), masked])
    for call in (
        lambda: strategy.reduce("mean", values, axis=0), lambda: strategy.reduce("sum", values),
        lambda: strategy.reduce("max", masked, axis=0), lambda: strategy.gather(values, axis=0),
        lambda: next(iter(strategy.distribute_dataset([{"x": np.ma.arange(4)}], to_device=True))),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=r"a replica has a masked array, \w+64 \(2,\), .* wanted .* \.compressed"):
            call()
    assert (
        strategy.reduce("mean", PerReplica([masked.filled(0), np.ones(2)]), axis=0) == masked.filled(0).sum() / 4 + 0.5
    )


def test_reductions_keep_dtypes_and_means_of_whole_numbers_are_numbers() -> None:
    strategy = mirrored()
    assert strategy.reduce("mean", PerReplica([1, 2])) == 1.5
    assert strategy.reduce("mean", PerReplica([np.float32(1), np.float32(2)])).dtype == np.float32
    assert strategy.reduce("sum", strategy.broadcast(1)) == 2
    with pytest.raises(ConfigError, match="replica 1 has 'a', wanted a number"):
        strategy.reduce("sum", PerReplica([1, "a"]))


@pytest.mark.parametrize(
    ("value", "mean"), [(True, 1.0), (np.uint8(200), 200.0), (np.int8(100), 100.0), (np.int64(2**62), 2.0**62)]
)
def test_means_of_bools_and_integers_are_computed_in_float64(value: Any, mean: float) -> None:
    """They were added up in their own dtype: bools by OR, small integers modulo 2**8."""
    strategy, per_replica = mirrored(), PerReplica([value, value])
    along = PerReplica([np.array([value])] * 2)
    everywhere = strategy.run(lambda each: here().all_reduce("mean", each), args=(per_replica,)).values[0]
    for found in (strategy.reduce("mean", per_replica), strategy.reduce("mean", along, axis=0), everywhere):
        assert found == mean and found.dtype == np.float64


@pytest.mark.parametrize(
    ("value", "total"), [(True, np.int64(2)), (np.int8(100), np.int64(200)), (np.uint8(200), np.uint64(400))]
)
def test_a_sum_of_bools_and_integers_is_the_same_with_and_without_an_axis(value: Any, total: Any) -> None:
    """Without an axis, True and True were True, and 200 and 200 in uint8 were 144."""
    strategy = mirrored()
    for found in (
        strategy.reduce("sum", PerReplica([value, value])),
        strategy.reduce("sum", PerReplica([np.array([value])] * 2), axis=0),
    ):
        assert found == total and found.dtype == total.dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_and_means_of_halves_are_computed_in_float32(dtype: str) -> None:
    """The total and the number of elements overflowed in float16: the means were infinite or 0."""
    strategy, half = mirrored(), dtype_of(dtype)
    for size, value in ((40_000, 0.5), (4, 40_000.0)):
        wanted, of_both = np.asarray(value, half), PerReplica([np.full(size, value, half)] * 2)
        found = strategy.reduce("mean", of_both, axis=0)
        assert found == wanted and found.dtype == half
        assert strategy.reduce("mean", of_both)[0] == wanted
    thousand = PerReplica([np.asarray(each, half) for each in (1024.0, 1.0, 1.0, 1024.0)])
    assert mirrored(4).reduce("sum", thousand) == np.asarray(2050.0, half)


def test_one_replica_has_plain_values() -> None:
    strategy = OneDevice("/cpu:0")
    assert strategy.run(lambda: 3) == 3 and strategy.broadcast(3) == 3 and strategy.local_results(3) == (3,)
    assert strategy.reduce("sum", np.array([1, 2]), axis=0) == 3
    assert get_strategy().reduce("SUM", 1.0, axis=None) == 1.0


def test_shares_of_the_loss_add_up_to_the_mean_and_bad_sizes_are_refused() -> None:
    assert average_loss(np.float32([1, 2]), 4).dtype == np.float32
    assert average_loss([3.0, 5.0], 4) == 2.0
    with pytest.raises(ConfigError, match="global_batch_size=0"):
        average_loss(np.ones(2), 0)


def test_a_share_of_the_loss_in_halves_is_computed_in_float32() -> None:
    """A global batch of 70000 was infinite in float16, so the share was 0; so was a sum above 65504."""
    few = average_loss(np.full(100, 100, np.float16), 70_000)
    assert few == np.float16(1e4 / 7e4) and few.dtype == np.float16
    assert average_loss(np.full(4, 40_000, np.float16), 4) == 40_000
    torch = pytest.importorskip("torch")
    losses = torch.full((4,), 40_000.0, dtype=torch.float16, requires_grad=True)
    share = average_loss(losses, 4)
    assert share.dtype == torch.float16 and share.item() == 40_000
    share.backward()
    assert losses.grad.tolist() == [0.25] * 4


# -- input ----------------------------------------------------------------------------------------------------------


def test_global_batches_are_split_unevenly_and_may_be_smaller_than_the_replicas() -> None:
    strategy = mirrored(4)
    parts = [batch.values for batch in strategy.distribute_dataset([np.arange(6), np.arange(2)])]
    assert [part.tolist() for part in parts[0]] == [[0, 1], [2, 3], [4], [5]]
    assert [len(part) for part in parts[1]] == [1, 1, 0, 0]


def test_datasets_of_dps_data_and_nested_batches_are_split_in_their_nesting() -> None:
    dataset = dps.data.from_arrays({"x": np.arange(10), "y": np.arange(10) * 2}).batch(4)
    found = [
        {key: [part.tolist() for part in value.values] for key, value in batch.items()}
        for batch in mirrored().distribute_dataset(dataset)
    ]
    assert found[0] == {"x": [[0, 1], [2, 3]], "y": [[0, 2], [4, 6]]}
    assert found[2] == {"x": [[8], [9]], "y": [[16], [18]]}
    iterator = iter(mirrored().distribute_dataset([(np.ones(2), np.zeros(2))] * 2))
    assert next(iterator)[0].values[0].tolist() == [1.0]


@pytest.mark.parametrize(
    ("batch", "match"), [((np.ones(2), np.ones(3)), "different numbers of examples: 0: 2, 1: 3"), (3.0, "first axis")]
)
def test_batches_that_cannot_be_split_are_refused(batch: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        next(iter(mirrored().distribute_dataset([batch])))
    with pytest.raises(ConfigError, match="wanted an iterable"):
        mirrored().distribute_dataset(3)  # type: ignore[arg-type]


def test_a_function_makes_the_batches_of_each_replica() -> None:
    def dataset(context: Any) -> Any:
        assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 2)
        size = context.get_per_replica_batch_size(8)
        return [np.full(size, i) for i in range(5)]

    found = [batch.values for batch in mirrored().distribute_datasets_from_function(dataset)]
    assert [[part[:1].tolist() for part in parts] for parts in found] == [[[0], [1]], [[2], [3]], [[4], []]]
    assert len(found[0][0]) == 4 and found[2][1].shape == (0,)
    with pytest.raises(ConfigError, match="does not divide by 2"):
        list(mirrored().distribute_datasets_from_function(lambda c: [c.get_per_replica_batch_size(7)]))


def test_an_uneven_end_without_examples_to_leave_out_is_refused() -> None:
    distributed = mirrored().distribute_datasets_from_function(lambda context: range(3))
    with pytest.raises(ConfigError, match="ends in the middle of a step, and 2 at 'its top' has no first axis"):
        list(distributed)


def test_batches_go_to_the_gpu_on_request() -> None:
    strategy = Mirrored(["/gpu:0", "/cpu:0"])
    first, second = [batch.values for batch in strategy.distribute_dataset([np.arange(4)] * 2, to_device=True)][1]
    assert not isinstance(first, np.ndarray) and first.copy_to_host().tolist() == [0, 1] and second.tolist() == [2, 3]


def test_batches_of_a_function_go_to_the_gpu_one_step_ahead() -> None:
    made: list[int] = []

    def dataset(context: Any) -> Any:
        for number in range(6):
            made.append(number)
            yield {"x": np.full(2, number)}

    found = iter(Mirrored(["/gpu:0", "/cpu:0"]).distribute_datasets_from_function(dataset, to_device=True))
    first, second = next(found)["x"].values
    assert first.copy_to_host().tolist() == [0, 0] and second.tolist() == [1, 1]
    assert made == [0, 1, 2, 3], "the next step's are there"
    assert [batch["x"].values[1].tolist() for batch in found] == [[3, 3], [5, 5]]


def test_a_function_may_make_a_dataset_of_dps_data() -> None:
    def dataset(context: Any) -> Any:
        return dps.data.from_arrays(np.arange(8)).batch(context.get_per_replica_batch_size(4))

    found = [batch.values for batch in mirrored().distribute_datasets_from_function(dataset)]
    assert [[part.tolist() for part in parts] for parts in found] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


# -- variables ------------------------------------------------------------------------------------------------------


def metrics(aggregation: str) -> Any:
    return {
        "w": np.zeros(2),
        "seen": dps.Variable(np.array(0), synchronization="on_read", aggregation=aggregation),
        "mean": dps.Variable(np.zeros(2), trainable=False, aggregation="mean"),
    }


@pytest.mark.parametrize(("aggregation", "wanted"), [("sum", 30), ("mean", 15), ("only_first_replica", 10)])
def test_on_read_values_are_local_to_a_replica_and_reduced_when_read_outside(aggregation: str, wanted: int) -> None:
    strategy = mirrored()
    variables = made(strategy, metrics(aggregation))

    def step(n: int) -> Any:
        variables.assign({"seen": variables.read()["seen"] + n})
        return int(variables.read()["seen"])

    assert strategy.run(step, args=(PerReplica([10, 20]),)).values == (10, 20)
    assert variables.read()["seen"] == wanted
    variables.assign({"seen": 7})
    assert variables.read()["seen"] == 7


def test_values_that_replicas_assign_are_aggregated_or_refused() -> None:
    strategy = mirrored()
    variables = made(strategy, metrics("sum"))
    strategy.run(lambda: variables.assign({"mean": np.full(2, here().replica_id)}))
    assert variables.read()["mean"].tolist() == [0.5, 0.5]
    with pytest.raises(ConfigError, match=r"assign: w would get another value from each of 2 replicas"):
        strategy.run(lambda: variables.assign({"w": np.ones(2)}))
    variables.assign({"w": np.ones(2)})
    assert variables.read()["w"].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"assign: w got float64 \(3,\), wanted float64 \(2,\)"):
        variables.assign({"w": np.ones(3)})
    with pytest.raises(ValueError, match="'v' is no variable"):
        variables.assign({"v": np.ones(3)})


def test_a_mean_that_replicas_assign_fits_a_variable_of_small_integers() -> None:
    """200 of both replicas became 72: they were added up in uint8."""
    strategy, large = mirrored(), np.array(200, np.uint8)
    on_read = dps.Variable(np.zeros_like(large), synchronization="on_read", aggregation="mean")
    on_write = dps.Variable(np.zeros_like(large), trainable=False, aggregation="mean")
    variables = made(strategy, {"r": on_read, "w": on_write})
    strategy.run(lambda: variables.assign({"r": large, "w": large}))
    found = variables.read()
    assert found["r"] == 200 and found["w"] == 200 and found["r"].dtype == found["w"].dtype == np.uint8


@pytest.mark.parametrize(
    "settings", [{"synchronization": "on_read"}, {"synchronization": "x"}, {"aggregation": "product"}]
)
def test_settings_of_a_variable_that_mean_nothing_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match="wanted|say how"):
        dps.Variable(np.zeros(2), **settings)


def test_replicas_on_the_cpu_read_one_copy() -> None:
    strategy = mirrored(3)
    variables = made(strategy)
    first, *others = strategy.run(lambda: [variables.read()["w"]])[0].values
    assert all(np.shares_memory(first, other) for other in others)


def test_what_was_read_keeps_its_values_and_cannot_be_written() -> None:
    strategy = mirrored()
    variables = made(strategy)
    before = variables.read()["w"]
    strategy.run(lambda: variables.apply_gradients({"w": np.ones(2)}))
    assert before.tolist() == [0, 0] and variables.read()["w"].tolist() == [-2, -2]
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 1


@pytest.mark.parametrize("devices", [["/cpu:0", "/cpu:1"], ["/gpu:0", "/cpu:0"]])
def test_rows_of_replicas_are_summed(devices: list[str]) -> None:
    strategy = Mirrored(devices)
    with strategy.scope():
        variables = strategy.variables({"table": np.zeros((4, 2)), "w": np.zeros(1)}, optimizer=dps.optim.SGD(1.0))
    rows = PerReplica([np.array([0, 2, 2]), np.array([2])])
    strategy.run(lambda r: variables.apply_gradients({"table": dps.Rows(r, np.ones((len(r), 2)))}), args=(rows,))
    for read in (variables.read, lambda: strategy.run(lambda: variables.read()["table"]).values[0]):
        found: Any = read()
        assert (found["table"] if isinstance(found, dict) else found)[:, 0].tolist() == [-1, 0, -3, 0]

    def mixed() -> None:
        dense = here().replica_id == 0
        table = np.ones((4, 2)) if dense else dps.Rows([1], np.ones((1, 2)))
        variables.apply_gradients({"table": table, "w": np.ones(1) if dense else None})

    strategy.run(mixed)
    assert variables.read()["table"][:, 0].tolist() == [-2, -2, -4, -1] and variables.read()["w"].tolist() == [-1]


@pytest.mark.parametrize(
    ("grads", "match"),
    [
        ({"w": np.array([1.0, np.nan])}, "gradient of w has NaN"), ({"w": np.ones(3)}, r"shape \(3,\)"),
        ({"v": np.ones(2)}, "no variable"), ({"w": np.ones(2, np.float32)}, "float32"),
    ],
)  # fmt: skip
def test_gradients_that_do_not_fit_are_refused_and_nothing_is_applied(grads: Any, match: str) -> None:
    strategy = mirrored()
    variables = made(strategy)
    with pytest.raises(ValueError, match=match):
        strategy.run(lambda: variables.apply_gradients(grads if here().replica_id else {"w": np.ones(2)}))
    assert variables.read()["w"].tolist() == [0, 0]


def test_gradients_are_applied_outside_of_replicas_too() -> None:
    strategy = mirrored()
    variables = made(strategy)
    assert variables.apply_gradients({"w": PerReplica([np.ones(2), np.full(2, 2.0)])}).step == 1
    assert variables.apply_gradients({"w": np.ones(2)}).step == 2
    assert variables.read()["w"].tolist() == [-4, -4]

    def step() -> Any:
        context = get_replica_context()
        assert context is not None
        return context.merge_call(lambda strategy, grads: variables.apply_gradients(grads).step, ({"w": np.ones(2)},))

    assert strategy.run(step).values == (3, 3)
    assert variables.read()["w"].tolist() == [-6, -6]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_variables_of_other_dtypes_are_updated_in_float32(dtype: Any) -> None:
    strategy = mirrored()
    variables = made(strategy, {"w": np.zeros(3, dtype), "count": np.array([1])})
    strategy.run(lambda: variables.apply_gradients({"w": np.full(3, 0.25, dtype)}))
    strategy.run(lambda: variables.apply_gradients({"w": dps.Rows([1], np.full(1, 0.25, dtype))}))
    assert variables.read()["w"].tolist() == [-0.5, -1.0, -0.5] and variables.read()["w"].dtype == dtype
    assert variables.read()["count"].tolist() == [1]


def test_a_replica_on_a_gpu_reads_its_own_copy_there() -> None:
    strategy = Mirrored(["/gpu:0", "/cpu:0"])
    variables = made(strategy)
    first, second = strategy.run(lambda: variables.read(on_device=True)["w"]).values
    assert not isinstance(first, np.ndarray) and first.copy_to_host().tolist() == second.tolist() == [0, 0]

"""Makes the plan of a run from a user's nested arrays, optimizer, placement and partitioner."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.cluster.device import Device, Setter, current_device, current_setter
from dps.cluster.partition import num_parts
from dps.cluster.setter import replica_device_setter
from dps.errors import ConfigError, PlacementError
from dps.process import config
from dps.process.record import replace
from dps.training.optimizers import Optimizer, checked
from dps.transport.dtypes import FLOATS, is_float, wire_name
from dps.transport.wire import DTYPES, Array
from dps.variables.columns import PerObject
from dps.variables.plan import Place, Plan, VariableSpec, make_plan
from dps.variables.sharing import tied
from dps.variables.tables import TableSpec
from dps.variables.tree import Variable, leaves, to_array

if TYPE_CHECKING:
    from dps.training.averages import MovingAverage

KEY = "moving_average"
"""As `dps.training.averages.KEY`, without its module."""
TRAINED = "float16, bfloat16, float32 or float64"
GIVE = "give the session one, e.g. optimizer=dps.optim.SGD(0.1)"
PLAIN = Variable(None, device=None)
"""The settings of a plain array."""


@config.building()
def plan_of(
    params: Any,
    optimizer: Optimizer | None,
    ps: Sequence[int],
    placement: Any,
    partitioner: Any,
    average: MovingAverage | None = None,
    makes: bool = False,
) -> tuple[Plan, dict[str, Array]]:
    """The plan, and the first values by name. `ps`: task indices. Raises ConfigError and PlacementError.

    `placement` None: the innermost `dps.device(setter)` scope, else round robin. `average`: what is kept beside every
    variable that is trained. `makes`: values that an initializer makes are made here; otherwise they are left out.
    """
    specs: list[VariableSpec] = []
    tables: list[TableSpec] = []
    values: dict[str, Array] = {}
    scopes: dict[str, Device] = {}
    more = {} if average is None else {KEY: average.to_wire()}
    here, written = current_device(), PerObject[Optimizer, dict[str, Any]](lambda chosen: chosen.to_wire() | more)
    named = list(leaves(params))
    ties = tied(named)
    for name, leaf in named:
        if name in ties:
            _check_settings(name, leaf, ties[name], params)
            continue
        settings = leaf if isinstance(leaf, Variable) else PLAIN
        if settings.keys is not None:
            _check_table(name, average, makes)
            chosen = settings.optimizer or optimizer
            if chosen is None:
                raise ConfigError(f"no optimizer for {name}; {GIVE}")
            of_table = written.of(checked(chosen, name))
            tables.append(_table(name, settings, of_table, _ps_of(name, settings.device or here, ps)))
            continue
        init = settings.init
        array: Any = to_array(leaf, name) if init is None or makes else settings
        dtype = wire_name(array.dtype)
        trained = settings.trainable and is_float(array.dtype)
        chosen = settings.optimizer or optimizer
        if trained and chosen is None:
            raise ConfigError(f"no optimizer for {name}; {GIVE}")
        if trained and dtype not in FLOATS:
            raise ConfigError(f"{name} is {array.dtype.name}; trained variables are {TRAINED}")
        if dtype not in DTYPES:
            raise ConfigError(f"{name} is {array.dtype.name}, which cannot travel; cast it, e.g. to float64")
        wire = written.of(checked(chosen, name)) if trained else None
        described = None if init is None else init.to_wire()
        specs.append(VariableSpec(name, tuple(array.shape), dtype, wire, settings.sparse, described))
        if init is None or makes:
            values[name] = array
        scopes[name] = settings.device or here
    if not (specs or tables):
        raise ConfigError("params has no arrays; wanted a nested dict, list or tuple of arrays")
    place = _place(ps, current_setter() if placement is None else placement, scopes)
    split = None if partitioner is None else (lambda name, shape, dtype: num_parts(partitioner, name, shape, dtype))
    return make_plan(specs, tuple(ps), place, split, ties, tuple(tables)), values


def _check_table(name: str, average: MovingAverage | None, makes: bool) -> None:
    """ConfigError where a keyed table cannot be."""
    if makes:
        raise ConfigError(f"{name} is a keyed table, whose rows only the ps of a run have; give it to a dps.Session")
    if average is not None:
        raise ConfigError(
            f"{name} is a keyed table, of which no moving average is kept; leave moving_average out, or use a table "
            "with a shape"
        )


def _table(name: str, settings: Variable, optimizer: dict[str, Any], ps: tuple[int, ...]) -> TableSpec:
    assert settings.init is not None and settings.dim is not None and settings.capacity is not None
    dtype = wire_name(settings.dtype)
    init = settings.init.to_wire()
    ends = settings.admit, settings.expire_steps or 0
    return TableSpec(name, settings.dim, dtype, settings.capacity, optimizer, init, ps, *ends)


def _ps_of(name: str, device: Device, ps: Sequence[int]) -> tuple[int, ...]:
    """The ps that have the rows of a keyed table: the one that its device names, else all."""
    if device.device_type == "GPU":
        raise ConfigError(f"{name} is a keyed table, whose rows are in a ps's own memory; got {device}, wanted no GPU")
    if device.task is None:
        return tuple(ps)
    if device.job not in (None, "ps") or device.task not in ps:
        raise _misplaced(name, device, ps)
    return (device.task,)


def _misplaced(name: str, device: Device, ps: Sequence[int]) -> PlacementError:
    return PlacementError(
        f"{name} was placed on {device}; variables live on a ps task, as /job:ps/task:{ps[0]}; "
        f"the ps tasks are {list(ps)}"
    )


def _check_settings(name: str, leaf: Any, first: str, params: Any) -> None:
    """ConfigError if another name of a variable has settings of its own."""
    of_first = next(each for path, each in leaves(params) if path == first)
    if isinstance(leaf, Variable) and (
        not isinstance(of_first, Variable) or replace(leaf, value=None) != replace(of_first, value=None)
    ):
        raise ConfigError(
            f"{name} is another name of {first} (tied weights) with other settings; give {first} alone some"
        )


def _place(ps: Sequence[int], placement: Any, scopes: dict[str, Device]) -> Place:
    setter: Setter | None
    if isinstance(placement, Setter):
        setter = placement
    else:
        tasks = {task: f"ps:{task + 1}" for task in ps}
        setter = replica_device_setter(cluster={"ps": tasks}, ps_strategy=placement)
    assert setter is not None

    def place(variable: str, name: str, shape: tuple[int, ...], dtype: str) -> Device:
        device = setter.variable(name, shape, _dtype_name(dtype), scopes[variable])
        if device.job not in (None, "ps") or device.task is None:
            raise _misplaced(name, device, ps)
        return device

    return place


@functools.cache
def _dtype_name(dtype: str) -> str:
    return np.dtype(dtype).name

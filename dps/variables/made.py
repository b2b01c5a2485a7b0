"""Variables whose first values the ps make: their settings, and their values where a process makes them for itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.errors import ConfigError
from dps.training.initializers import FromFile, checked
from dps.transport.dtypes import dtype_of, wire_name
from dps.transport.wire import DTYPES, MAX_DIMS, Array
from dps.variables.columns import MAX_ELEMENTS

if TYPE_CHECKING:
    from dps.variables.tree import Variable


def checked_settings(variable: Variable) -> dict[str, Any]:
    """Shape and dtype of a variable with `init`, as a tuple of ints and a numpy dtype. Raises ConfigError."""
    shape, init = variable.shape, variable.init
    if variable.value is not None:
        given = "init" if init is not None else "shape" if shape is not None else "dtype"
        raise ConfigError(
            f"dps.Variable: got a value and {given}; give the value alone, or shape, dtype and init for values that "
            "the ps make"
        )
    if init is None:
        raise ConfigError("dps.Variable: got a shape or dtype without init; add one of dps.init, as dps.init.Zeros()")
    if shape is None:
        raise ConfigError(f"dps.Variable: got init={init!r} without a shape; add one, as shape=(1000, 16)")
    whole = (shape,) if isinstance(shape, int | np.integer) else shape
    if not isinstance(whole, tuple | list) or any(
        isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0 for n in whole
    ):
        raise ConfigError(f"dps.Variable: shape is {shape!r:.100}, wanted whole numbers from 0, as (1000, 16)")
    own = tuple(map(int, whole))
    if len(own) > MAX_DIMS or math.prod(n or 1 for n in own) >= MAX_ELEMENTS:
        raise ConfigError(
            f"dps.Variable: shape is {own!r:.100}, wanted at most {MAX_DIMS} axes and less than {MAX_ELEMENTS} elements"
        )
    dtype = _dtype(variable.dtype)
    checked(init, "dps.Variable", own, dtype.name)
    return {"shape": own, "dtype": dtype}


def _dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found = dtype_of(dtype) if isinstance(dtype, str) else np.dtype("float32" if dtype is None else dtype)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"dps.Variable: dtype is {dtype!r:.100}, wanted one as 'float32' ({error})") from None
    if wire_name(found) not in DTYPES:
        raise ConfigError(f"dps.Variable: dtype is {found.name}, which cannot travel; try dtype='float32'")
    return found


def make_values(variable: Variable, name: str) -> Array:
    """The first values of a variable with `init`, in this process. Raises ConfigError and CheckpointError for a file
    that does not have them."""
    init, shape, dtype = variable.init, variable.shape, variable.dtype
    if isinstance(init, FromFile):
        from dps.checkpoint import LocalStorage
        from dps.checkpoint.source import VariableSource

        source = VariableSource(LocalStorage(), init.path, init.name or name, name, shape, dtype.name)
        return source.read(0, shape[0] if shape else 1).reshape(shape)
    from dps.kernels.first_values import made

    assert init is not None
    return made(init, name, shape, dtype)

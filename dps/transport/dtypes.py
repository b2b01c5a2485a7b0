"""The dtypes of arrays on the wire, by name: numpy's own, and bfloat16 from the package ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.errors import ConfigError

BFLOAT16 = "bfloat16"
"""The name of bfloat16 in plans and messages. Numpy has no name for it; its dtype's `str` is `<V2`."""
HALVES = frozenset(["<f2", BFLOAT16])
"""Dtypes of two bytes: variables are stored in them, and updates are computed in float32."""
FLOATS = HALVES | {"<f4", "<f8"}
"""Dtypes of variables that are trained."""
_UNNAMED = {"<V2": BFLOAT16}


def wire_name(dtype: np.dtype[Any]) -> str:
    """The name of a dtype in plans and messages: numpy's `str` of it, except for bfloat16."""
    return _UNNAMED.get(dtype.str, dtype.str)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype has NaN and infinity; numpy does not count bfloat16 among its floats."""
    return dtype.kind == "f" or dtype.str in _UNNAMED


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name from `wire_name`. For "bfloat16" it also makes the name known to numpy.

    Raises ConfigError if bfloat16 is wanted and the package ml_dtypes is missing, and TypeError for a name that numpy
    does not know.
    """
    if name == BFLOAT16:
        try:
            import ml_dtypes
        except ImportError:
            raise ConfigError(
                "bfloat16 variables need ml_dtypes on every task of the run; try pip install 'dps[bfloat16]'"
            ) from None
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    try:
        return np.dtype(name)
    except SyntaxError:  # numpy reads text with commas as Python
        raise TypeError(f"data type {name!r:.100} not understood") from None

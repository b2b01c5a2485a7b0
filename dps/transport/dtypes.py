"""The dtypes of arrays on the wire, by name: numpy's own, and bfloat16 from the package ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.errors import ConfigError

BFLOAT16 = "bfloat16"
"""What bfloat16 is called in plans and messages. Numpy has no name for it; as a dtype's `str` it is `<V2`."""
HALVES = frozenset(["<f2", BFLOAT16])
"""Dtypes of two bytes that variables are kept in, while updates are computed in float32."""
FLOATS = HALVES | {"<f4", "<f8"}
"""Dtypes of variables that are trained."""
_UNNAMED = {"<V2": BFLOAT16}


def wire_name(dtype: np.dtype[Any]) -> str:
    """What a dtype is called in plans and messages: numpy's `str` of it, but for bfloat16."""
    return _UNNAMED.get(dtype.str, dtype.str)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether there are NaN and infinity in it; numpy does not count bfloat16 among its floats."""
    return dtype.kind == "f" or dtype.str in _UNNAMED


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a name as of `wire_name`; from then on numpy, too, knows "bfloat16".

    Raises ConfigError where bfloat16 is wanted and the package ml_dtypes is missing.
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
    return np.dtype(name)

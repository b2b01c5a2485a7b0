"""Which nested values travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dps.variables.items import pack


@pytest.mark.parametrize(
    ("leaf", "got"),
    [
        (np.ones(2, np.longdouble), "ndarray of dtype float128"),
        (np.longdouble(1), "longdouble of dtype float128"),
        (np.ones(2, np.complex64), "ndarray of dtype complex64"),
        (np.array(["text"]), "ndarray of dtype <U4"),
    ],
)
def test_arrays_of_dtypes_that_do_not_travel_are_refused(leaf: Any, got: str) -> None:
    """A long double was refused only by the transport, by its name there."""
    with pytest.raises(TypeError, match=f"^array 1 is {got}; wanted an array of numbers: float16"):
        pack({"a": np.ones(3), "b": [leaf]})


def test_a_masked_array_does_not_travel() -> None:
    """It arrived without its mask, with the values that were masked."""
    with pytest.raises(TypeError, match=r"^array 0 is a masked array, .* call .filled\(value\)"):
        pack([1, np.ma.masked_array([1.0, 1e6], [False, True])])

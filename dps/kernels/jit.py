"""How kernels are compiled: one decorator, so that no kernel differs in a flag that its bits depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """`function` compiled by numba at its first call with each combination of dtypes, and cached on disk.

    - No fastmath: nothing is contracted or reassociated, so an element's bits do not depend on how its run was cut.
    - `error_model="numpy"`: x / 0 is inf or nan; numba's default check of each division stops vectorisation.
    - `nogil`: other Python threads run meanwhile.

    With Intel's SVML installed beside numba, powers (only `ftrl` with another power than -0.5) may round differently
    at the ends of a run; NUMBA_DISABLE_INTEL_SVML=1 in the environment turns that off.
    """
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))

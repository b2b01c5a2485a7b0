"""The memory of an arena of float16 or bfloat16: two bytes an element, updated in float32.

Kernels widen what they read and round what they write (to nearest, ties to even), in one pass. Slots are float32
throughout, so small gradients add up in them; what an update leaves below half a unit in the last place of a value is
lost, for no more exact copy of the values is kept. A number too large for the dtype becomes infinite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.kernels.halves import bits_in
from dps.ps.store.arena import ArenaMemory
from dps.transport.wire import Array


class HalvesMemory(ArenaMemory):
    """`ArenaMemory` for halves. Gradients are halves of the same dtype, or float32 where a mean was taken before."""

    only_fused = True

    def _precision(self) -> np.dtype[Any]:
        """The dtype of the arithmetic, and of the slots."""
        return np.dtype(np.float32)

    def _given(self, array: Array) -> Array:
        return bits_in(array)

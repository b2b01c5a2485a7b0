"""Notices that a JAX program has changed parameters, which the next step would undo, or holds gradients back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from dps.adapters.jax import JaxModel

Array = np.ndarray[Any, np.dtype[Any]]
SAMPLED_LEAVES, SAMPLED = 32, 4
"""How many leaves are looked at, and how many elements of each."""
LOOKS = 5
"""How often parameters that the program has from elsewhere are compared with those of the ps, which takes a pull."""


class Seen:
    """Some elements of the parameters, by which a change by the program is noticed: the next step would undo it."""

    def __init__(self, model: JaxModel) -> None:
        self._sizes = [math.prod(leaf.shape) for leaf in model.known[:SAMPLED_LEAVES]]
        counts = [len(range(0, size, self._stride(size))) for size in self._sizes]
        self._names = [name for name, count in zip(model.names, counts, strict=False) for _ in range(count)]
        digits = [float(jax.numpy.finfo(leaf.dtype).eps) for leaf in model.known[:SAMPLED_LEAVES]]
        self._digits = np.repeat(np.asarray(digits), counts)
        self.returned: tuple[Array, Array] | None = None
        """Of the last step the parameters before, and the values of the ps."""
        self.pulled: tuple[Array, Array] | None = None
        """The values that were pulled last, twice."""
        self._looks, self._is_zero_told = LOOKS, False

    @staticmethod
    def _stride(size: int) -> int:
        return max(1, -(-size // SAMPLED))

    def sample(self, leaves: Sequence[Any]) -> Any:
        """Some elements of the leaves, one after the other."""
        wide = jax.numpy.promote_types(jax.numpy.float32, jax.numpy.result_type(*leaves)) if leaves else "float32"
        taken = zip(leaves, self._sizes, strict=False)
        parts = [leaf.reshape(-1)[:: self._stride(size)].astype(wide) for leaf, size in taken]
        return jax.numpy.concatenate(parts) if parts else jax.numpy.zeros(0)

    def sample_arrays(self, arrays: Sequence[Array]) -> Array:
        """The same of numpy arrays, as float64."""
        taken = zip(arrays, self._sizes, strict=False)
        parts = [array.reshape(-1)[:: self._stride(size)].astype(np.float64) for array, size in taken]
        return np.concatenate(parts) if parts else np.zeros(0)

    def find_change(self, held: Array, newest: Callable[[], Sequence[Array]]) -> tuple[str, bool]:
        """The name of a parameter that is neither as of the last step nor as of the last pull, nor as the ps have it
        now, which `newest` pulls: the program may have assigned it, or pulled it by the session. "" if there is none,
        or one was found before. Parameters that are of no step and no pull are compared with the ps `LOOKS` times. Also
        whether there was no step and no pull before."""
        known = [values for values in (self.returned, self.pulled) if values is not None]
        if not self._looks:
            return "", False
        wide = held.astype(np.float64)
        if not all(self._is_apart(wide, *values).any() for values in known):
            return "", False
        now = self.sample_arrays(newest())
        apart = np.flatnonzero(self._is_apart(wide, now, now))
        if known:
            self._looks = 0 if len(apart) else self._looks - 1
        return self._names[apart[0]] if len(apart) else "", not known

    def find_zeros(self, grads: Sequence[Array]) -> bool:
        """Whether all gradients are 0, and were not before. Most often some elements tell that they are not."""
        if self._is_zero_told or self.sample_arrays(grads).any() or any(grad.any() for grad in grads):
            return False
        self._is_zero_told = True
        return True

    def _is_apart(self, held: Array, before: Array, values: Array) -> Array:
        """Where parameters are not `before + (values - before)`, up to their last digits."""
        with np.errstate(all="ignore"):
            most = 4 * self._digits * np.maximum(np.abs(before), np.abs(values))
            return np.asarray(np.abs(held - values) > most)

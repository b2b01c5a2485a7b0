"""Finds leaves that share memory: tied weights of PyTorch are one variable with several names, all else is an error."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.variables.tree import Variable, is_tensor


def tied(leaves: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """For each tensor of PyTorch that is the same memory as an earlier one, the name of the first of them.

    Raises ConfigError for leaves that share memory in another way. Arrays that cannot be written, such as those of JAX,
    share nothing. Arrays of numpy are not tied: two variables often begin as one array of zeros.
    """
    named = [(name, leaf.value if isinstance(leaf, Variable) else leaf) for name, leaf in leaves]
    found, by_name = dict[str, str](), dict(named)
    for first, other, whole in shared(named):
        tensors = is_tensor(by_name[first]) and is_tensor(by_name[other])
        if not (whole and tensors):
            kind = "are one array" if whole else "overlap in memory"
            copied = ".clone()" if tensors else ".copy()"
            tie = "; tied weights are one tensor, as decoder.weight = encoder.weight" if tensors else ""
            raise ConfigError(
                f"params: {first} and {other} {kind}; give each its own memory ({copied}), or leave one out{tie}"
            )
        found[other] = first
    return found


def shared(leaves: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, str, bool]]:
    """Pairs of leaves that share memory in which both can be written: the earlier name, the later one, and whether they
    are the same elements in the same order. Of several that are the same, each is paired with the first."""
    at: dict[tuple[str, int, int], list[int]] = {}
    for place, (_, leaf) in enumerate(leaves):
        if (span := _span(leaf)) is not None:
            at.setdefault(span, []).append(place)
    spans: list[tuple[str, int, int, int]] = []
    for span, places in at.items():
        firsts: dict[Hashable, int] = {}
        for place in places:
            first = firsts.setdefault(_form(leaves[place][1]), place) if len(places) > 1 else place
            if first == place:
                spans.append((*span, place))
            else:
                yield leaves[first][0], leaves[place][0], True
    before: list[tuple[str, int, int, int]] = []
    for device, start, stop, place in sorted(spans):
        before = [other for other in before if other[0] == device and other[2] > start]
        for *_, other in before:
            one, two = sorted((other, place))
            if np.shares_memory(_like(leaves[one][1]), _like(leaves[two][1])):
                yield leaves[one][0], leaves[two][0], False
        before.append((device, start, stop, place))


def is_same(one: Any, other: Any) -> bool:
    """Whether two leaves are the same elements in the same memory."""
    if one is other:
        return True
    span = _span(one)
    return span is not None and span == _span(other) and _form(one) == _form(other)


def overlaps_itself(array: np.ndarray[Any, np.dtype[Any]]) -> bool:
    """Whether some elements of an array share memory, as those of a view with a stride of 0 do."""
    if array.size < 2 or array.flags.c_contiguous:
        return False
    start, stop = _ends(0, array.itemsize, array.shape, array.strides)
    if array.nbytes > stop - start:
        return True
    reach = array.itemsize  # of the elements along the axes so far
    axes = sorted((abs(stride), n) for n, stride in zip(array.shape, array.strides, strict=True) if n > 1)
    for stride, n in axes:
        if stride < reach:  # axes cross each other: compare all places
            at = sum(np.ix_(*(stride * np.arange(n) for stride, n in axes)), np.zeros((), np.int64))
            return bool(np.diff(np.sort(at, axis=None)).min() < array.itemsize)
        reach += (n - 1) * stride
    return False


def _span(leaf: Any) -> tuple[str, int, int] | None:
    """Device, first byte and last byte of a leaf; None for what has no memory, or none that can be written."""
    if isinstance(leaf, np.ndarray):
        if not (leaf.size and leaf.flags.writeable):
            return None
        start = leaf.__array_interface__["data"][0]
        if leaf.flags.c_contiguous:
            return "cpu", start, start + leaf.nbytes
        return "cpu", *_ends(start, leaf.itemsize, leaf.shape, leaf.strides)
    if is_tensor(leaf) and str(leaf.layout) == "torch.strided" and leaf.numel() and leaf.data_ptr():
        size = leaf.element_size()
        return str(leaf.device), *_ends(leaf.data_ptr(), size, leaf.shape, [size * n for n in leaf.stride()])
    return None


def _ends(start: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    return start + sum(n for n in reach if n < 0), start + sum(n for n in reach if n > 0) + itemsize


def _form(leaf: Any) -> tuple[Any, ...]:
    """What the elements are and how they lie, of a leaf with a span."""
    strides = leaf.strides if isinstance(leaf, np.ndarray) else leaf.stride()
    return str(leaf.dtype), tuple(leaf.shape), tuple(strides)


def _like(leaf: Any) -> Any:
    """An array at the place of a leaf. It is never read: the memory may be that of a GPU."""
    return leaf if isinstance(leaf, np.ndarray) else np.asarray(_Place(leaf))


class _Place:
    """The place of a tensor's elements, as numpy's array interface describes it."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False), "shape": tuple(tensor.shape), "typestr": f"|V{size}", "version": 3,
            "strides": tuple(size * n for n in tensor.stride()),
        }  # fmt: skip

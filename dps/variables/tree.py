"""Nested dicts, lists and tuples of arrays as flat lists of named leaves, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dps.cluster.device import Device, current_device
from dps.errors import ConfigError
from dps.optim import Optimizer
from dps.record import made, record
from dps.transport.dtypes import BFLOAT16, dtype_of, wire_name


@record
class Variable:
    """A leaf with settings of its own: `dps.Variable(array, optimizer=..., trainable=True)`.

    `sparse` marks a table that is read and updated by rows (embedding): it gets memory of its own on its ps.
    `device` pins it, as does a `dps.device` scope around its making.
    """

    value: Any
    optimizer: Optimizer | None = None
    trainable: bool = True
    sparse: bool = False
    device: Device | None = made(default_factory=current_device)


@record
class Rows:
    """A gradient for some rows of a variable: `indices` (n,) integers, `values` (n, ...) of its dtype.

    The same row may come several times; its gradients are summed.
    """

    indices: Any
    values: Any


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """All leaves with their paths ("hidden/w", "layers/0"), in creation order.

    Raises TypeError for keys that are no strings and ValueError for keys that are empty or contain "/".
    """
    flat = _flat(tree)
    return _walk(tree, "") if flat is None else iter(flat)


def _flat(tree: Any) -> list[tuple[str, Any]] | None:
    """The leaves of a plain dict of arrays, which most models are; None for any other nesting."""
    if tree.__class__ is not dict:
        return None
    for key, leaf in tree.items():
        if leaf.__class__ is not np.ndarray or key.__class__ is not str or not key or "/" in key or "@" in key:
            return None
    return list(tree.items())


def _walk(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if type(node) is dict or isinstance(node, Mapping):
        for key, child in node.items():
            if type(child) is np.ndarray:
                yield _join(path, key), child
            else:
                yield from _walk(child, _join(path, key))
    elif isinstance(node, list | tuple):
        for index, child in enumerate(node):
            yield from _walk(child, _join(path, str(index)))
    else:
        yield path or "value", node


def _join(path: str, key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"names of variables are strings, got the key {key!r} ({type(key).__name__}) under {path!r}")
    if not key or "/" in key or "@" in key:
        raise ConfigError(f"the key {key!r} under {path!r} cannot be a name: it is empty or contains '/' or '@'")
    return f"{path}/{key}" if path else key


def builder(tree: Any) -> Callable[[Callable[[str], Any]], Any]:
    """A function that builds the same nesting anew, asking for each leaf by its path. Keeps no array alive."""
    return _builder(tree, "")


def _builder(node: Any, path: str) -> Callable[[Callable[[str], Any]], Any]:
    if isinstance(node, Mapping):
        if not any(isinstance(child, Mapping | list | tuple) for child in node.values()):
            return _flat_builder(list(node), [_join(path, key) for key in node])
        named = [(key, _builder(child, _join(path, key))) for key, child in node.items()]
        return lambda leaf: {key: build(leaf) for key, build in named}
    if isinstance(node, list | tuple):
        children = [_builder(child, _join(path, str(i))) for i, child in enumerate(node)]
        if isinstance(node, list):
            return lambda leaf: [build(leaf) for build in children]
        made = type(node)
        if hasattr(node, "_fields"):
            return lambda leaf: made(*[build(leaf) for build in children])
        return lambda leaf: tuple([build(leaf) for build in children])
    where = path or "value"
    return lambda leaf: leaf(where)


def _flat_builder(keys: list[str], paths: list[str]) -> Callable[[Callable[[str], Any]], Any]:
    """Of a dict of leaves; a `leaf` that has `many` is asked for all at once."""

    def build(leaf: Callable[[str], Any]) -> Any:
        many = getattr(leaf, "many", None) if len(keys) > 1 else None
        if many is not None:
            return dict(zip(keys, many(paths), strict=True))
        return {key: leaf(path) for key, path in zip(keys, paths, strict=True)}

    return build


def nested(names: list[str]) -> Any:
    """The nesting that paths describe, as dicts: what a reader without variables of its own gets."""
    tree: dict[str, Any] = {}
    for name in names:
        node = tree
        *folders, last = name.split("/")
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = None
    return tree


def to_array(value: Any, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """A leaf as a C-contiguous array of native byte order, not copied where it is one; TypeError for what cannot be."""
    if (
        value.__class__ is np.ndarray
        and value.dtype.kind in "fiub"
        and value.dtype.isnative
        and value.flags.c_contiguous
    ):
        return value
    if isinstance(value, Variable):
        value = value.value
    if hasattr(value, "detach"):
        value = _of_tensor(value.detach().cpu())
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and wire_name(array.dtype) != BFLOAT16:
        raise TypeError(
            f"{name} is {type(value).__name__} of dtype {array.dtype}; wanted an array of numbers: float16, bfloat16, "
            "float32, float64, integers or bool"
        )
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(native).reshape(array.shape)


def _of_tensor(tensor: Any) -> Any:
    """A tensor of torch on the CPU as an array of the same memory; numpy() knows no bfloat16."""
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    import torch

    return tensor.contiguous().view(torch.int16).numpy().view(dtype_of(BFLOAT16))

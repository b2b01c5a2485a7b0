"""Flattens nested dicts, lists and tuples of arrays into lists of named leaves, and rebuilds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dps.cluster.device import Device, current_device
from dps.errors import ConfigError
from dps.process.record import made, record
from dps.training.optimizers import Optimizer
from dps.transport.dtypes import BFLOAT16, dtype_of, wire_name

if TYPE_CHECKING:
    from dps.training.initializers import Initializer


@record
class Variable:
    """A leaf of params with its own settings.

    Args:
        value: The first value: an array of float16, bfloat16, float32, float64, integers or bool. None: with `init`.
        optimizer: The variable's own optimizer. None: the session's.
        trainable: False: the variable gets no gradients.
        sparse: The variable is a table that is read and updated by rows, such as an embedding. It has separate memory
            on its ps.
        device: The ps task that holds it, such as `dps.Device("/job:ps/task:1")`. By default the enclosing
            `dps.device` scopes decide.
        synchronization: Under a strategy: "on_write", one value for all replicas; or "on_read", a value of each
            replica, for metrics and statistics, which gets no gradients and is reduced when it is read outside of
            replicas. A ps has one value for all, and refuses "on_read".
        aggregation: How values that replicas assign, or have, become one: "sum", "mean" or "only_first_replica". None:
            replicas do not assign it. "on_read" needs one. Gradients are always summed.
        shape: With `init`: the shape, a tuple of whole numbers, or one number for one axis.
        dtype: With `init`: "float16", "bfloat16", "float32", "float64", an integer type or "bool". None: "float32".
        init: An initializer of `dps.init`, by which each ps makes the first values of its rows in its own memory: the
            worker neither makes nor sends them. They follow from the seed, the variable's name, and the position of
            the element alone. So any number of ps and parts gives the same bits.
        keys: "int64": a keyed table. It has a row for each key that was pushed, whatever int64 the keys are, on all ps.
            `session.lookup` and `dps.Rows` take keys in place of row numbers; a key that was never pushed reads what
            `init` gives it. `pull` has None in its place. With `dim`, `capacity`, `init` and, if they are not the
            usual ones, `dtype`, `optimizer` and `device`.
        dim: With `keys`: the elements of a row.
        capacity: With `keys`: the most rows. Memory is used for rows that are there.
        admit: With `keys`: a key gets its row with the push that is the `admit`-th with this key, from 1 to 255. The
            gradients of the pushes before are dropped. Counted are pushes that are applied, each once however often it
            has the key.
        expire_steps: With `keys`: a row expires so many steps after the last push to it that was applied; a lookup
            renews nothing. The key is then as one that was never pushed. None: rows never expire.

    Raises:
        ConfigError: An unknown synchronization or aggregation, "on_read" without aggregation, a flag that is neither
            True nor False, a device that is none, a tuple of whole numbers as the value, which may be meant as a shape,
            both a value and `init`, numbers of `init` that do not fit the shape and the dtype, or settings that a keyed
            table does not have.

    Example:
        ```python
        params = {
            "table": dps.Variable(np.zeros((1000, 8), np.float32), sparse=True),
            "out": dps.Variable(np.zeros(8, np.float32), optimizer=dps.optim.SGD(0.1)),
            "users": dps.Variable(shape=(1000, 8), init=dps.init.Normal(0.01), sparse=True),
            "items": dps.Variable(keys="int64", dim=8, capacity=10**6, init=dps.init.Zeros()),
        }
        ```
    """

    # More than 12 attributes: this is a public signature, and each is a setting that people give by its name.

    value: Any = None
    optimizer: Optimizer | None = None
    trainable: bool = True
    sparse: bool = False
    device: Device | None = made(default_factory=current_device)
    synchronization: str = "on_write"
    aggregation: str | None = None
    shape: Any = None
    dtype: Any = None
    init: Initializer | None = None
    keys: str | None = None
    dim: int | None = None
    capacity: int | None = None
    admit: int = 1
    expire_steps: int | None = None

    def __post_init__(self) -> None:
        of_tables = self.keys, self.dim, self.capacity, None if self.admit == 1 else self.admit, self.expire_steps
        if any(setting is not None for setting in of_tables):
            from dps.variables.tables import checked_settings as checked_table

            for field, checked in checked_table(self).items():
                object.__setattr__(self, field, checked)
        elif self.init is not None or self.shape is not None or self.dtype is not None:
            from dps.variables.made import checked_settings

            for field, checked in checked_settings(self).items():
                object.__setattr__(self, field, checked)
        if isinstance(self.value, tuple) and all(isinstance(n, int | np.integer) for n in self.value):
            shape = tuple(int(n) for n in self.value)
            raise ConfigError(
                f"dps.Variable({shape}): a tuple of whole numbers may be a shape or values; for a shape give "
                f"dps.Variable(np.zeros({shape})), for values dps.Variable(np.array({list(shape)}))"
            )
        if not isinstance(self.device, Device | str | None):
            raise ConfigError(f"dps.Variable: device is {self.device!r:.40}, wanted one such as '/job:ps/task:1'")
        for field in ("trainable", "sparse"):
            if not isinstance(getattr(self, field), bool | np.bool_):
                raise ConfigError(f"dps.Variable: {field} is {getattr(self, field)!r:.40}, wanted True or False")
        if self.synchronization not in ("on_write", "on_read"):
            raise ConfigError(f"synchronization: got {self.synchronization!r}, wanted 'on_write' or 'on_read'")
        if self.aggregation not in (None, "sum", "mean", "only_first_replica"):
            raise ConfigError(f"aggregation: got {self.aggregation!r}, wanted 'sum', 'mean' or 'only_first_replica'")
        if self.synchronization == "on_read" and self.aggregation is None:
            raise ConfigError(
                "synchronization='on_read': a value of each replica; say how they become one, as aggregation='sum'"
            )


@record
class Rows:
    """A gradient for some rows of a variable.

    Args:
        indices: Row numbers, integers of any shape, such as (n,) or (batch, fields); of a keyed table its keys. The
            gradients of a row that occurs several times are summed. Without any it is no gradient.
        values: Their gradients. The shape is that of `indices` followed by that of a row, such as (n, dim); the dtype
            is the variable's.

    A sparse tensor of torch, such as `torch.nn.Embedding(sparse=True)` makes, can be pushed without converting it.

    Example:
        ```pycon
        >>> rows = np.array([1, 3])
        >>> session.push({"table": dps.Rows(rows, np.ones((2, 2), np.float32))}).step
        1
        ```
    """

    indices: Any
    values: Any


def _join(path: str, key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"names of variables are strings, got the key {key!r} ({type(key).__name__}) under {path!r}")
    if not key or "/" in key or "@" in key:
        raise ConfigError(f"the key {key!r} under {path!r} cannot be a name: it is empty or contains '/' or '@'")
    return f"{path}/{key}" if path else key


class Nesting:
    """The structure of nested arrays. Extracts leaves from a tree, and builds a tree from leaves."""

    def __init__(self, tree: Any) -> None:
        """Record the nesting of `tree`, without keeping its arrays. Raises as `leaves`."""
        self.paths: list[str] = []
        """The paths of all leaves, in creation order."""
        self._root = _node(tree, "", self.paths)
        self.build: Callable[[Sequence[Any]], Any] = self._root.build
        """Returns a new tree with this nesting and these leaves, one for each path."""
        self.collect: Callable[[Any, list[Any]], bool] = self._root.collect
        """Adds the leaf at each path to a list; False if the tree does not have exactly this nesting, of containers of
        the same classes."""

    def leaves(self, tree: Any) -> list[Any] | None:
        """The leaf at each path, if `tree` has exactly this nesting, of containers of the same classes; else None."""
        found: list[Any] = []
        return found if self.collect(tree, found) else None

    def named(self, tree: Any) -> dict[str, Any]:
        """As `leaves` of this module, in a dict; quicker for a tree with exactly this nesting."""
        found: list[Any] = []
        return dict(zip(self.paths, found, strict=True)) if self.collect(tree, found) else dict(leaves(tree))


def leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """All leaves with their paths ("hidden/w", "layers/0"), in creation order.

    Raises TypeError for keys that are not strings, and ConfigError for keys that are empty or contain "/" or "@".
    """
    nesting = Nesting(tree)
    return zip(nesting.paths, nesting.leaves(tree) or (), strict=True)


class _Leaf:
    """The position of one leaf."""

    def __init__(self, place: int) -> None:
        self._place = place

    def build(self, found: Sequence[Any]) -> Any:
        return found[self._place]

    def collect(self, tree: Any, found: list[Any]) -> bool:
        found.append(tree)
        return True


class _Leaves:
    """A dict with only leaves, all of which are extracted at once."""

    def __init__(self, keys: list[str], start: int, kind: type[Any]) -> None:
        self._keys, self._places, self._kind = keys, slice(start, start + len(keys)), kind
        self._empty = dict.fromkeys(keys)

    def build(self, found: Sequence[Any]) -> Any:
        made: dict[str, Any] = self._empty.copy()  # a dict of the final size is cheaper than one that grows
        made.update(zip(self._keys, found[self._places], strict=True))
        return made

    def collect(self, tree: Any, found: list[Any]) -> bool:
        if tree.__class__ is not self._kind or list(tree) != self._keys:
            return False
        found.extend(tree.values())
        return True


class _Dict:
    """A dict that contains other containers."""

    def __init__(self, children: list[tuple[str, _Node]], kind: type[Any]) -> None:
        self._children, self._kind = children, kind

    def build(self, found: Sequence[Any]) -> Any:
        return {key: child.build(found) for key, child in self._children}

    def collect(self, tree: Any, found: list[Any]) -> bool:
        if tree.__class__ is not self._kind or len(tree) != len(self._children):
            return False
        pairs = zip(tree.items(), self._children, strict=True)
        return all(key == known and child.collect(inner, found) for (key, inner), (known, child) in pairs)


class _Row:
    """A list or a tuple."""

    def __init__(self, children: list[_Node], kind: type[Any]) -> None:
        self._children, self._kind = children, kind

    def build(self, found: Sequence[Any]) -> Any:
        return self._made([child.build(found) for child in self._children])

    def _made(self, inner: list[Any]) -> Any:
        if issubclass(self._kind, list):
            return inner
        return self._kind(*inner) if hasattr(self._kind, "_fields") else tuple(inner)

    def collect(self, tree: Any, found: list[Any]) -> bool:
        if type(tree) is not self._kind or len(tree) != len(self._children):
            return False
        return all(child.collect(inner, found) for inner, child in zip(tree, self._children, strict=True))


_Node = _Leaf | _Leaves | _Dict | _Row


def _node(tree: Any, path: str, paths: list[str]) -> _Node:
    if isinstance(tree, Mapping):
        if not any(issubclass(kind, Mapping | list | tuple) for kind in set(map(type, tree.values()))):
            start = len(paths)
            paths += [_join(path, key) for key in tree]
            return _Leaves(list(tree), start, type(tree))
        return _Dict([(key, _node(child, _join(path, key), paths)) for key, child in tree.items()], type(tree))
    if isinstance(tree, list | tuple):
        return _Row([_node(child, _join(path, str(i)), paths) for i, child in enumerate(tree)], type(tree))
    paths.append(path or "value")
    return _Leaf(len(paths) - 1)


def list_names(names: Iterable[str]) -> list[str]:
    """The names, each once. TypeError for one text, of which each letter would be a name."""
    if isinstance(names, str):
        raise TypeError(f"names: got {names!r:.80}, wanted a list of names, such as [{names!r:.80}]")
    return list(dict.fromkeys(names))


def nested(names: list[str]) -> Any:
    """The nesting that paths describe, as dicts. Readers without variables of their own get this."""
    tree: dict[str, Any] = {}
    for name in names:
        node = tree
        *folders, last = name.split("/")
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = None
    return tree


def to_array(value: Any, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """A leaf as a C-contiguous array of native byte order, copied only if necessary. TypeError if impossible."""
    if (
        value.__class__ is np.ndarray
        and value.dtype.kind in "fiub"
        and value.dtype.isnative
        and value.flags.c_contiguous
    ):
        return value
    if isinstance(value, Variable):
        if value.keys is not None:
            raise ConfigError(
                f"{name} is a keyed table, whose rows only the ps of a run have; give it to a dps.Session"
            )
        if value.init is not None:
            from dps.variables.made import make_values

            return make_values(value, name)
        value = value.value
    if is_tensor(value):
        value = _of_tensor(value.detach().cpu(), name)
    if is_module(value):
        raise TypeError(f"{name} is a module of PyTorch ({type(value).__name__}); wanted arrays: pass its state_dict()")
    if is_masked(value):
        raise TypeError(
            f"{name} is a masked array, whose mask does not travel; wanted an array of numbers: call "
            ".filled(value), which gives masked elements this value"
        )
    if isinstance(value, Iterator):
        raise TypeError(f"{name} is a {type(value).__name__}; wanted arrays: pass a dict or a list of what it yields")
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" and wire_name(array.dtype) != BFLOAT16:
        raise not_numbers(value, array.dtype, name)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(native).reshape(array.shape)


def not_numbers(value: Any, dtype: np.dtype[Any], name: str) -> TypeError:
    """The error for a value of a dtype that does not travel."""
    return TypeError(
        f"{name} is {type(value).__name__} of dtype {dtype}; wanted an array of numbers: float16, bfloat16, float32, "
        "float64, integers or bool"
    )


def described(value: Any) -> str:
    """What an array, a tensor or something else is, for messages."""
    return "nothing" if value is None else f"{getattr(value, 'dtype', type(value))} {getattr(value, 'shape', '')}"


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch, which need not be installed."""
    return hasattr(value, "detach")


def is_masked(value: Any) -> bool:
    """Whether a value is a masked array of numpy, also one without a masked element."""
    return hasattr(value, "filled") and hasattr(value, "mask")


def is_module(value: Any) -> bool:
    """Whether a value is a module of torch, which need not be installed."""
    return hasattr(value, "named_parameters") and hasattr(value, "state_dict")


def is_parameter(tensor: Any) -> bool:
    """Whether a tensor of torch is a variable that gets gradients, and thus none itself."""
    return bool(tensor.requires_grad and tensor.is_leaf) or type(tensor).__name__ == "Parameter"


def memory_of_tensor(tensor: Any, name: str) -> Any:
    """A tensor of torch as an array to write to, in its own memory; ValueError if that is not on the CPU, or no array
    shows it."""
    if str(tensor.device) != "cpu":
        raise ValueError(f"out has a tensor on {tensor.device} for {name}; wanted one on the CPU")
    if str(tensor.dtype) == "torch.bfloat16" and not tensor.is_contiguous():
        raise ValueError(f"out has a tensor of bfloat16 for {name} that is not contiguous; call .contiguous() on it")
    return _of_tensor(tensor.detach(), name)


def rows_of_tensor(tensor: Any, name: str) -> Rows | None:
    """The rows of a sparse tensor of torch, in its own memory if that is on the CPU; None for a dense tensor.

    Raises TypeError if the tensor's elements, not its rows, are sparse.
    """
    if str(tensor.layout) == "torch.strided":
        return None
    if str(tensor.layout) != "torch.sparse_coo" or tensor.sparse_dim() != 1:
        kind = tensor.layout if str(tensor.layout) != "torch.sparse_coo" else f"{tensor.sparse_dim()} sparse dimensions"
        raise TypeError(
            f"{name} is a sparse tensor of torch ({kind}); wanted torch.sparse_coo with 1 sparse dimension, as "
            "torch.nn.Embedding(sparse=True) makes it; pass dps.Rows(indices, values), or call .to_dense()"
        )
    tensor = tensor.detach().cpu()
    return Rows(tensor._indices()[0].numpy(), tensor._values())  # the ps sums repeated rows


def _of_tensor(tensor: Any, name: str) -> Any:
    """A CPU tensor of torch as an array of the same memory. `Tensor.numpy()` does not support bfloat16."""
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"{name} is a sparse tensor of torch ({tensor.layout}); make it dense with .to_dense()")
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    import torch

    return tensor.contiguous().view(torch.int16).numpy().view(dtype_of(BFLOAT16))

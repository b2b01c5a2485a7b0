"""An embedding: looks up rows of a table by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dps.kernels.layers_cpu import row_order
from dps.layers import arrays
from dps.layers.place import ComputePlace
from dps.variables.tree import Rows, Variable


@dataclass(frozen=True)
class EmbeddingPass:
    """Arrays of a forward pass that its backward pass needs: row numbers on the host, and the source of the rows."""

    out: Any
    ids: Any
    names: Any


@dataclass(frozen=True)
class Embedding:
    """Rows of a table, looked up by number: from (batch,) or (batch, fields) to (batch, fields * dim). The first layer.

    Its parameter is "table" (rows, dim), which is sparse; it begins as normal with variance 1 / dim. Its gradient is a
    `dps.Rows` with each row once. For a large table hand in only the rows that the batch needs, as `dps.Rows(rows,
    session.lookup("embedding_0/table", rows))` with `rows = np.unique(ids)`.

    Args:
        rows: The rows of the table.
        dim: The elements of a row.
        fields: How many row numbers an example has.
        name: The key of its parameter in the network's. None: "embedding_" and the layer's number.

    Raises:
        ValueError: Sizes below 1.

    Example:
        ```pycon
        >>> network = dps.layers.Sequential([dps.layers.Embedding(100, 8, fields=2),
        ...                                  dps.layers.Dense(16, 3, activation="identity")])
        >>> params = {"embedding_0": {"table": np.ones((100, 8), np.float32)},
        ...           "dense_1": {"w": np.ones((16, 3), np.float32),
        ...                       "b": np.zeros(3, np.float32)}}
        >>> network.scores(params, np.array([[5, 7]]))
        array([[16., 16., 16.]], dtype=float32)
        ```
    """

    rows: int
    dim: int
    fields: int = 1
    name: str | None = None

    kind = "embedding"

    def __post_init__(self) -> None:
        if min(self.rows, self.dim, self.fields) < 1:
            got = f"{self.rows} rows, dim {self.dim}, {self.fields} fields"
            raise ValueError(f"Embedding: got {got}, wanted 1 or more of each")

    @property
    def n_out(self) -> int:
        return self.fields * self.dim

    def initial(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Normal with variance 1 / dim, so that a row's length is about 1."""
        table = rng.normal(0, self.dim**-0.5, (self.rows, self.dim)).astype(dtype)
        return {"table": Variable(table, sparse=True)}

    def checked(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """Check the network's input: row numbers."""
        shapes = ((-1, self.fields), (-1,)) if self.fields == 1 else ((-1, self.fields),)
        return arrays.whole_numbers(x, "x", shapes, self.rows)

    def forward(
        self, place: ComputePlace, name: str, params: Any, x: Any, dtype: np.dtype[Any], scores: Any
    ) -> EmbeddingPass:
        """`x` is on the host. `scores` is the host array that gets the result, or None."""
        ids, names, table = x.reshape(-1), None, params["table"]
        if isinstance(table, Rows):
            names, ids, table = self._looked_up(name, table, ids)
            table = arrays.parameter(table, f"{name}/table", (len(names), self.dim), dtype)
        else:
            table = arrays.parameter(table, f"{name}/table", (self.rows, self.dim), dtype)
        out = place.empty((len(x), self.n_out), dtype) if scores is None else place.result(scores)
        on_device = place.load_array(table, rows=len(ids)), place.load_array(ids)
        place.kernels.embedding_gather(out.reshape((len(ids), self.dim)), *on_device, place.stream)
        return EmbeddingPass(out, ids, names)

    def _looked_up(self, name: str, table: Rows, ids: Any) -> tuple[Any, Any, Any]:
        """The looked-up rows, and the position of each id among them."""
        names = np.asarray(table.indices, np.int64)
        if names.ndim != 1 or (np.diff(names) <= 0).any():
            raise ValueError(f"{name}/table: got rows {names[:8]}, wanted distinct ones, rising: try np.unique")
        positions = np.minimum(np.searchsorted(names, ids), max(len(names) - 1, 0))
        missing = ids if not len(names) else ids[names[positions] != ids]
        if missing.size:
            raise ValueError(f"{name}/table: x names row {missing[0]}, which is not among the {len(names)} looked up")
        return names, positions, table.values

    def backward(
        self, place: ComputePlace, name: str, made: EmbeddingPass, dout: Any, out: Any, first: bool
    ) -> tuple[Any, Any]:
        """The gradient by the table, each row once. The device sums the gradients of repeated rows.

        All work arrays have one row for each id, whether ids repeat or not, so that the pool can reuse them.
        """
        n, dtype = len(made.ids), made.out.dtype
        distinct, order, starts = row_order(made.ids)
        values = np.empty((n, self.dim), dtype)
        summed = place.result(values)
        ends = np.full(n + 1, n, np.int64)
        ends[: len(starts)] = starts
        place.kernels.zero(summed, place.stream)
        place.kernels.embedding_scatter_add(
            summed, place.load_array(np.arange(n)), place.load_array(order), place.load_array(ends),
            dout.reshape((n, self.dim)), place.stream,
        )  # fmt: skip
        rows = distinct if made.names is None else made.names[distinct]
        return {"table": Rows(rows, values[: len(distinct)])}, None

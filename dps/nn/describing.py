"""The table of a model's layers, as Keras users know it."""

from __future__ import annotations

import math
from typing import Any

from dps.nn.network import Network
from dps.variables.tree import leaves


def summary_of(name: str, network: Network, weights: Any) -> str:
    """The table: layers, the shapes of their results, and how many parameters they have."""
    shapes = {id(call.layer): call.shape for call in network.graphs[False].calls}
    rows = [("Layer (type)", "Output Shape", "Param #")]
    for layer in network.layers:
        count = sum(math.prod(array.shape) for _, array in leaves(weights.get(network.name(layer), {})))
        shape = ", ".join(map(str, shapes.get(id(layer), ())))
        rows.append((f"{network.name(layer)} ({type(layer).__name__})", f"(batch, {shape})", f"{count:,}"))
    total = sum(math.prod(array.shape) for _, array in leaves(weights))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(3)]
    lines = ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rule = "=" * sum(widths)
    return "\n".join([f"Model: {name!r}", lines[0], rule, *lines[1:], rule, f"Total params: {total:,}"])

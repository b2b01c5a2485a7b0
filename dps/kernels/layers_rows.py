"""Sorts the row numbers of an embedding into the order in which its gradient is summed. Runs on the host."""

from __future__ import annotations

import numpy as np

from dps.kernels.layers_cpu import Rows


def row_order(rows: Rows) -> tuple[Rows, Rows, Rows]:
    """The distinct row numbers, sorted; the positions of each in order of occurrence; where these positions begin.

    Shapes (d,), (n,), (d + 1,), int64. The positions of distinct[s] are order[starts[s]:starts[s + 1]].
    """
    order = np.argsort(rows, kind="stable")
    in_order = rows[order]
    begins = np.flatnonzero(np.diff(in_order, prepend=in_order[:1] - 1))
    starts = np.append(begins, len(rows))
    return in_order[begins], order, starts

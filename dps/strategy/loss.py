"""The loss of a replica's part of a global batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from dps.errors import ConfigError
from dps.strategy.values import array_of


def average_loss(per_example_loss: Any, global_batch_size: int) -> Any:
    """The sum of a replica's losses, divided by the size of the global batch.

    Gradients are summed over the replicas, so each example must count for 1 / global batch. A mean over the replica's
    own examples would make the sum as many times too large as there are replicas.

    Args:
        per_example_loss: The losses of this replica's examples, of any shape; or what has `sum`, as a tensor.
        global_batch_size: How many examples all replicas have together in this step.

    Returns:
        The replica's share of the mean loss, in the dtype of the losses. Shares of all replicas add up to the mean.

    Raises:
        ConfigError: A size that is no whole number from 1.

    Example:
        ```pycon
        >>> first, second = np.array([1.0, 2.0, 3.0]), np.array([6.0])
        >>> shares = [dps.strategy.average_loss(losses, 4) for losses in (first, second)]
        >>> float(sum(shares)), float(np.mean([1.0, 2.0, 3.0, 6.0]))
        (3.0, 3.0)
        ```
    """
    if isinstance(global_batch_size, bool) or not hasattr(global_batch_size, "__index__") or global_batch_size < 1:
        raise ConfigError(
            f"average_loss: got global_batch_size={global_batch_size!r}, wanted the number of examples of all replicas "
            "together, a whole number from 1"
        )
    if hasattr(per_example_loss, "detach"):  # a tensor's share belongs to its graph
        return per_example_loss.sum() / int(global_batch_size)
    if not hasattr(per_example_loss, "sum"):
        per_example_loss = array_of(per_example_loss)
    total = per_example_loss.sum()
    size = int(global_batch_size)
    return total / total.dtype.type(size) if isinstance(total, np.floating) else total / size

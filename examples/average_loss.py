"""What goes wrong without average_loss: replicas sum their gradients, so each example must count for 1 / global batch.

python examples/average_loss.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import dps

GLOBAL_BATCH = 8
RATE = 1.0


def train(strategy: Any, size_of: Any, steps: int = 20) -> list[float]:
    """Fit y = 2 x; the mean loss of each step. `size_of(part)`: what a replica divides its sums by."""
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=GLOBAL_BATCH) for _ in range(steps)]
    with strategy.scope():
        variables = strategy.variables({"w": np.zeros(())}, optimizer=dps.optim.SGD(RATE))

    def step(x: Any) -> Any:
        error = variables.read()["w"] * x - 2 * x
        variables.apply_gradients({"w": np.array(np.sum(error * x) / size_of(x))})
        return dps.strategy.average_loss(error**2 / 2, GLOBAL_BATCH)

    dataset = strategy.distribute_dataset(batches)
    return [float(strategy.reduce("sum", strategy.run(step, args=(batch,)))) for batch in dataset]


def main() -> dict[str, list[float]]:
    """Train with 1 and with 4 replicas, right and wrong, and print the losses."""
    one, four = dps.strategy.OneDevice("/cpu:0"), dps.strategy.Mirrored([f"/cpu:{i}" for i in range(4)])
    runs = {
        "1 replica": train(one, lambda part: GLOBAL_BATCH),
        "4 replicas, divided by the global batch": train(four, lambda part: GLOBAL_BATCH),
        "4 replicas, divided by their own part": train(four, len),  # steps are 4 times too long
    }
    for name, losses in runs.items():
        print(f"{name:42} {' '.join(f'{loss:.3g}' for loss in losses[::4])}")
    return runs


if __name__ == "__main__":
    main()

"""Two embedding tables on the ps, read and updated by rows: matrix factorisation of seeded ratings.

A rating is the product of a user's and an item's row, and noise of a known size. So the best that any model can do is
known, too: the mean squared noise; it shows how near it got. Each table is cut into parts, spread over the ps.

    python examples/sparse.py                                                  chief, ps and worker in one process
    dps launch --ps 2 --workers 4 examples/sparse.py -- --steps 3000           a process for each task
    dps launch --ps 2 --workers 2 --update sync examples/sparse.py             rows that several touch are averaged
    python -m dps.role --job worker --program examples/sparse.py               one more worker for a running cluster
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: workers share the cores

import argparse
from dataclasses import dataclass

import numpy as np

import dps

WIDTH, NOISE = 4, 0.3


@dataclass(frozen=True)
class Ratings:
    """Who rated what, and how: int64 (n,), int64 (n,), float32 (n,); `noise` is the mean squared noise in them."""

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    noise: float

    def error(self, user_rows: np.ndarray, item_rows: np.ndarray) -> float:
        """Mean squared error of the products of these rows, (n, WIDTH) each."""
        return float(np.mean(((user_rows * item_rows).sum(axis=1) - self.values) ** 2))


def ratings(users: int, items: int, n: int) -> tuple[Ratings, Ratings]:
    """`n` ratings to train with, and a tenth of that kept aside; no pair comes twice. The same for everybody."""
    rng = np.random.default_rng(7)
    user_table, item_table = rng.normal(size=(users, WIDTH)), rng.normal(size=(items, WIDTH))
    pairs = rng.permutation(users * items)[: n + n // 10]
    user, item, noise = pairs // items, pairs % items, rng.normal(0, NOISE, len(pairs))
    values = ((user_table[user] * item_table[item]).sum(axis=1) + noise).astype(np.float32)
    cuts = slice(0, n), slice(n, None)
    train, kept = (Ratings(user[c], item[c], values[c], float(np.mean(noise[c] ** 2))) for c in cuts)
    return train, kept


def first_values(users: int, items: int) -> dict[str, dps.Variable]:
    rng = np.random.default_rng(1)
    sizes = {"users": users, "items": items}
    return {
        name: dps.Variable(rng.normal(0, 0.1, (n, WIDTH)).astype(np.float32), sparse=True) for name, n in sizes.items()
    }


def train(
    server: dps.Server, users: int, items: int, n: int, steps: int, batch: int, parts: int
) -> tuple[float, float]:
    """Train until the shared global step is `steps`; the error on the ratings kept aside, and what of it is noise."""
    seen, kept = ratings(users, items, n)
    optimizer = dps.optim.Adagrad(dps.optim.Cosine(0.5, decay_steps=steps))  # the rate falls with the global step
    spread, hooks = dps.partition.Fixed(parts), [dps.StopAtStep(last_step=steps)]
    values = first_values(users, items)
    with dps.Session(server, values, optimizer=optimizer, partitioner=spread, hooks=hooks) as session:
        rng = np.random.default_rng(100 + server.task)  # each worker draws its own batches
        while not session.should_stop():
            chosen = rng.integers(n, size=batch)
            user, item = seen.users[chosen], seen.items[chosen]
            user_rows, item_rows = session.lookup("users", user), session.lookup("items", item)
            off = (user_rows * item_rows).sum(axis=1) - seen.values[chosen]
            # A row that occurs several times in a batch gets the sum of its gradients.
            grads = {
                "users": dps.Rows(user, off[:, None] * item_rows),
                "items": dps.Rows(item, off[:, None] * user_rows),
            }
            push = session.push(grads, loss=float(np.mean(off**2)))
            if push.step % 200 == 0:
                print(f"step {push.step:4d}  error of the batch {np.mean(off**2):.3f}", flush=True)
        error = kept.error(session.lookup("users", kept.users), session.lookup("items", kept.items))
    return error, kept.noise


def main() -> None:
    parser = argparse.ArgumentParser(description="Matrix factorisation with sparse rows.")
    parser.add_argument("--users", type=int, default=1000, help="rows of the one table (default %(default)s)")
    parser.add_argument("--items", type=int, default=500, help="rows of the other (default %(default)s)")
    parser.add_argument("--ratings", type=int, default=100_000, help="ratings to train with (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1000, help="ratings in a batch (default %(default)s)")
    parser.add_argument("--parts", type=int, default=2, help="parts of each table (default %(default)s)")
    args = parser.parse_args()
    with dps.Server.from_env(local=True) as server:
        error, noise = train(server, args.users, args.items, args.ratings, args.steps, args.batch, args.parts)
    print(f"error {error:.4f} on ratings kept aside, {error / noise:.2f} of the best possible, the noise: {noise:.4f}")
    print("Try next: dps launch --ps 2 --workers 4 --update bounded:4 examples/sparse.py -- --steps 3000")


if __name__ == "__main__":
    main()

"""Who likes which film, in numpy: MovieLens-100K on two keyed tables, with user and film ids as they are in the file.

Nobody says how many ids there are: an id gets its row with its first push, and reads a small random one before. The
RMSE on ratings kept aside is 0.92; with the mean alone it is 1.13, with a number for each user and film 0.94. Needs
`pip install --no-deps recbole`, which has the ratings. They are by GroupLens: F. M. Harper and J. A. Konstan, "The
MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015; grouplens.org says how they may be used.

    python examples/keyed_movielens.py                                         chief, ps and worker in one process
    dps launch --ps 2 --workers 4 examples/keyed_movielens.py -- --steps 2000  a process for each task
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: workers share the cores

import argparse
import sys
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np

import dps

WIDTH, SHRINK = 16, 0.1


def ratings_file() -> str:
    try:
        return str(distribution("recbole").locate_file("recbole/dataset_example/ml-100k/ml-100k.inter"))
    except PackageNotFoundError:
        sys.exit("the ratings are missing; get them by: pip install --no-deps recbole (or name a file with --file)")


def predicted(user: np.ndarray, film: np.ndarray) -> np.ndarray:
    """How far ratings are from the mean, (n,), by the rows of their users and films, (n, 1 + WIDTH) each."""
    return user[:, 0] + film[:, 0] + (user[:, 1:] * film[:, 1:]).sum(axis=1)


def gradient(off: np.ndarray, mine: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of the mean of off² + SHRINK (mine² + other²), by the rows `mine`."""
    by_row = np.concatenate([np.ones((len(off), 1), np.float32), other[:, 1:]], axis=1)
    return 2 / len(off) * (off[:, None] * by_row + SHRINK * mine)


def train(server: dps.Server, file: str, steps: int, batch: int) -> tuple[int, float]:
    """Train until the shared global step is `steps`; that step, and the RMSE on a tenth of the ratings, kept aside."""
    users, films = np.loadtxt(file, np.int64, delimiter="\t", skiprows=1, usecols=(0, 1), unpack=True)
    stars = np.loadtxt(file, np.float32, delimiter="\t", skiprows=1, usecols=2)
    n = len(stars) * 9 // 10  # they are in random order
    beside = stars - stars[:n].mean()
    table = dps.Variable(keys="int64", dim=1 + WIDTH, capacity=100_000, init=dps.init.Normal(0.1, seed=1))
    adam, hooks = dps.optim.Adam(dps.optim.Cosine(0.1, decay_steps=steps)), [dps.StopAtStep(last_step=steps)]
    with dps.Session(server, {"user": table, "film": table}, optimizer=adam, hooks=hooks) as session:
        rng = np.random.default_rng(100 + server.task)  # each worker draws its own batches
        while not session.should_stop():
            chosen = rng.integers(n, size=batch)
            user, film = session.lookup("user", users[chosen]), session.lookup("film", films[chosen])
            off = predicted(user, film) - beside[chosen]
            by_user, by_film = gradient(off, user, film), gradient(off, film, user)
            grads = {"user": dps.Rows(users[chosen], by_user), "film": dps.Rows(films[chosen], by_film)}
            if (push := session.push(grads, loss=float(np.mean(off**2)))).step % 100 == 0:
                print(f"step {push.step:4d}  RMSE of the batch {np.mean(off**2) ** 0.5:.3f}", flush=True)
        off = predicted(session.lookup("user", users[n:]), session.lookup("film", films[n:])) - beside[n:]
        return session.global_step, float(np.mean(off**2) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description="Matrix factorisation of MovieLens-100K on keyed tables.")
    parser.add_argument("--file", help="ratings in the form of ml-100k.inter; left out: those of recbole")
    parser.add_argument("--steps", type=int, default=1000, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=2000, help="ratings in a batch (default %(default)s)")
    args = parser.parse_args()
    step, error = train(dps.Server.from_env(local=True), args.file or ratings_file(), args.steps, args.batch)
    print(f"done at step {step}, RMSE {error:.3f} on ratings kept aside")


if __name__ == "__main__":
    main()

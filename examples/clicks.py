"""Who clicks: a wide-and-deep model in numpy on keyed tables, while new ids come and old ones go (`click_stream.py`).

The wide part is a number for each id, the deep part a small network over 13 numbers and a vector for each id. A row
comes with the second push of its key, and goes after `--expire` steps without one. Each batch is predicted before it is
trained on: on day 8 two workers have a log loss of 0.44; the best possible is 0.415, the rate of clicks alone has 0.59.

    python examples/clicks.py                                       chief, ps and worker in one process
    dps launch --ps 2 --workers 2 examples/clicks.py -- --days 12   a process for each task, each with its own log
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: workers share the cores

import argparse
from typing import Any

import numpy as np
from click_stream import DENSE, FEATURES, Clicks, days

import dps

DIM, HIDDEN, BATCH = 8, 32, 400


def first_values(expire: int) -> dict[str, Any]:
    table: dict[str, Any] = {"keys": "int64", "capacity": 200_000, "admit": 2, "expire_steps": expire}
    return {
        "wide": dps.Variable(**table, dim=1, init=dps.init.Zeros(), optimizer=dps.optim.Ftrl(0.3)),
        "deep": dps.Variable(**table, dim=DIM, init=dps.init.Normal(0.3, seed=1)),
        "w1": dps.Variable(shape=(DENSE + FEATURES * DIM, HIDDEN), init=dps.init.HeNormal(seed=1)),
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": dps.Variable(shape=HIDDEN, init=dps.init.Normal(HIDDEN**-0.5, seed=1)),
        "b2": np.full(1, -1, np.float32),
    }


def gradients(batch: Clicks, rows: dict[str, np.ndarray], net: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """The predicted probabilities (n,), and the gradients of the log loss. `rows`: (n, 26, 1) and (n, 26, DIM)."""
    x = np.concatenate([batch.dense, rows["deep"].reshape(len(batch.clicked), -1)], axis=1)
    hidden = np.maximum(x @ net["w1"] + net["b1"], 0)
    predicted = 1 / (1 + np.exp(-rows["wide"].sum(axis=(1, 2)) - hidden @ net["w2"] - net["b2"]))
    off = (predicted - batch.clicked) / len(x)
    by_hidden = off[:, None] * net["w2"] * (hidden > 0)
    by_rows = {"wide": np.repeat(off, FEATURES), "deep": (by_hidden @ net["w1"].T)[:, DENSE:]}
    grads = {name: dps.Rows(batch.keys, by.reshape(rows[name].shape)) for name, by in by_rows.items()}
    by_net = {"w1": x.T @ by_hidden, "b1": by_hidden.sum(axis=0), "w2": hidden.T @ off, "b2": off.sum(keepdims=True)}
    return predicted, grads | by_net


def train(server: dps.Server, last_day: int, examples: int, expire: int) -> None:
    """Train on a log of this worker's own, and tell of each day the losses, and the rows of the deep part."""
    with dps.Session(server, first_values(expire), optimizer=dps.optim.Adam(0.01)) as session:
        for day, clicks in zip(range(1, last_day + 1), days(examples, server.task), strict=False):
            predicted = []
            for now in clicks.batches(BATCH):
                rows = {name: session.lookup(name, now.keys) for name in ("wide", "deep")}
                p, grads = gradients(now, rows, session.pull())
                session.push(grads, loss=now.loss(p))
                predicted.append(p)
            losses = [clicks.loss(p) for p in (np.concatenate(predicted), clicks.probability, clicks.clicked.mean())]
            tables = [ps["tables"]["deep"] for ps in session.stats().values() if "tables" in ps]
            counts = ", ".join(f"{sum(t[key] for t in tables)} {key}" for key in ("rows", "admitted", "expired"))
            told = "log loss {:.3f}, best possible {:.3f}, rate alone {:.3f}".format(*losses)
            print(f"day {day}: {told}; {counts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Wide and deep on a stream of clicks.")
    parser.add_argument("--days", type=int, default=8, help="days to train for (default %(default)s)")
    parser.add_argument("--examples", type=int, default=16_000, help="of a day and log (default %(default)s)")
    parser.add_argument("--expire", type=int, default=200, help="steps that rows are kept for (default %(default)s)")
    args = parser.parse_args()
    train(dps.Server.from_env(local=True), args.days, args.examples, args.expire)


if __name__ == "__main__":
    main()

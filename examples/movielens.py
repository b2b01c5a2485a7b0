"""Who likes which film: MovieLens-100K in PyTorch, with two `dps.torch.Embedding` tables whose rows live on the ps.

A rating is a number of the user and one of the film and the product of their vectors. A step looks up the rows of its
batch and pushes their gradients. Needs PyTorch (`pip install "dps[torch]"`) and `pip install --no-deps recbole`, which
has the ratings. They are by GroupLens: F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context",
ACM TiiS 5(4), 2015; grouplens.org says how they may be used.

    python examples/movielens.py                                               chief, ps and worker in one process
    dps launch --ps 2 --workers 4 examples/movielens.py -- --steps 2000        a process for each task
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: workers share the cores

import argparse
import sys
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np

try:
    import torch

    import dps.torch
except ImportError:
    sys.exit('movielens.py: PyTorch is not installed; get it by: pip install "dps[torch]"')


def ratings_file() -> str:
    try:
        return str(distribution("recbole").locate_file("recbole/dataset_example/ml-100k/ml-100k.inter"))
    except PackageNotFoundError:
        sys.exit("the ratings are missing; get them by: pip install --no-deps recbole (or name a file with --file)")


def train(server: dps.Server, file: str, steps: int, batch: int, width: int = 16) -> tuple[int, float]:
    """Train until the shared global step is `steps`; that step, and the RMSE on a tenth of the ratings, kept aside."""
    table = torch.from_numpy(np.loadtxt(file, np.float32, delimiter="\t", skiprows=1, usecols=(0, 1, 2)))
    pairs, ratings, n = table[:, :2].long(), table[:, 2], len(table) * 9 // 10  # in random order
    mean, (users, films) = ratings[:n].mean(), (pairs.amax(dim=0) + 1).tolist()
    torch.manual_seed(1)  # the first values come from whichever worker is first
    model = torch.nn.ModuleList([dps.torch.Embedding(users, 1 + width), dps.torch.Embedding(films, 1 + width)])
    for parameter in model.parameters():
        parameter.data.mul_(0.1)
    adam, hooks = dps.optim.Adam(dps.optim.Cosine(0.1, decay_steps=steps)), [dps.StopAtStep(last_step=steps)]
    opt = dps.torch.Optimizer(model.named_parameters(), server, adam, hooks=hooks)

    def errors(pairs: torch.Tensor, ratings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        user, film = model[0](pairs[:, 0]), model[1](pairs[:, 1])
        predicted = mean + user[:, 0] + film[:, 0] + (user[:, 1:] * film[:, 1:]).sum(dim=1)
        return (predicted - ratings).square().mean(), (user.square() + film.square()).sum(dim=1).mean()

    torch.manual_seed(100 + server.task)  # each worker draws its own batches
    while not opt.should_stop():
        chosen = torch.randint(n, (batch,))
        opt.zero_grad()
        error, size = errors(pairs[chosen], ratings[chosen])
        (error + 0.1 * size).backward()
        opt.step(loss=error)
        if (step := opt.session.global_step) % 100 == 0:
            print(f"step {step:4d}  RMSE of the batch {error.sqrt().item():.3f}", flush=True)
    return opt.session.global_step, errors(pairs[n:], ratings[n:])[0].sqrt().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Matrix factorisation of MovieLens-100K in PyTorch.")
    parser.add_argument("--file", help="ratings in the form of ml-100k.inter; left out: those of recbole")
    parser.add_argument("--steps", type=int, default=1000, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=2000, help="ratings in a batch (default %(default)s)")
    args = parser.parse_args()
    file = args.file or ratings_file()
    step, error = train(dps.Server.from_env(local=True), file, args.steps, args.batch)
    print(f"done at step {step}, RMSE {error:.3f} on ratings kept aside")


if __name__ == "__main__":
    main()

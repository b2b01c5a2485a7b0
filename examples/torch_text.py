"""A character language model in PyTorch: a GRU learns the text of Python's own documentation, which `help()` shows.

The text comes with Python (`pydoc_data.topics`), so nothing is downloaded. A scheduler of torch makes the rates of the
ps, and each worker clips its gradients. Needs PyTorch (`pip install "dps[torch]"`).

    python examples/torch_text.py                                              chief, ps and worker in one process
    dps launch --ps 2 --workers 2 examples/torch_text.py -- --steps 2000       a process for each task
    dps launch --ps 2 --workers 2 --update local:8 examples/torch_text.py      for a slow network
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: workers share the cores

import argparse
import sys
from pydoc_data.topics import topics

try:
    import torch

    import dps.torch
except ImportError:
    sys.exit('torch_text.py: PyTorch is not installed; get it by: pip install "dps[torch]"')


class CharacterModel(torch.nn.Module):
    """For each character of a text, scores of the 128 that may come next."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vectors, self.memory = torch.nn.Embedding(128, 64), torch.nn.GRU(64, width, batch_first=True)
        self.scores = torch.nn.Linear(width, 128)

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of all characters of `text`, (rows, length), but the first of each row; in nats."""
        hidden, _ = self.memory(self.vectors(text[:, :-1]))
        return torch.nn.functional.cross_entropy(self.scores(hidden).flatten(0, 1), text[:, 1:].flatten())


def train(server: dps.Server, steps: int, batch: int, length: int, width: int) -> tuple[int, float]:
    """Train until the shared global step is `steps`; that step, and the loss on a tenth of the text, kept aside."""
    text = torch.tensor(list("\n".join(topics.values()).encode("ascii", "ignore")))
    text, kept = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    torch.manual_seed(1)  # the first values come from whichever worker is first
    model = CharacterModel(width)
    rate = dps.torch.schedule(lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps), steps, 0.01)
    hooks = [dps.StopAtStep(last_step=steps)]
    opt = dps.torch.Optimizer(model.named_parameters(), server, dps.optim.Adam(rate), hooks=hooks)

    torch.manual_seed(100 + server.task)  # each worker draws its own batches
    while not opt.should_stop():
        starts = torch.randint(len(text) - length, (batch, 1))
        opt.zero_grad()
        loss = model.loss(text[starts + torch.arange(length + 1)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step(loss=loss)
        if opt.session.global_step % 50 == 0:
            print(f"step {opt.session.global_step:4d}  loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        return opt.session.global_step, model.loss(kept[: len(kept) // 256 * 256].reshape(-1, 256)).item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character model on the text of Python's documentation.")
    parser.add_argument("--steps", type=int, default=600, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="pieces of text in a batch (default %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="characters in a piece (default %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="numbers in the GRU's state (default %(default)s)")
    args = parser.parse_args()
    step, loss = train(dps.Server.from_env(local=True), args.steps, args.batch, args.length, args.width)
    print(f"done at step {step}, loss {loss:.3f} nats a character on text kept aside")


if __name__ == "__main__":
    main()

"""A PyTorch loop whose parameters and optimizer are on the ps: only the line that makes the optimizer is dps's.

`opt.step()` pushes the gradients and writes the new values into the model. `buffers` shares the statistics of batch
normalisation. The end of the program leaves the run; there is no `close()`. Needs PyTorch (`pip install "dps[torch]"`)
and the images of examples/mnist.py.

    python examples/torch_mnist.py                                             chief, ps and worker in one process
    dps launch --ps 2 --workers 2 examples/torch_mnist.py -- --steps 300       a process for each task
    python -m dps.role --job worker --program examples/torch_mnist.py          one more worker for a running cluster
"""

from __future__ import annotations

import argparse
import sys

from mnist import images_and_labels, images_file  # first: it sets numpy's and PyTorch's threads

import dps

images_file()  # says what to install, before the library takes its time to load
try:
    import torch

    import dps.torch
except ImportError:
    sys.exit('torch_mnist.py: PyTorch is not installed; get it by: pip install "dps[torch]"')


def train(server: dps.Server, steps: int, batch: int) -> tuple[int, float]:
    """Train until the shared global step is `steps`; that step, and the accuracy on images kept aside."""
    images, labels, test_images, test_labels = map(torch.from_numpy, images_and_labels())
    torch.manual_seed(1)  # the first values come from whichever worker is first
    layers = [torch.nn.Linear(784, 128), torch.nn.BatchNorm1d(128), torch.nn.ReLU(), torch.nn.Linear(128, 10)]
    model = torch.nn.Sequential(*layers)
    opt = dps.torch.Optimizer(
        model.named_parameters(), server, dps.optim.Adam(0.002),
        buffers=model.named_buffers(), hooks=[dps.StopAtStep(last_step=steps)],
    )  # fmt: skip

    torch.manual_seed(100 + server.task)  # each worker draws its own batches
    while not opt.should_stop():
        chosen = torch.randint(len(images), (batch,))
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        opt.step(loss=loss)
        if opt.session.global_step % 50 == 0:
            print(f"step {opt.session.global_step:4d}  loss {loss.item():.3f}", flush=True)
    model.eval()  # batch normalisation by the statistics that all workers share
    with torch.no_grad():
        accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
    return opt.session.global_step, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a PyTorch model on 5,000 MNIST images.")
    parser.add_argument("--steps", type=int, default=300, help="global steps to train for (default %(default)s)")
    parser.add_argument("--batch", type=int, default=100, help="images in a worker's batch (default %(default)s)")
    args = parser.parse_args()
    step, accuracy = train(dps.Server.from_env(local=True), args.steps, args.batch)
    print(f"done at step {step}, test accuracy {accuracy:.3f}")
    print("Try next: dps launch --ps 2 --workers 2 --update sync examples/torch_mnist.py")


if __name__ == "__main__":
    main()

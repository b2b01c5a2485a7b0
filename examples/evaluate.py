"""An evaluator beside the training: the test accuracy of each version that it sees, as a scalar of TensorBoard.

It is a task outside of the training cluster: no step waits for it, and the run ends without it.

    dps launch --ps 2 --workers 2 --evaluator examples/evaluate.py examples/mnist.py
    python -m dps.role --job evaluator --chief 127.0.0.1:2220 --program examples/evaluate.py     beside a run
"""

from __future__ import annotations

import argparse

from mnist import forward, images_and_labels, images_file  # first: it sets numpy's threads

import dps


def evaluate(server: dps.Server, args: argparse.Namespace) -> list[tuple[int, float]]:
    """Global step and test accuracy of each version, or of each checkpoint, until the run ends."""
    _, _, images, labels = images_and_labels()
    summaries = dps.SummaryWriter(f"{args.logs}/evaluator", tensorboard=args.tensorboard) if args.logs else None
    seen = []
    for step, params in dps.follow(server, args.checkpoints, pause=args.pause):
        accuracy = float((forward(params, images)[1].argmax(axis=1) == labels).mean())
        seen.append((step, accuracy))
        print(f"step {step:4d}  test accuracy {accuracy:.3f}", flush=True)
        if summaries is not None:
            summaries.write(step, accuracy=accuracy)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluate a run on MNIST images.")
    parser.add_argument("--checkpoints", help="the run's checkpoint_dir; left out: versions are followed")
    parser.add_argument("--logs", help="where scalars are written, in a folder evaluator; left out: nowhere")
    parser.add_argument("--tensorboard", action="store_true", help="write an event file, too (dps[tensorboard])")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two looks (default %(default)s)")
    args = parser.parse_args()
    images_file()
    with dps.Server.from_env() as server:
        seen = evaluate(server, args)
    step, best = max(seen, key=lambda row: row[1], default=(0, 0.0))
    print(f"{len(seen)} versions seen; the best was at step {step}, test accuracy {best:.3f}")


if __name__ == "__main__":
    main()

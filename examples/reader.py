"""A reader beside the trainers: follows the versions of the values, and tells the test accuracy of each that it sees.

It brings no variables and takes part in no step, so nobody waits for it; it may come and go at any time. What has not
changed since the last look is not sent again. It ends when the run does.

    python examples/reader.py                              starts 2 ps and 2 workers that train, and follows them
    python examples/reader.py --target 127.0.0.1:2220      follows the run whose chief is there (examples/mnist.py and
                                                           examples/trainer.py have the variables that it knows)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from mnist import forward, images_and_labels, images_file, train  # first: it sets numpy's threads

import dps

Seen = list[tuple[int, float]]


def follow(session: dps.Session, over: Callable[[], bool], pause_s: float) -> Seen:
    """Global step and test accuracy of every version seen, until the run ends, or `over` says so."""
    _, _, images, labels = images_and_labels()
    seen: Seen = []
    try:
        while not over() and not session.should_stop():
            params = session.pull(if_newer_than=session.version)
            if params is not None:
                accuracy = float((forward(params, images)[1].argmax(axis=1) == labels).mean())
                seen.append((session.global_step, accuracy))
                print(f"step {session.global_step:4d}  test accuracy {accuracy:.3f}", flush=True)
            time.sleep(pause_s)
    except dps.TaskLost as end:  # the run ended during a pull
        print(end)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow a run on MNIST images.")
    parser.add_argument("--target", help="the chief's address; left out: a cluster is started here")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two looks (default %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=600, help="steps of the cluster started here (default %(default)s)"
    )
    args = parser.parse_args()
    images_file()
    if args.target:
        with dps.Session(args.target) as session:
            seen = follow(session, lambda: False, args.pause)
    else:
        with dps.LocalCluster(ps=2, workers=2) as local:
            run = local.run(train, None, args.steps)
            with local.session() as session:
                seen = follow(session, run.done, args.pause)
            run.wait()
    step, best = max(seen, key=lambda row: row[1], default=(0, 0.0))
    print(f"{len(seen)} versions seen; the best was at step {step}, test accuracy {best:.3f}")
    print("Try next: dps launch --ps 2 --workers 2 examples/trainer.py, and --target with the chief that it names")


if __name__ == "__main__":
    main()

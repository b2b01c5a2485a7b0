"""The trainer of the document "Distributed TensorFlow": between-graph replication, asynchronous unless told otherwise.

As there, each task by a command of its own. In four terminals on one machine:

    HOSTS="--ps_hosts=localhost:2222,localhost:2223 --worker_hosts=localhost:2224,localhost:2225"
    python examples/trainer.py $HOSTS --job_name=ps --task_index=0
    python examples/trainer.py $HOSTS --job_name=ps --task_index=1
    python examples/trainer.py $HOSTS --job_name=worker --task_index=0
    python examples/trainer.py $HOSTS --job_name=worker --task_index=1

All four end by themselves at --last_step; the same commands with a larger one go on from the newest checkpoint. Or

    dps launch --ps 2 --workers 2 examples/trainer.py -- --last_step=200
"""

from __future__ import annotations

import argparse
import os
import sys

from mnist import forward, images_and_labels, images_file, initial_params, loss_and_gradients  # it sets numpy's threads
from numpy.random import default_rng

import dps


def main(flags: argparse.Namespace) -> int:
    images_file()
    if flags.job_name:
        # Create a cluster from the parameter server and worker hosts.
        cluster = dps.ClusterSpec.from_flags(flags.ps_hosts, flags.worker_hosts)
        # Create and start a server for the local task.
        server = dps.Server(cluster, job=flags.job_name, task=flags.task_index, update=flags.update)
    else:  # this process was made a task: by `dps launch`, by `python -m dps.role --program`, or by TF_CONFIG
        server = dps.Server.from_env()
        cluster = server.cluster

    with server:
        if server.job != "ps":
            return work(server, cluster, flags)
        print(f"{server.name} serves at {server.address}", flush=True)
        code = server.join()
        print(f"{server.name}: {server.reason or 'the run is over'}")
        return code or 0


def work(server: dps.Server, cluster: dps.ClusterSpec, flags: argparse.Namespace) -> int:
    """Train until the step that all workers share is `last_step`."""
    # Assigns each variable to a ps, in turn (None, the default, where only the chief knows the cluster).
    setter = dps.replica_device_setter(worker_device=f"/job:worker/task:{server.task}", cluster=cluster)

    # The StopAtStep hook handles stopping after running given steps. A ps that is lost takes what it has learned since
    # the last checkpoint with it, so there is one every so many seconds.
    hooks = [dps.StopAtStep(last_step=flags.last_step), dps.CheckpointSaver(seconds=flags.save_checkpoint_secs)]

    # The session takes care of initialization, restoring from a checkpoint, saving to a checkpoint, and closing when
    # done or an error occurs. Worker 0 is the chief: it does so for all; nothing has to be said for that.
    images, labels, test_images, test_labels = images_and_labels()
    with dps.Session(
        server,
        initial_params(),
        optimizer=dps.optim.Adagrad(0.2),
        update=flags.update,
        placement=setter,
        checkpoint_dir=flags.checkpoint_dir,
        hooks=hooks,
    ) as session:
        first = session.global_step
        rng = default_rng([server.task, first])  # each worker, and each run, draws batches of its own
        print(f"begins at step {first}; chief at {server.target}, checkpoints in {flags.checkpoint_dir}", flush=True)
        pushes = 0
        while not session.should_stop():
            # Run a training step: the gradients of a batch. A ps that is lost and comes back raises nothing here.
            chosen = rng.integers(len(images), size=flags.batch)
            loss, grads = loss_and_gradients(session.pull(), images[chosen], labels[chosen])
            push = session.push(grads, loss=loss)
            pushes += 1
            if pushes % 50 == 0:
                print(f"step {push.step:4d}  loss {loss:.3f}  staleness {push.staleness}", flush=True)
        scores = forward(session.pull(), test_images)[1]
    accuracy = float((scores.argmax(axis=1) == test_labels).mean())
    print(f"done at step {session.global_step}: {pushes} pushes of this worker, test accuracy {accuracy:.3f}")
    print(f"Try next: --last_step={flags.last_step * 2} goes on from there; with --update=sync they average")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The document's trainer.", usage=argparse.SUPPRESS, allow_abbrev=False)
    # Flags for defining the cluster.
    parser.add_argument("--ps_hosts", default="", help="comma-separated list of hostname:port pairs")
    parser.add_argument("--worker_hosts", default="", help="comma-separated list of hostname:port pairs")
    parser.add_argument("--job_name", default="", choices=("ps", "worker"), help="one of 'ps', 'worker'")
    # Flags for defining the server.
    parser.add_argument("--task_index", type=int, default=0, help="index of task within the job")
    # Flags for training.
    parser.add_argument("--last_step", type=int, default=1000, help="the step to stop at (default %(default)s)")
    parser.add_argument(
        "--checkpoint_dir", default="train_logs", help="a folder that all tasks see (default %(default)s)"
    )
    parser.add_argument(
        "--save_checkpoint_secs", type=float, default=30.0, help="seconds between checkpoints (default %(default)s)"
    )
    parser.add_argument("--update", help="async, sync or bounded:S (default: what the ps has, else async)")
    parser.add_argument("--batch", type=int, default=100, help="images in a worker's batch (default %(default)s)")
    flags = parser.parse_args()
    flags.checkpoint_dir = os.path.abspath(flags.checkpoint_dir)
    hosts = {"--ps_hosts": flags.ps_hosts, "--worker_hosts": flags.worker_hosts, "--job_name": flags.job_name}
    missing = [name for name, value in hosts.items() if not value]
    if missing and (len(missing) < 3 or flags.task_index):
        parser.error(f"{' and '.join(missing)} missing; a task needs {', '.join(hosts)} and --task_index")
    if not missing and "DPS_JOB" in os.environ:
        parser.error(f"got {', '.join(hosts)} in a process that dps made a task already; leave them out")
    return flags


if __name__ == "__main__":
    try:
        sys.exit(main(parsed()))
    except dps.DpsError as error:
        print(f"trainer.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)

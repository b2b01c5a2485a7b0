"""The experiment file that `dps init` writes, with comments, and the program that it starts."""

TEMPLATE = """\
# An experiment: start it with  dps launch experiment.yaml
# Paths are relative to the folder of this file. {{ name }} stands for a parameter, or for the run's id or name.
name: example
# output: runs/{{ name }}-{{ id }}    # OUTPUT_DIR of every task; without it a folder beside the run's logs

parameters:                         # dps launch experiment.yaml --set steps=100
  steps: 20                         # a list, such as [20, 100], makes one run for each value; several lists: all
                                    # combinations
# parallel: 2                       # how many of these run at one time

update: async                       # async, sync, bounded:S or local:H
restarts: 1                         # how often a chief or ps that died is started again
# env: {OMP_NUM_THREADS: "1"}       # variables for all tasks; a role may have an env of its own
# resources: {cpus: 1, memory: 1GiB, gpus: 0}     # of each task of every role that says nothing else

roles:
  # chief: {}                       # leads the run; it is there in any case
  ps:
    count: 1
    # resources: {memory: 4GiB}
  worker:
    count: 2
    # restarts: 1                   # how often a worker that a signal killed is started again
    run: train.py --steps {{ steps }}    # a text, split as a shell would and never given to one, or a list of words
  # evaluator: {run: evaluate.py}   # runs beside the training
  # dataset: {run: "feed.py:dataset"}    # reads for all workers; NAME is a dataset, or a function that returns one
"""

PROGRAM = """\
# A training program: every worker of the experiment runs it.
import argparse
import os

import numpy as np

import dps

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
steps = parser.parse_args().steps

with dps.Server.from_env() as server, dps.Session(
    server, {"w": np.zeros(2, np.float32)}, optimizer=dps.optim.SGD(0.1), hooks=[dps.StopAtStep(last_step=steps)],
    checkpoint_dir=os.environ.get("OUTPUT_DIR"),  # dps launch --resume goes on from the checkpoint there
) as session:
    while not session.should_stop():
        w = session.pull()["w"]
        session.push({"w": w - np.ones(2, np.float32)})  # the gradient of half the squared distance to (1, 1)
    print("step", session.global_step, "loss", float(np.square(session.pull()["w"] - 1).sum() / 2))
"""

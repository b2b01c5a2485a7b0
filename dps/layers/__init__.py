"""Layers for workers without a framework: forward and backward with kernels on a GPU, or with numpy on the CPU.

network = dps.layers.Sequential([
    dps.layers.Dense(784, 128, name="hidden"),
    dps.layers.Dense(128, 10, activation="identity", name="out"),
], device="/gpu:0")
with dps.Session(server, network.initial_params(seed=1), optimizer=dps.optim.Adagrad(0.1)) as session:
    while not session.should_stop():
        loss, grads = network.loss_and_gradients(session.pull(), images, labels)
        session.push(grads, loss=loss)
"""

from __future__ import annotations

from dps.layers.dense import Dense
from dps.layers.embedding import Embedding
from dps.layers.network import Sequential
from dps.layers.place import gpus

__all__ = ["Dense", "Embedding", "Sequential", "gpus"]

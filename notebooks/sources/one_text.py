"""Source of one_text.ipynb, which build.py makes."""

# %% [markdown]
# # One training text, every strategy
#
# A custom training loop is written once: make variables in a scope, split each batch, run a step in each replica, add
# up the losses. Then one line decides where it runs: in this process, on several replicas of this machine, or on
# workers, with a parameter server or without. The curves of all strategies whose replicas are *in sync* are one curve.
# You will see what each replica gets to do, what a wrong division of the loss does, and what is different where nobody
# waits.

# %%
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: replicas share this machine's cores

import logging
import sys

import matplotlib.pyplot as plt
import numpy as np

import dps

sys.path.insert(0, "../examples")
from mnist import forward, images_and_labels, initial_params, loss_and_gradients

plt.style.use("dps.mplstyle")
logging.getLogger("dps").setLevel(logging.ERROR)
images, labels, test_images, test_labels = images_and_labels()
SIZE = 90  # the global batch: it does not divide by 4
batches = [(images[i : i + SIZE], labels[i : i + SIZE]) for i in range(0, 3600, SIZE)]

# %% [markdown]
# ## The text
#
# `step` runs once in each replica, with its part of the global batch. Gradients are *summed* over the replicas, so each
# image must count for 1 / 90, however many images the replica has. `loss_and_gradients` gives means over the part;
# `share` turns them into shares of the global batch.


# %%
def train(strategy, batches=batches, rate=0.1, share=lambda part: len(part) / SIZE):
    """The loss of each global batch, as far as this process knows it, and the values at the end."""
    with strategy.scope():
        variables = strategy.variables(initial_params(), optimizer=dps.optim.SGD(rate))

    def step(batch):
        x, y = batch
        loss, grads = loss_and_gradients(variables.read(), x, y)
        mine = np.float32(share(y))
        variables.apply_gradients(
            {layer: {name: mine * g for name, g in arrays.items()} for layer, arrays in grads.items()}
        )
        return mine * loss

    losses = [
        float(strategy.reduce("sum", strategy.run(step, args=(batch,))))
        for batch in strategy.distribute_dataset(batches)
    ]
    return np.array(losses), variables.read()


def accuracy(values):
    return float((forward(values, test_images)[1].argmax(axis=1) == test_labels).mean())


# %% [markdown]
# ## The line
#
# Workers of a cluster are simulated here: the real sessions and ps, on a virtual clock in this process. Each worker
# runs the whole text, and `reduce` reaches all of them. `MultiWorkerMirrored` needs no ps.


# %%
def on_workers(make, workers, ps=1):
    """Run the text on so many workers: the losses of the global batches, and the values at the end."""

    def work(server):
        with make(server) as strategy:
            return train(strategy)

    run = dps.simulate(work, ps=ps, workers=workers, piece_nbytes=1 << 20)
    assert not run.errors, run.errors
    return run.results[0]


def cpus(count):
    return [f"/cpu:{index}" for index in range(count)]


def in_sync(server):
    return dps.strategy.ParameterServer(server, dps.SyncReplicas(3, 3))


results = {
    "no strategy": train(dps.strategy.get_strategy()),
    "OneDevice": train(dps.strategy.OneDevice("/cpu:0")),
    "Mirrored, 4 replicas": train(dps.strategy.Mirrored(cpus(4))),
    "CentralStorage, 2 replicas": train(dps.strategy.CentralStorage(cpus(2))),
    "ParameterServer, 3 workers in sync": on_workers(in_sync, 3),
    "MultiWorkerMirrored, 3 workers": on_workers(dps.strategy.MultiWorkerMirrored, 3, ps=0),
}
for name, (losses, values) in results.items():
    print(f"{name:35} first loss {losses[0]:.5f}  last {losses[-1]:.5f}  accuracy {accuracy(values):.3f}")

# %% [markdown]
# **How far apart are the curves?**

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.9))
wanted = results["no strategy"][0]
for (name, (losses, _)), width in zip(results.items(), (10, 8, 6, 4, 2.5, 1), strict=True):
    left.plot(losses, lw=width, label=name)
    if np.abs(losses - wanted).max():
        right.plot(np.arange(0, 40, 3), 1e7 * np.abs(losses - wanted)[::3], lw=1, label=name)
left.set(xlabel="step", ylabel="loss of the global batch", title="Six strategies, one curve", ylim=(0.5, 3.8))
right.set(xlabel="step", ylabel="difference to no strategy (1e-7)", title="What rounding makes of it")
left.legend(fontsize=7.5)
right.legend(fontsize=7.5)

worst = max(np.abs(losses - wanted).max() for losses, _ in results.values())
print(f"largest difference: {worst:.1e}")
assert worst < 1e-4
assert (results["OneDevice"][0] == wanted).all()

# %% [markdown]
# They are the same but for rounding: a sum of three parts rounds in other places than a sum of one. Sums are taken in
# the order of the replicas, so the same run gives the same bits again.
#
# ## Who computes what
#
# **How is a batch of 90 split?** The first replicas get one image more where it does not divide.

# %%
parts = {
    "OneDevice": dps.strategy.OneDevice("/cpu:0"),
    "Mirrored, 4 replicas": dps.strategy.Mirrored(cpus(4)),
    "CentralStorage, 2 replicas": dps.strategy.CentralStorage(cpus(2)),
}
sizes = {}
for name, strategy in parts.items():
    batch = next(iter(strategy.distribute_dataset(batches)))
    sizes[name] = strategy.local_results(strategy.run(lambda part: len(part[1]), args=(batch,)))


def own_part(server):
    with in_sync(server) as strategy:
        return len(next(iter(strategy.distribute_dataset(batches)))[1])


sizes["ParameterServer, 3 workers"] = tuple(dps.simulate(own_part, workers=3).results)

figure, ax = plt.subplots(figsize=(8, 2.6))
for row, counts in enumerate(sizes.values()):
    for replica, (count, start) in enumerate(zip(counts, np.cumsum((0, *counts)), strict=False)):
        ax.barh(row, count, left=start, color=f"C{replica}", edgecolor="white")
        ax.text(start + count / 2, row, count, ha="center", va="center", color="white")
ax.set_yticks(range(len(sizes)), list(sizes))
ax.grid(False)
ax.set(xlabel="images of the global batch, by replica", title="Every image is computed once")

assert sizes["Mirrored, 4 replicas"] == (23, 23, 22, 22)
assert all(sum(counts) == SIZE for counts in sizes.values())

# %% [markdown]
# ## What goes wrong with a mean of one's own
#
# A loop for one device takes the mean over its batch. In a replica that is the mean over its *part*; the sum over four
# replicas is then four times too large. **Does it show?**

# %%
wrong, _ = train(dps.strategy.Mirrored(cpus(4)), share=lambda part: 1.0)
four_times, _ = train(dps.strategy.get_strategy(), rate=0.4)

figure, ax = plt.subplots()
ax.plot(wanted, color="C0", label="shares of the global batch")
ax.plot(wrong / 4, color="C1", label="means over the parts, 4 replicas")
ax.plot(four_times, color="0.3", lw=1, ls="--", label="the right text at 4 times the learning rate")
ax.set(xlabel="step", ylabel="loss of an image", title="Means over the parts are a learning rate in disguise")
ax.legend()

assert abs(wrong[0] / wanted[0] - 4) < 0.1
assert np.abs(wrong / 4 - four_times).mean() < np.abs(wrong / 4 - wanted).mean()

# %% [markdown]
# No error, no warning: just another learning rate, which changes with the number of replicas.
# `dps.strategy.average_loss(per_example_loss, global_batch_size)` divides as it should.
#
# ## Strategies that do not wait
#
# In async mode, and under `Local`, each worker trains on batches of its own, and `num_replicas_in_sync` is 1. The text
# stays; each worker is given its share of the data. **Is that worse?**


# %%
def timed(make, mine):
    """Run three uneven workers: when each made its steps, its losses; the accuracy and the virtual time at the end."""

    def work(server):
        with make(server) as strategy:
            return train(strategy, mine(server.task))

    compute = dps.sim.Compute(0.1, jitter=0.3, slow={2: 2.0})
    run = dps.simulate(work, workers=3, compute=compute, piece_nbytes=1 << 20)
    assert not run.errors, run.errors
    losses = [losses for losses, _ in run.results]
    at = [[row["at"] for row in run.history if row["worker"] == f"worker:{task}"] for task in range(3)]
    times = [seconds[: len(own)] for seconds, own in zip(at, losses, strict=True)]
    return times, losses, accuracy(run.results[-1][1]), run.seconds


def own(task):
    return batches[task::3]


ways = {
    "in sync": timed(in_sync, lambda task: batches),
    "async": timed(dps.strategy.ParameterServer, own),
    "Local, 4 steps": timed(lambda server: dps.strategy.Local(server, steps=4), own),
}

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, sharex=True)
for ax, (name, (times, losses, reached, seconds)) in zip(axes, ways.items(), strict=True):
    if name == "in sync":
        ax.plot(times[0], sum(losses), color="C0", label="all workers")
    else:
        for task in range(3):
            ax.plot(times[task], losses[task], "o-", ms=3, lw=1, color=f"C{task}", label=f"worker {task}")
    ax.set(xlabel="virtual seconds", title=f"{name}: {reached:.2f}")
    ax.legend(fontsize=8)
    print(f"{name:15} 3,600 images in {seconds:4.1f} virtual seconds, accuracy {reached:.3f}")
axes[0].set_ylabel("loss")

assert ways["async"][3] < ways["in sync"][3] / 2
assert min(reached for _, _, reached, _ in ways.values()) > 0.6

# %% [markdown]
# Worker 2 is half as fast. In sync all three share each batch, and each step has its pace. Apart, each has a third of
# the batches and its own pace, in a third of the steps; under `Local` the copies meet every four steps.
#
# * The same loss and the same gradients, however many replicas: divide by the global batch.
# * Several GPUs in one machine: `Mirrored`. Several machines: `ParameterServer`. Slow links:
#   [Local steps](local_steps.ipynb).
# * With `fit` instead of a loop of your own: [three strategies](fit_under_three_strategies.ipynb).

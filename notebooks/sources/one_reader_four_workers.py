"""Source of one_reader_four_workers.ipynb, which build.py makes."""

# %% [markdown]
# # One reader, four workers
#
# Preparing examples can cost more than a training step: decoding, cropping, shifting, joining tables. If each of four
# workers prepares its own, four processes do that work beside the training. A **dataset task** does it once, in a
# process of its own, and feeds them all: what RETURNN does with its dataset worker.
#
# This notebook watches the queue of such a task *while it feeds*: with four even workers, with one that is ten times as
# slow, and with one that goes away in the middle. All tasks are threads here, so that the notebook can look into them;
# the same lines run as processes with `dps launch --dataset feed.py:dataset --workers 4 train.py`.

# %%
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: workers share this machine's cores

import sys
import time

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

import dps

sys.path.insert(0, "../examples")
from mnist import images_and_labels

plt.style.use("dps.mplstyle")
images, labels, _, _ = images_and_labels()
print(images.shape)

# %% [markdown]
# ## The dataset
#
# Real digits. Preparing a batch moves each image by up to two pixels and adds noise. Each example carries its number,
# so that we can count afterwards who learned from what.


# %%
def prepare(x, y, number):
    rng = np.random.default_rng(int(number[0]))
    x = np.roll(x.reshape(-1, 28, 28), rng.integers(-2, 3, 2), axis=(1, 2)).reshape(-1, 784)
    return x + rng.standard_normal(x.shape, np.float32) * np.float32(0.05), y, number


def digits(epochs):
    numbers = np.arange(len(images))
    return dps.data.from_arrays(images, labels, numbers).shuffle(4000, seed=1).batch(50).map(prepare).repeat(epochs)


x, y, number = next(iter(digits(1)))
print(x.shape, x.dtype, y[:5], number[:5])

# %% [markdown]
# ## A worker
#
# It trains a linear classifier on a parameter server. The loop over `dps.data.remote` is all that it knows of the
# dataset task. A step takes 20 ms, as if its arithmetic ran on an accelerator: asleep, so that four of them fit on a
# laptop. We note how long the loop waits for each batch.

# %%
STEP_S = 0.02
params = {"w": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)}


def gradients(values, x, y):
    scores = x @ values["w"] + values["b"]
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    shares /= len(y)
    return {"w": x.T @ shares, "b": shares.sum(axis=0)}


def train(server, name, step_s, leaves_after=(None,) * 4):
    """Learn from batches until the dataset ends, or leave. What came, and the share of the time spent waiting."""
    learned, waited = [], 0.0
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.05)) as session:
        batches = iter(dps.data.remote(server, name))
        began = asked = time.perf_counter()
        for x, y, number in batches:
            waited += time.perf_counter() - asked
            if len(learned) == leaves_after[server.task]:
                break  # with a batch in its hands
            server.runtime.sleep(step_s[server.task])
            session.push(gradients(session.pull(), x, y))
            learned.append(number)
            asked = time.perf_counter()
        batches.close()
    return learned, waited / (time.perf_counter() - began)


# %% [markdown]
# ## Watching the queue
#
# `serving.stats()` says what the task has: batches that are *ready*, and batches that each worker was *given* and has
# not finished. The plot below was drawn again and again while the workers ran.

# %%
local = dps.LocalCluster(ps=1, workers=4, processes=False).start()
feeder = dps.Server(None, "dataset", 0, chief=local.target)


def watch(name, epochs, step_s, *more):
    """Serve a dataset under a name, run the workers, and draw its queue until they are done."""
    figure, ax = plt.subplots(figsize=(8, 3.2))
    shown, seen = display(figure, display_id=True), []
    serving = dps.data.serve(digits(epochs), feeder, name, ahead=8)
    run, began = local.run(train, name, step_s, *more), time.perf_counter()
    drawn = began
    while not run.done():
        stats = serving.stats()
        given = [stats["given"].get(f"worker:{task}", 0) for task in range(4)]
        seen.append((time.perf_counter() - began, stats["ready"], *given))
        if time.perf_counter() > drawn + 0.5:
            draw(ax, seen)
            shown.update(figure)
            drawn = time.perf_counter()
        time.sleep(0.01)
    draw(ax, seen)
    shown.update(figure)
    plt.close(figure)
    return run.results, np.array(seen)


def draw(ax, seen):
    at, ready, *given = np.array(seen).T
    ax.clear()
    ax.stackplot(at, *given, labels=[f"given to worker {task}" for task in range(4)], alpha=0.6)
    ax.plot(at, ready, "k-", lw=1.2, label="ready")
    ax.set(
        xlabel="seconds", ylabel="batches", xlim=(0, None), ylim=(0, 24), title="What the dataset task has in memory"
    )
    ax.legend(loc="upper right", ncols=3)


# %% [markdown]
# **Is the reader fast enough for four workers?**

# %%
results, seen = watch("even", 4, [STEP_S] * 4)
busy = [1 - waited for _, waited in results]
for task, (learned, _) in enumerate(results):
    print(f"worker {task}: {len(learned)} steps, {100 * busy[task]:.0f} % of its time not waiting for data")

assert sum(len(learned) for learned, _ in results) == 4 * 80
assert min(busy) > 0.8

# %% [markdown]
# The line of what is *ready* stays up: there is always a batch when a worker asks, and the workers even have two more
# ahead. Memory is bounded: 8 batches ready, and for each worker the one in use and the two it asked for ahead.

# %%
assert seen[:, 1].max() <= 8
assert seen[:, 2:].max() <= 3

# %% [markdown]
# ## One worker is slow
#
# Now worker 3 takes ten times as long for a step. Batches are not dealt out by turns: who asks gets one. **Does the
# slow worker hold up the others?**

# %%
results, seen = watch("slow", 4, [STEP_S] * 3 + [10 * STEP_S])
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.8))
names = [f"worker {task}" for task in range(4)]
left.bar(names, [len(learned) for learned, _ in results], color="C0")
left.set(ylabel="batches learned from", title="Each takes what it can")
right.bar(names, [100 * (1 - waited) for _, waited in results], color="C2")
right.set(ylabel="time not waiting (%)", title="and nobody waits for another")

counts = [len(learned) for learned, _ in results]
assert min(counts[:3]) > 4 * counts[3]
assert (
    min(1 - waited for _, waited in results[:3]) > 0.7
)  # they wait only at the end, for the last batch of the slow one
assert seen[:, 1].max() <= 8

# %% [markdown]
# ## One worker goes away
#
# Worker 2 leaves after ten batches, with an eleventh in its hands and two more on their way. The task takes these three
# back, in their places, and gives them to others; if the worker's process had died it would have done the same. A batch
# is finished when its push was accepted, not when it arrived. **Is any image left out, or learned from twice?**

# %%
results, seen = watch("leaves", 1, [STEP_S] * 4, [None, None, 10, None])
learned = np.concatenate([number for learned, _ in results for number in learned])
times = np.bincount(learned, minlength=len(images))
figure, ax = plt.subplots(figsize=(4.5, 2.8))
ax.bar(["never", "once", "twice"], np.bincount(times, minlength=3), color="C4")
ax.set(ylabel="images", title="Each image of the epoch, once")
print([len(learned) for learned, _ in results], "batches of", len(images) // 50)

assert (times == 1).all()
assert len(results[2][0]) == 10

# %% [markdown]
# ## And on real machines
#
# * `dps launch --workers 4 --dataset feed.py:dataset train.py` starts the task beside the workers. `--datasets 2`
#   starts two, each of which reads its part.
# * Positions are part of checkpoints (`dps.data.InputSaver`): a run that is restored gets the batches that its
#   checkpoint has not.
# * With very cheap examples the task only costs its copies: read them in each worker, with `shard`.
#
# The guide has [all of it](../docs/guide/input.md).

# %%
feeder.stop()
local.stop()

"""Source of in_graph.ipynb, which build.py makes."""

# %% [markdown]
# # One program drives the workers
#
# In the other notebooks every worker runs the same loop. Here it is the other way round: the workers wait, and *this
# notebook* has them run functions. TensorFlow calls it in-graph replication, and its `ClusterCoordinator` does it for
# many workers. You will run a function on a worker that you choose, schedule hundreds of calls on whoever is free, kill
# a worker in the middle, and look at what became of its calls.

# %%
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: the workers share this machine's cores

import signal
import sys
import time

import matplotlib.pyplot as plt
import numpy as np

import dps

sys.path.insert(0, "../examples")
from mnist import forward, images_and_labels, images_file, initial_params, loss_and_gradients

images_file()  # ends here, and says what to install, where the images are missing

plt.style.use("dps.mplstyle")
images, labels, test_images, test_labels = images_and_labels()

# %% [markdown]
# ## What workers may run
#
# A worker runs functions of modules that it *serves*, and no others: no code travels with a call. On a command line
# that is `dps launch --workers 3 --serve steps.py train.py`. In a notebook the functions themselves are given to the
# cluster when it starts.
#
# A session among the arguments arrives as the worker's *own* session, so `step` pulls from the ps and pushes to them,
# and none of that passes this notebook. `batches` is called once on each worker, with the worker's number: each makes
# a dataset of its own.


# %%
def batches(task):
    from mnist import images_and_labels

    images, labels, *_ = images_and_labels()
    rng = np.random.default_rng(task)
    while True:
        rows = rng.integers(0, len(images), 100)
        yield images[rows], labels[rows]


def step(session, batches):
    """One training step; says who made it, from when to when, and its loss."""
    x, y = next(batches)
    began = time.time()
    loss, gradients = loss_and_gradients(session.pull(), x, y)
    time.sleep(0.03 if session.name == "worker:0" else 0.005)  # worker 0 is on a slower machine
    session.push(gradients, loss=loss)
    return session.name, began, time.time(), float(loss)


def tower(params, x, y):
    """The gradients of one part of a batch."""
    return loss_and_gradients(params, x, y)


def process():
    return os.getpid()


local = dps.LocalCluster(ps=2, workers=3, serve=[batches, step, tower, process]).start()

# %% [markdown]
# ## Variables on two ps, computing on a worker
#
# As in TensorFlow's *Distributed TensorFlow* page, the first layer is pinned to one ps and the second to the other. The
# session belongs to this notebook, which computes nothing.
#
# **Which process computes when `run` stands in the scope of a worker?**

# %%
params = initial_params()
for ps, layer in enumerate(params):
    with dps.device(f"/job:ps/task:{ps}"):
        params[layer] = {name: dps.Variable(array) for name, array in params[layer].items()}

session = local.session(params, optimizer=dps.optim.SGD(0.2))
pids = []
for task in range(3):
    with dps.device(f"/job:worker/task:{task}"):
        pids.append(session.run(process))

print("processes, this notebook's among them:", len({*pids, os.getpid()}))
assert len({*pids, os.getpid()}) == 4

# %% [markdown]
# ## A hundred and fifty calls for whoever is free
#
# `run` waits for one worker. A coordinator's `schedule` returns at once, and any free worker takes the call. Worker 0
# is six times slower than the others.
#
# **Does the slow worker hold up the others?**

# %%
coordinator = dps.Coordinator(local.target)
data = iter(coordinator.create_per_worker_dataset(batches))

values = [coordinator.schedule(step, args=(session, data)) for _ in range(150)]
coordinator.join()
steps = coordinator.fetch(values)


def timeline(steps, title):
    """Which worker ran which call, and when."""
    first = min(began for _, began, _, _ in steps)
    _, ax = plt.subplots(figsize=(8, 2.2))
    for row, name in enumerate(["worker:0", "worker:1", "worker:2"]):
        spans = [(began - first, ended - began) for who, began, ended, _ in steps if who == name]
        ax.broken_barh(spans, (row - 0.35, 0.7), facecolors=f"C{row}", edgecolor="white", linewidth=0.5)
    ax.set_yticks(range(3), ["worker:0", "worker:1", "worker:2"])
    ax.set_xlabel("seconds")
    ax.set_title(title)
    return ax


timeline(steps, "Calls go to whoever is free")
share = {name: sum(who == name for who, *_ in steps) for name in ["worker:0", "worker:1", "worker:2"]}
print("calls:", {name: "fewer" if count < 50 else "more" for name, count in share.items()})
assert sum(share.values()) == 150 and share["worker:0"] < share["worker:1"]

# %% [markdown]
# No: it simply makes fewer steps. All of them trained one model, asynchronously:

# %%
figure, ax = plt.subplots()
order = sorted(steps, key=lambda made: made[2])
for row, name in enumerate(["worker:0", "worker:1", "worker:2"]):
    points = [(n, loss) for n, (who, _, _, loss) in enumerate(order) if who == name]
    ax.plot(*zip(*points, strict=True), ".", color=f"C{row}", label=name)
ax.set_xlabel("step")
ax.set_ylabel("loss of the batch")
ax.legend()
ax.set_title("One model, three workers")


def accuracy():
    _, scores = forward(session.pull(), test_images)
    return float((scores.argmax(1) == test_labels).mean())


after_150 = accuracy()
assert after_150 > 0.7

# %% [markdown]
# ## A worker is killed
#
# Now worker 2 gets a `kill -9` while calls are queued. It cannot say goodbye; what it was doing is lost with it.
#
# **What becomes of the call that it was running?**

# %%
values = [coordinator.schedule(step, args=(session, data)) for _ in range(150)]
time.sleep(0.5)
killed = time.time()
os.kill(pids[2], signal.SIGKILL)
coordinator.join()
steps = coordinator.fetch(values)

ax = timeline(steps, "Worker 2 is killed; every call has its value")
ax.axvline(killed - min(began for _, began, _, _ in steps), color="black", linestyle=":")
assert len(steps) == 150 and all(np.isfinite(loss) for *_, loss in steps)
assert max(began for who, began, _, _ in steps if who == "worker:2") < killed

# %% [markdown]
# It runs again on another worker, from its beginning: each call is executed *at least* once, and has exactly one value
# here. The others do not stop for it. The coordinator notices the loss within a second.
#
# ## An error on a worker
#
# When a function raises, `join` raises its error here, once; calls that have not begun are cancelled. The error has
# the worker's traceback, and is of the class that was raised there.

# %%
coordinator.schedule(step, args=(session, None))
try:
    coordinator.join()
except TypeError as error:
    print(str(error).partition(" (in ")[0])
    print(error.remote_traceback.splitlines()[-2].strip())
    caught = error
assert isinstance(caught, dps.RemoteError) and coordinator.done()

# %% [markdown]
# ## Synchronous steps, the in-graph way
#
# So far no worker waited for another. For synchronous steps the notebook reads the values once, each worker computes
# the gradients of its part of the batch (a *tower*), and the notebook pushes their mean: one update from one large
# batch.
#
# **Do the curves differ?**

# %%
rng = np.random.default_rng(0)
losses = []
for _ in range(60):
    values, rows = session.pull(), rng.integers(0, len(images), 200)
    parts = [(values, images[part], labels[part]) for part in np.split(rows, 2)]
    towers = coordinator.fetch([coordinator.schedule(tower, args=part) for part in parts])
    mean = {
        layer: {name: sum(grads[layer][name] for _, grads in towers) / 2 for name in arrays}
        for layer, arrays in values.items()
    }
    losses.append(float(np.mean([loss for loss, _ in towers])))
    session.push(mean)

figure, ax = plt.subplots()
asynchronous = [loss for *_, loss in sorted(steps, key=lambda made: made[2])]
ax.plot(asynchronous, color="C5", linewidth=1, label="asynchronous calls, 100 images each")
ax.plot(np.arange(60) + 150, losses, color="C1", label="synchronous towers, 200 images a step")
ax.set_xlabel("step")
ax.set_ylabel("loss")
ax.legend()
ax.set_title("A mean over a larger batch is smoother")
assert np.std(np.diff(losses)) < np.std(np.diff(asynchronous))
assert accuracy() >= after_150

# %%
coordinator.close()
session.close()
local.stop()

# %% [markdown]
# ## What to take from this
#
# * Workers that serve run functions by name, for `session.run` one at a time, for a coordinator as many as there are.
# * A lost worker costs time, not results: its call runs again elsewhere.
# * Values of calls travel through the program. Where every worker does the same in a loop, let it run the loop itself.

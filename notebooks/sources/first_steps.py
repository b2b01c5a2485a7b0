"""Source of first_steps.ipynb, which build.py makes."""
# ruff: noqa: SIM117

# %% [markdown]
# # First steps with a parameter server
#
# You have a model, a loop that computes gradients, and one process that runs it. By the end of this notebook the same
# loop runs in several processes at once, and they all train *one* model. It takes about a minute, on this machine
# alone.
#
# ![The roles: a chief, parameter servers and workers](../docs/pictures/roles.svg)
#
# There are three roles:
#
# * **Workers** run your loop: they *pull* the current values, compute gradients from a batch, and *push* the gradients.
# * **Parameter servers** (*ps*) hold the values, each a part of them, and apply the gradients with an optimizer.
# * The **chief** keeps the list of who takes part, and says when it is over. No gradient passes through it.
#
# Workers never talk to each other. That is why one of them can be slow, come late or die, and the others go on.

# %%
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: the workers will share this machine's cores

import sys
import time

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

import dps

sys.path.insert(0, "../examples")
from mnist import forward, images_and_labels, images_file, initial_params, loss_and_gradients

images_file()  # ends here, and says what to install, where the images are missing

plt.style.use("dps.mplstyle")

# %% [markdown]
# ## The problem
#
# 5,000 real images of handwritten digits, 28 x 28 pixels each. 4,000 are for training; the other 1,000 are kept aside,
# to see whether the model has learned something that holds for images it has never seen.

# %%
images, labels, test_images, test_labels = images_and_labels()

figure, axes = plt.subplots(1, 10, figsize=(8, 1.2))
for digit, ax in enumerate(axes):
    ax.imshow(images[labels == digit][0].reshape(28, 28), cmap="gray_r")
    ax.set_title(digit, loc="center")
    ax.axis("off")

# %% [markdown]
# The model is a plain network with one hidden layer, 784-128-10, written in numpy in
# [`examples/mnist.py`](../examples/mnist.py). To dps a model is any nesting of dicts, lists and tuples of arrays. It
# does not care where gradients come from; PyTorch, JAX or numba would do as well.

# %%
for layer, arrays in initial_params().items():
    for name, array in arrays.items():
        print(f"{layer + '/' + name:9} {array.shape!s:11} {array.dtype}  {array.nbytes:8,} bytes")

# %% [markdown]
# ## One pull, one push
#
# Before there are many processes, look at one. `create_local_server` makes a chief, a ps and a worker inside this
# process. A `Session` is what a training loop holds: it hands the first values to the ps, together with the optimizer
# that the ps will use.
#
# **What happens to the loss of a batch when its own gradients are pushed once?**

# %%
with dps.Server.create_local_server() as server:
    with dps.Session(server, initial_params(), optimizer=dps.optim.SGD(0.1)) as session:
        params = session.pull()
        before, gradients = loss_and_gradients(params, images[:100], labels[:100])
        push = session.push(gradients, loss=before)
        after, _ = loss_and_gradients(session.pull(), images[:100], labels[:100])

print(push)
print(f"loss of this batch: {before:.3f} before, {after:.3f} after")

assert push.accepted and push.step == 1  # one update was applied, and it was the first
assert after < before  # it was a step downhill

# %% [markdown]
# The push came back with the **global step**: how many updates the model has had, from all workers together. The
# arithmetic of the update ran on the ps, not here: the worker sent gradients and got values.
#
# ## The loop, on several workers
#
# Here is the loop as a function. Every worker will run it. `server` tells a worker who it is; `server.task` is its
# number, and gives each worker batches of its own. All the rest is the loop that you would write for one process. It
# stops when the global step, which all workers share, has reached `steps`.


# %%
def train(server, images, labels, steps, batch=50):
    rng = np.random.default_rng(server.task)
    settings = {
        "optimizer": dps.optim.Adagrad(0.05),
        "partitioner": dps.partition.Fixed(2),  # each variable in two parts, one for each ps
        "hooks": [dps.StopAtStep(last_step=steps), dps.LogMetrics(steps=200, batch=batch)],
    }
    pushes = 0
    with dps.Session(server, initial_params(), **settings) as session:
        while not session.should_stop():
            chosen = rng.integers(len(images), size=batch)
            loss, gradients = loss_and_gradients(session.pull(), images[chosen], labels[chosen])
            session.push(gradients, loss=loss)
            pushes += 1
    return pushes


# %% [markdown]
# `LocalCluster` starts the tasks as processes of this machine: here a chief, two ps and, with the run, two workers.
# `run` calls the function on every worker and returns at once; the arguments after it go to every worker.
#
# So this process is free to watch. `run.history` grows by a row for every push of every worker, and we draw it while
# the training goes on. Run the cell yourself to see the curve move.
#
# **How quickly does the loss fall, and do both workers see the same curve?**


# %%
def draw(ax, history):
    """The loss of each worker's batches, each point the mean of 10."""
    ax.clear()
    for worker in sorted({row["worker"] for row in history}):
        rows = [row for row in history if row["worker"] == worker]
        means = [np.mean([row["loss"] for row in rows[i : i + 10]]) for i in range(0, len(rows) - 9, 10)]
        ax.plot([row["step"] for row in rows[9::10]], means, marker="o", markersize=4, label=worker)
    ax.set(xlabel="global step (updates of all workers)", ylabel="loss (cross-entropy, nats)")
    ax.set(xlim=(0, STEPS), ylim=(0, 2.4))
    ax.set_title("Two workers train one model: their losses fall together")
    if ax.lines:
        ax.legend()


STEPS = 400
figure, ax = plt.subplots()
draw(ax, [])
live = display(figure, display_id=True)

local = dps.LocalCluster(ps=2, workers=2, processes=True).start()
run = local.run(train, images, labels, STEPS)
while not run.done():
    time.sleep(0.2)
    draw(ax, list(run.history))
    live.update(figure)
run.wait()
draw(ax, run.history)
live.update(figure)
plt.close(figure)

# %% [markdown]
# The lines in brackets are the log of a worker's process: the *plan*, how many bytes each ps holds. The two curves lie
# on top of each other, though each worker has batches of its own and neither knows of the other: both pull from, and
# push to, the same values. Each did about half of the work:

# %%
for task, pushes in enumerate(run.results):
    print(f"worker:{task} pushed {pushes} gradients")
last = {name: round(value, 3) if isinstance(value, float) else value for name, value in run.history[-1].items()}
print("a row of the history:", last)

assert sum(run.results) == len(run.history)  # every push is in the history
assert STEPS <= sum(run.results) <= STEPS + 1  # the step counts the pushes of all; one may be on its way at the end
assert np.mean([row["loss"] for row in run.history[-50:]]) < 0.5  # and it has learned

# %% [markdown]
# You need not draw the history yourself: `run.plot()` does. `LogMetrics` knows how many examples a push has, so it
# draws examples per second. **How quick is the run, and how many updates of the other worker does a gradient miss?**

# %%
staleness = [row["staleness"] for row in run.history]
print(f"staleness: {np.mean(staleness):.2f} updates on average")

assert np.mean(staleness) <= 2  # there is one other worker, and it seldom pushes more than once meanwhile

run.plot()

# %% [markdown]
# The **staleness** of a push is how many updates the values have had since its worker pulled them.
#
# ## Somebody who only reads
#
# The workers have ended, and the ps are still there: in a `LocalCluster` only `stop()` ends them. So any other process
# can have a look at the model. A session *without* variables is a **reader**: it takes the layout that it finds, and
# only pulls. Evaluation, serving, or the actors of reinforcement learning work this way, also while the training is
# going on.
#
# **How good is the model on images that no worker has seen?**

# %%
with local.session() as reader:
    params = reader.pull()
    step = reader.global_step

guessed = forward(params, test_images)[1].argmax(axis=1)
accuracy = np.mean(guessed == test_labels)
print(f"after {step} steps: {accuracy:.1%} of {len(test_images)} new images are recognised")

assert accuracy > 0.85  # guessing would give 0.10

# %% [markdown]
# Which ones are wrong? Some of them you would not be sure of either.

# %%
wrong = np.flatnonzero(guessed != test_labels)[:10]
figure, axes = plt.subplots(1, 10, figsize=(8, 1.4))
for ax in axes:
    ax.axis("off")
for i, ax in zip(wrong, axes, strict=False):
    ax.imshow(test_images[i].reshape(28, 28), cmap="gray_r")
    ax.set_title(f"{test_labels[i]}, not {guessed[i]}", loc="center", fontsize=9)

# %% [markdown]
# ## A second run goes on where the first has ended
#
# The values live on the ps, not in the workers. Run the function again, and it starts from what is there. The first
# values that the new workers bring along are ignored, for the model has been made already.

# %%
more = local.run(train, images, labels, STEPS + 400).wait()
with local.session() as reader:
    better = np.mean(forward(reader.pull(), test_images)[1].argmax(axis=1) == test_labels)
local.stop()

first = np.mean([row["loss"] for row in more.history[:20]])
print(f"the second run began at step {more.history[0]['step']} with a loss of {first:.2f}")
print(f"accuracy on new images: {accuracy:.1%} -> {better:.1%}")

assert more.history[0]["step"] > STEPS and first < 1.0  # it did not begin anew

# %% [markdown]
# ## What each ps holds
#
# **Do both ps hold the same share of the model?**

# %%
heights = [bar.get_height() for bar in more.placement().axes[0].patches]

assert np.allclose(heights, heights[0])  # the values of both ps, and their slots

more.placement()

# %% [markdown]
# They do, because the `partitioner` cut every variable in two. Adagrad keeps a *slot* of the same size beside each
# variable: the sum of its squared gradients. Without the partitioner, variables go to the ps in turn, `w, b, w, b`: all
# weights would meet on one ps and all biases on the other. [Sharding](sharding.ipynb) is about that.
#
# ## What you have seen
#
# * A training loop is *pull, compute, push*; the optimizer runs on the ps.
# * The same function runs on any number of workers, which know nothing of each other.
# * Readers can look at the model at any time.
#
# Nobody waited for anybody here: each gradient was applied when it came. That is the default, `update=dps.Async()`, and
# it has a price. Go on with [async or sync](async_vs_sync.ipynb), or put [64 workers on your
# laptop](simulated_cluster.ipynb).

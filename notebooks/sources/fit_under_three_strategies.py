"""Source of fit_under_three_strategies.ipynb, which build.py makes."""

# %% [markdown]
# # `fit` under three strategies
#
# A model with `compile`, `fit` and `evaluate`, as Keras users know them, is trained three times on real images of
# handwritten digits: in one process, on four replicas of this machine, and by two workers with a parameter server.
# The text of the training stays; one line changes. At the end a fourth run shows what is *not* the same: workers that
# do not wait for each other.

# %%
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: replicas and workers share this machine's cores

import sys

import matplotlib.pyplot as plt
import numpy as np

import dps

sys.path.insert(0, "../examples")
from mnist import images_and_labels

plt.style.use("dps.mplstyle")
images, labels, test_images, test_labels = images_and_labels()
print(images.shape, test_images.shape)

# %% [markdown]
# ## The training
#
# The model is made in the scope of the strategy. Batches are *global*: each replica in sync gets its part of one, and
# gradients are summed. Losses are divided by the size of the global batch, so each image counts the same, whichever
# replica computes it. 4,000 images in batches of 90: the last batch of an epoch has 40, and 90 does not divide by 4
# either.


# %%
def train(strategy, images=images, labels=labels, epochs=5):
    with strategy.scope():
        model = dps.nn.Sequential(
            [dps.nn.Dense(64, activation="relu", input_shape=(784,)), dps.nn.Dense(10)],
            dtype="float64",
            seed=1,
        )
    model.compile(
        optimizer=dps.optim.Momentum(0.05),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model.fit(
        images,
        labels,
        epochs=epochs,
        batch_size=90,
        validation_data=(test_images, test_labels),
        verbose=0,
    ).history


# %% [markdown]
# ## One line changes
#
# The two workers are simulated: the same code that runs in real processes, on a virtual clock in this one
# (`dps.simulate`). Each worker runs the program; the ps sums what they push.


# %%
def on_a_ps(server, update):
    with dps.strategy.ParameterServer(server, update) as strategy:
        return train(strategy)


histories = {
    "one process": train(dps.strategy.get_strategy()),
    "Mirrored, 4 replicas": train(dps.strategy.Mirrored([f"/cpu:{i}" for i in range(4)])),
}
run = dps.simulate(on_a_ps, dps.SyncReplicas(2, 2), workers=2)
histories["ParameterServer, 2 workers"] = run.results[0]

for name, history in histories.items():
    print(f"{name:27} loss {history['loss'][-1]:.9f}  accuracy of the test images {history['val_accuracy'][-1]:.3f}")

# %% [markdown]
# **How far are the curves apart?** Sums in another order round differently, and that is all.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
epochs = np.arange(1, 6)
wanted = histories["one process"]
for (name, history), width in zip(histories.items(), (7, 4, 1.5), strict=True):
    left.plot(epochs, history["loss"], lw=width, label=name)
for name, history in list(histories.items())[1:]:
    right.semilogy(epochs, np.abs(np.subtract(history["loss"], wanted["loss"])) + 1e-18, "o-", label=name)
left.set(xlabel="epoch", ylabel="loss", title="Three strategies, one curve")
right.set(xlabel="epoch", ylabel="difference to one process", title="What rounding makes of it", ylim=(1e-18, 1e-6))
left.legend()
right.legend()

worst = max(np.abs(np.subtract(history["loss"], wanted["loss"])).max() for history in histories.values())
assert worst < 1e-9

# %% [markdown]
# **Does the model know digits that it has never seen?**

# %%
figure, ax = plt.subplots(figsize=(5.5, 3.4))
ax.plot(epochs, wanted["accuracy"], "o-", label="training images, while it learned from them")
ax.plot(epochs, wanted["val_accuracy"], "o-", label="test images")
ax.set(xlabel="epoch", ylabel="accuracy", title="Nine digits of ten")
ax.legend()

assert wanted["val_accuracy"][-1] > 0.85

# %% [markdown]
# Both workers report the same history: the ps adds their losses and metrics up, step by step, in a variable beside the
# model's.

# %%
assert run.results[0] == run.results[1]

# %% [markdown]
# ## Workers that do not wait
#
# Without `update="sync"` each worker trains for itself, on images of its own, and pushes when it likes. Now the second
# worker is three times as slow. In sync mode the first one waits for it; in async mode it does not, and gradients are a
# little old when they arrive.
#
# **How much sooner is the fast worker done?**


# %%
def each_its_own(server):
    own = slice(server.task, None, 2)
    with dps.strategy.ParameterServer(server) as strategy:
        return train(strategy, images[own], labels[own])


slow = dps.sim.Compute(seconds=0.01, slow={1: 3.0})
in_sync = dps.simulate(on_a_ps, dps.SyncReplicas(2, 2), workers=2, compute=slow)
apart = dps.simulate(each_its_own, workers=2, compute=slow)

figure, ax = plt.subplots(figsize=(5.5, 3.4))
for run, name in ((in_sync, "in sync"), (apart, "async")):
    for worker, style in (("worker:0", "-"), ("worker:1", "--")):
        at = [row["at"] for row in run.history if row["worker"] == worker]
        ax.plot(at, np.arange(1, len(at) + 1), style, label=f"{worker}, {name}")
ax.set(xlabel="virtual seconds", ylabel="steps", title="The fast worker waits, or does not")
ax.legend()
for run, name in ((in_sync, "in sync"), (apart, "async")):
    accuracies = [f"{history['val_accuracy'][-1]:.3f}" for history in run.results]
    print(f"{name:8} {run.seconds:6.1f} virtual seconds, accuracy at the end of each worker: {', '.join(accuracies)}")

assert apart.seconds < in_sync.seconds
assert min(history["val_accuracy"][-1] for history in apart.results) > 0.8

# %% [markdown]
# * `Mirrored` for several GPUs in one machine, `ParameterServer` for several machines: the same curve as one process.
# * Async mode for machines that are unequal, or come and go: [async or sync?](async_vs_sync.ipynb).
# * With PyTorch or JAX, keep your model, and use a `dps.Session`: [first steps](first_steps.ipynb).

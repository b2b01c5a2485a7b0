"""Source of async_vs_sync.ipynb, which build.py makes."""

# %% [markdown]
# # Async or sync?
#
# Several workers train one model. When a worker pushes a gradient, what should the parameter server do with it?
#
# * **Async**: apply it at once. Nobody waits. But by then others have changed the values that it was computed from.
# * **Sync**: wait for one from each worker, average them, apply the average once. All work on the same values. But
#   everybody waits for the slowest.
#
# ![The same workers under async, sync and bounded updates](../docs/pictures/update-modes.svg)
#
# In dps this is one argument, and the training loop is the same text for all. In this notebook four real worker
# processes, one of them slow, train on real images under each mode, and you see what each one costs. It takes about a
# minute.

# %%
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy: the workers will share this machine's cores

import logging
import sys
import time

import matplotlib.pyplot as plt
import numpy as np

import dps

sys.path.insert(0, "../examples")
from mnist import forward, images_and_labels, initial_params, loss_and_gradients

plt.style.use("dps.mplstyle")
images, labels, test_images, test_labels = images_and_labels()

# %% [markdown]
# ## The setting: one straggler among four
#
# A *straggler* is a worker that is slower than the others: an older machine, a neighbour that computes too, a hot card.
# Ours is made: after each batch a worker sleeps, as if its model were larger. Three workers sleep for 25 ms, the fourth
# for 150. Sleeping leaves the cores to the others, so the experiment works on a small machine as well.
#
# Each worker first waits until all four are there, then works for five seconds. We compare what comes out of it.

# %%
UPDATES = {
    "async": dps.Async(),
    "sync": dps.SyncReplicas(),
    "backup": dps.SyncReplicas(replicas_to_aggregate=3, total_num_replicas=4),
    "bounded": dps.Bounded(4),
}
NAMES = {"async": "async", "sync": "sync", "backup": "sync, 1 backup", "bounded": "bounded by 4"}
COLOURS = {"async": "C0", "sync": "C1", "backup": "C2", "bounded": "C3"}
SLEEPS_S = [0.025, 0.025, 0.025, 0.15]
SECONDS = 5.0


def train(server, mode, images, labels):
    logging.getLogger("dps").setLevel(logging.WARNING)  # the plan is no news here
    rng = np.random.default_rng(server.task)
    with dps.Session(server, initial_params(), optimizer=dps.optim.Adagrad(0.04), update=UPDATES[mode]) as session:
        while sum(name.startswith("worker") for name in session.stats()["chief"]["live"]) < len(SLEEPS_S):
            time.sleep(0.02)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            params = session.pull()
            chosen = rng.integers(len(images), size=32)
            loss, gradients = loss_and_gradients(params, images[chosen], labels[chosen])
            time.sleep(SLEEPS_S[server.task])
            session.push(gradients, loss=loss)


# %% [markdown]
# While the workers train, this process is a **reader**: it pulls the values a few times a second and measures the
# accuracy on images that are not used for training. Reading holds nobody up.


# %%
def race(mode):
    """Train under one mode: the run's history, and the accuracy over time as (seconds, global step, accuracy)."""
    with dps.LocalCluster(ps=1, workers=4, processes=True) as local:
        run = local.run(train, mode, images, labels)
        while not run.history and not run.done():
            time.sleep(0.01)
        first, curve = time.monotonic(), []
        with local.session() as reader:
            while not run.done() and (seconds := time.monotonic() - first) < SECONDS:
                params = reader.pull()
                guessed = forward(params, test_images)[1].argmax(axis=1)
                curve.append((seconds, reader.global_step, np.mean(guessed == test_labels)))
                time.sleep(0.1)
        run.wait()  # an error of a worker is raised here
    return run.history, np.array(curve)


def pushes_of(history):
    """Gradients that each worker pushed, and how many of them were accepted."""
    for task in range(4):
        rows = [row for row in history if row["worker"] == f"worker:{task}"]
        taken = sum(row["accepted"] for row in rows)
        straggler = "   <- the straggler" if task == 3 else ""
        print(f"worker:{task}  {len(rows):4} gradients, {taken:4} accepted{straggler}")


# %% [markdown]
# ## Async: nobody waits
#
# **How many gradients does each worker get done in five seconds?**

# %%
histories, curves = {}, {}
histories["async"], curves["async"] = race("async")
pushes_of(histories["async"])

# %% [markdown]
# Each one works at its own speed; the straggler costs nothing but its own share. What is the price?
#
# ## Staleness
#
# Between a worker's pull and its push, others have pushed. The gradient is for values that are no longer there. The
# number of updates in between is its **staleness**, and every push in the history has it.
#
# How large will it be? Between two pushes of a worker lie the pushes of all others that came in the meantime. So on
# average a worker's staleness should be *what the others push, divided by what it pushes itself*: little for the quick
# ones, much for the straggler. **Is that so?**

# %%
quick = [row["staleness"] for row in histories["async"] if row["worker"] != "worker:3"]
slow = [row["staleness"] for row in histories["async"] if row["worker"] == "worker:3"]

figure, ax = plt.subplots()
bins = np.arange(0, max(quick + slow) + 2) - 0.5
for name, staleness, colour in (("the three quick workers", quick, "C0"), ("the straggler", slow, "C1")):
    share = np.full(len(staleness), 100 / len(staleness))
    label = f"{name}: median {np.median(staleness):.0f}"
    ax.hist(staleness, bins, weights=share, color=colour, alpha=0.85, label=label)
ax.set(xlabel="staleness of a gradient (updates since its pull)", ylabel="gradients of that worker (%)")
ax.set_title("Async: the slowest worker's gradients are the most out of date")
ax.legend()

pushed = np.array([sum(row["worker"] == f"worker:{task}" for row in histories["async"]) for task in range(4)])
for task in range(4):
    mean = np.mean([row["staleness"] for row in histories["async"] if row["worker"] == f"worker:{task}"])
    expected = (pushed.sum() - pushed[task]) / pushed[task]
    print(f"worker:{task}  expected {expected:5.1f}, mean of the measured {mean:5.1f}")
    assert abs(mean - expected) < 0.35 * expected + 0.5  # the rule of thumb holds

assert np.median(slow) > 1.5 * np.median(quick)  # the slower a worker, the staler what it pushes

# %% [markdown]
# So the straggler does not hold up the others, but what it adds is computed from values of a while ago. Whether that
# hurts depends on how much the values have changed since: with a large learning rate, much. `dps.Async` has switches
# for it: `max_staleness` drops what is too old, `damping` lets it count for less, `compensation` corrects it.
#
# ## Sync: all wait for the slowest
#
# **What do the same five seconds give when each step takes one gradient from each worker?**

# %%
histories["sync"], curves["sync"] = race("sync")
pushes_of(histories["sync"])

mean_staleness = np.mean([row["staleness"] for row in histories["sync"]])
print(f"mean staleness {mean_staleness:.2f}")

assert mean_staleness == 0  # all gradients of a step are for the values of that step
assert len(histories["async"]) > 1.5 * len(histories["sync"])  # and most of the time most workers wait

# %% [markdown]
# Everybody has the pace of the straggler. In return no gradient is stale, and the same gradients give the same model,
# bit by bit, however the timing was.
#
# **Which is better?** That depends on what you count.


# %%
def plot(ax, x, mode):
    ax.plot(curves[mode][:, x], 100 * curves[mode][:, 2], color=COLOURS[mode], label=NAMES[mode])


figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
for mode in ("async", "sync"):
    plot(left, 1, mode)
    plot(right, 0, mode)
steps = int(curves["sync"][-1, 1])
left.set(xlabel="updates of the model", ylabel="accuracy on new images (%)", xlim=(0, 2 * steps))
left.set_title("Per update sync is ahead ...")
right.set(xlabel="time (s)", title="... per second async is", xlim=(0, SECONDS))
right.legend(loc="lower right")

both = min(steps, int(curves["async"][-1, 1]))
at_step = {mode: np.interp(both, curves[mode][:, 1], curves[mode][:, 2]) for mode in ("async", "sync")}
print(f"after {both} updates: " + ", ".join(f"{mode} {accuracy:.1%}" for mode, accuracy in at_step.items()))
assert at_step["sync"] > at_step["async"] - 0.02  # an update from four fresh gradients is at least as good as from one

# %% [markdown]
# A synchronous update is the average of four fresh gradients: it is a better update, and there are fewer of them.
# Choose by the clock on the wall, not by the number of steps. With workers that are alike, the picture turns: then sync
# waits for nobody in particular.
#
# ## Backup workers: wait, but not for the last
#
# A step need not wait for all. With `SyncReplicas(replicas_to_aggregate=3, total_num_replicas=4)` the first three
# gradients make the step; the fourth worker is a *backup*. What it brings too late is dropped, and the worker is told
# so.
#
# **Does one backup worker hide one straggler?**

# %%
histories["backup"], curves["backup"] = race("backup")
pushes_of(histories["backup"])

late = [row for row in histories["backup"] if row["worker"] == "worker:3"]

assert curves["backup"][-1, 1] > 1.5 * curves["sync"][-1, 1]  # many more steps in the same time
assert sum(row["accepted"] for row in late) < 0.2 * len(late)  # and it is the straggler's work that is lost

# %% [markdown]
# It does. The step has the pace of the quick three, nothing that is applied is stale, and you pay with the straggler's
# work. The quick ones lose a little, too: what the straggler does not fetch, the leave to work on a step, one of them
# takes, and begins a second gradient for it that may come too late. That is the trade: machines for time.
#
# ## Bounded staleness: run ahead, but not far
#
# `Bounded(4)` is in between: gradients are applied at once, as in async, but a worker that is more than four steps
# ahead of the slowest waits. **How far does the quickest worker get ahead of the straggler?**

# %%
histories["bounded"], curves["bounded"] = race("bounded")
pushes_of(histories["bounded"])


def lead(history):
    """After each update, until a worker ends: the seconds since the first, and how far the quickest is ahead."""
    rows = sorted(history, key=lambda row: row["step"])  # as the ps applied them
    last = {row["worker"]: row["step"] for row in rows}
    counts, times, leads = dict.fromkeys(last, 0), [], []
    for row in rows:
        if row["step"] > min(last.values()):
            break
        counts[row["worker"]] += 1
        times.append(row["at"] - rows[0]["at"])
        leads.append(max(counts.values()) - min(counts.values()))
    return times, leads


figure, ax = plt.subplots()
for mode in ("async", "bounded"):
    ax.step(*lead(histories[mode]), where="post", color=COLOURS[mode], label=NAMES[mode])
ax.set(xlabel="time (s)", ylabel="lead of the quickest (steps)", xlim=(0, SECONDS), ylim=(0, None))
ax.set_title("Async lets the quick run away, a bound holds them")
ax.legend()

largest = {mode: max(lead(histories[mode])[1]) for mode in ("async", "bounded")}
print("largest lead:", largest["bounded"], "bounded,", largest["async"], "async")

assert largest["bounded"] <= 4 + 1
assert largest["async"] > 10

# %% [markdown]
# With a bound of 4 the quickest worker is at most five pushes ahead: four, and the one that it is allowed to begin.
# After that it waits for the straggler at every step. A bound does *not* help against a worker that is slow all the
# time. It helps against one that is held up now and then: within the bound nobody notices.
#
# ## Time to accuracy
#
# What counts in the end: **how long until the model is good enough?**

# %% picture=async-vs-sync
TARGET = 0.80


def seconds_to(target, curve):
    """When the accuracy reached the target, None if it did not within the time."""
    there = curve[curve[:, 2] >= target]
    return there[0, 0] if len(there) else None


reached = {mode: seconds_to(TARGET, curve) for mode, curve in curves.items()}
figure, ax = plt.subplots(figsize=(8, 4))
for mode in UPDATES:
    plot(ax, 0, mode)
    when = f"{reached[mode]:.1f} s" if reached[mode] else f"not within {SECONDS:.0f} s"
    ax.lines[-1].set_label(f"{NAMES[mode]}: {when}")
ax.axhline(100 * TARGET, color="0.4", linewidth=1, linestyle="--")
ax.set(xlabel="time (s)", ylabel="accuracy on new images (%)", xlim=(0, SECONDS), ylim=(0, 100))
ax.set_title("One slow worker in four: async and a backup worker do not wait for it")
ax.legend(title=f"time to {TARGET:.0%} (dashed)", loc="lower right")

never = float("inf")
assert (reached["async"] or never) < (reached["sync"] or never)  # async does not wait for the straggler
assert (reached["backup"] or never) < (reached["sync"] or never)  # nor does a step with a backup worker

# %% [markdown]
# ## What to take home
#
# | your workers | try | because |
# | --- | --- | --- |
# | alike, and results must repeat | `SyncReplicas()` | nobody waits long, and runs are the same to the bit |
# | mostly alike, a few slow ones | `SyncReplicas(n - few, n)` | the step does not wait for the last, nothing is stale |
# | held up now and then | `Bounded(s)` | within the bound nobody waits |
# | very uneven, or they come and go | `Async()` | every machine adds what it can; mind the learning rate |
#
# Four workers are few. What would these modes do to *your* run, with 64? You need not rent them to find out: [a
# simulated cluster](simulated_cluster.ipynb).

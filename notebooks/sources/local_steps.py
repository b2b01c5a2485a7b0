"""Source of local_steps.ipynb, which build.py makes."""

# %% [markdown]
# # Local steps: fewer bytes, and what they cost
#
# In sync mode the workers exchange a gradient and the new values in *every* step. With `dps.Local(steps=H)` each worker
# trains a copy of its own for H steps; then the ps averages how far the copies have moved, and all go on from there.
# Between machines with a slow link that is the difference between waiting and computing. RETURNN proposed it as
# mirrored variables that are synchronised every N steps; others call it local SGD, or federated averaging.
#
# Four workers train on real digits here, in a simulated cluster: the messages are the real ones, and the simulator
# counts their bytes. You will see what H saves, what it costs, and when it costs more.

# %%
import logging
import sys

import matplotlib.pyplot as plt
import numpy as np

import dps

sys.path.insert(0, "../examples")
from mnist import images_and_labels

plt.style.use("dps.mplstyle")
logging.getLogger("dps").setLevel(logging.ERROR)
images, labels, test_images, test_labels = images_and_labels()
one_hot = np.eye(10, dtype=np.float32)
WORKERS, STEPS = 4, 96

# %% [markdown]
# ## The loop, and what it is asked
#
# The loop is the one of every update mode. Only `update` changes, and with it what `pull` and `push` do: under
# `dps.Local` they work on the worker's own copy, and every H-th push waits for the others. After a round worker 0 looks
# how good the *common* values are.


# %%
def gradients(params, x, wanted):
    shares = np.exp(x @ params["w"] + params["b"])
    by_scores = (shares / shares.sum(axis=1, keepdims=True) - wanted) / np.float32(len(x))
    return {"w": x.T @ by_scores, "b": by_scores.sum(axis=0)}


def accuracy(params):
    return float(((test_images @ params["w"] + params["b"]).argmax(axis=1) == test_labels).mean())


def train(server, update, part_of):
    own, rng = part_of(server.task), np.random.default_rng(server.task)
    params = {"w": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)}
    every = max(8, getattr(update, "steps", 1))
    curve = []
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.1), update=update) as session:
        for step in range(1, STEPS + 1):
            rows = rng.choice(own, size=32)
            session.push(gradients(session.pull(), images[rows], one_hot[labels[rows]]))
            if server.task == 0 and step % every == 0:
                curve.append((step, accuracy(session.pull())))
    return curve


# %% [markdown]
# The cluster: a step computes for 10 ms, and each link carries 1 MB/s with 20 ms to the other end, as between two
# sites. A set of values or gradients of this small model has 31 KB.

# %%
CLUSTER = {
    "workers": WORKERS,
    "seed": 3,
    "compute": dps.sim.Compute(seconds=0.01, jitter=0.2),
    "network": dps.sim.Network(latency_s=0.02, bytes_per_s=1e6),
    "piece_nbytes": 1 << 20,
    "trace": "all",
}
UPDATES = {"sync": dps.SyncReplicas(), **{f"H = {h}": dps.Local(steps=h) for h in (4, 16, 48)}}
COLOURS = dict(zip(UPDATES, ("C6", "C0", "C2", "C1"), strict=True))


def shuffled(task):
    """Every worker has images of all digits."""
    return np.arange(task, len(images), WORKERS)


def simulate(update, part_of):
    """The curve (step, virtual second, accuracy), and each message between workers and ps (virtual second, bytes)."""
    run = dps.simulate(train, update, part_of, **CLUSTER)
    assert not run.errors
    sent = [(e.time_s, e.detail["nbytes"]) for e in run.trace if e.what == "delivered" and ends_at_a_ps(e)]
    at = [row["at"] for row in run.history if row["worker"] == "worker:0"]
    return np.array([(step, at[step - 1], right) for step, right in run.results[0]]), np.array(sent)


def ends_at_a_ps(event):
    return {event.process[:2], event.detail["to"][:2]} == {"ps", "wo"}


found = {name: simulate(update, shuffled) for name, update in UPDATES.items()}
curves = {name: curve for name, (curve, _) in found.items()}
megabytes = {name: sent[:, 1].sum() / 1e6 for name, (_, sent) in found.items()}

# %% [markdown]
# **Do workers that meet seldom learn less from the same number of steps?**

# %%
figure, ax = plt.subplots()
for name, curve in curves.items():
    ax.plot(curve[:, 0], 100 * curve[:, 2], "o-", ms=3, color=COLOURS[name], label=name)
ax.set(xlabel="steps of each worker", ylabel="accuracy on new images (%)", xlim=(0, None), ylim=(55, 90))
ax.set_title("Step by step, seldom is nearly as good as always")
ax.legend()

ends = {name: curve[-1, 2] for name, curve in curves.items()}
print(", ".join(f"{name}: {end:.1%}" for name, end in ends.items()))
assert ends["H = 4"] > ends["sync"] - 0.03
assert min(ends.values()) > 0.7

# %% [markdown]
# Hardly, as long as all workers see the same kind of data: the mean of four good copies is a good model. (H = 1 with
# the outer optimizer `SGD(1.0)` *is* sync.)
#
# ## The bytes
#
# **How many bytes does each way move, and what do you get for a megabyte?**

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
left.bar(list(megabytes), list(megabytes.values()), color=list(COLOURS.values()))
left.set(yscale="log", ylabel="MB between workers and ps", title=f"Bytes of {STEPS} steps")
for name, (curve, sent) in found.items():
    order = np.argsort(sent[:, 0])
    total = np.cumsum(sent[order, 1])
    until = np.searchsorted(sent[order, 0], curve[:, 1], side="right") - 1
    right.plot(total[until] / 1e6, 100 * curve[:, 2], "o-", ms=3, color=COLOURS[name], label=name)
right.set(xscale="log", xlabel="MB so far", ylabel="accuracy (%)", title="Accuracy by bytes")
right.legend()

print(", ".join(f"{name}: {amount:.1f} MB" for name, amount in megabytes.items()))
for h in (4, 16, 48):
    assert 0.7 * h < megabytes["sync"] / megabytes[f"H = {h}"] < 1.3 * h

# %% [markdown]
# A round moves what a synchronous step moves, so H steps in a round need one H-th of the bytes.
#
# ## The time, where the link is slow
#
# **How much of it is time that nobody waits?**

# %%
figure, ax = plt.subplots()
for name, curve in curves.items():
    ax.plot(curve[:, 1], 100 * curve[:, 2], "o-", ms=3, color=COLOURS[name], label=name)
ax.axvline(STEPS * 0.01, color="0.4", linewidth=1, linestyle="--")
ax.set(xlabel="virtual seconds (dashed: what the computing alone takes)", ylabel="accuracy on new images (%)")
ax.set_title("A slow link: sync waits for it in every step")
ax.legend(loc="lower right")

seconds = {name: curve[-1, 1] for name, curve in curves.items()}
print(", ".join(f"{name}: {end:.1f} s" for name, end in seconds.items()))
assert seconds["sync"] > 3 * seconds["H = 16"]
assert seconds["H = 48"] < 3 * STEPS * 0.01

# %% [markdown]
# ## When it hurts: workers that see different data
#
# Now worker 0 has the digits 0 to 2 only, worker 1 the digits 3 to 5, and so on. In H steps each copy learns its own
# digits and forgets the others. **Does the mean of four specialists know all digits?**

# %%
DIGITS = {0: (0, 1, 2), 1: (3, 4, 5), 2: (6, 7), 3: (8, 9)}


def specialist(task):
    """A worker has images of some digits only."""
    return np.flatnonzero(np.isin(labels, DIGITS[task]))


SPECIALISTS = {
    "sync": UPDATES["sync"],
    "H = 16": UPDATES["H = 16"],
    "H = 48": UPDATES["H = 48"],
    "H = 16, outer momentum": dps.Local(16, outer=dps.optim.Momentum(0.7, momentum=0.6, nesterov=True)),
}
apart = {name: simulate(update, specialist)[0] for name, update in SPECIALISTS.items()}

figure, ax = plt.subplots()
for name, curve in apart.items():
    ax.plot(curve[:, 0], 100 * curve[:, 2], "o-", ms=3, color=COLOURS.get(name, "C3"), label=name)
ax.set(xlabel="steps of each worker", ylabel="accuracy on new images (%)", xlim=(0, None), ylim=(55, 90))
ax.set_title("Specialists pull the mean apart; long rounds make it worse")
ax.legend(loc="lower right")

print(", ".join(f"{name}: {curve[-1, 2]:.1%}" for name, curve in apart.items()))
assert apart["sync"][-1, 2] > apart["H = 48"][-1, 2]
assert ends["H = 48"] > apart["H = 48"][-1, 2]

# %% [markdown]
# The longer the round, the further the copies drift apart. The averaged difference goes through an *outer* optimizer on
# the ps, as if it were a gradient; one with momentum smooths the rounds.
#
# * Fast links, or one machine: sync. Nothing is gained by fewer bytes there.
# * Slow links, and workers that see the same kind of data: `dps.Local(H)`, with H so large that a round computes for
#   some times as long as its exchange takes.
# * Workers with data of their own: smaller H, or more rounds.
# * A step that needs the newest values of others: not Local. [Async or sync?](async_vs_sync.ipynb) compares the rest.

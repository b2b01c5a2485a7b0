"""Source of simulated_cluster.ipynb, which build.py makes."""

# %% [markdown]
# # 64 workers on a laptop
#
# You have a training loop that works on four workers, and would like to know what happens with 64: how much time do
# stragglers cost, is async worth its staleness, how many backup workers should you pay for, what if a machine dies?
# Renting 64 machines to find out is one way. Here is another.
#
# `dps.simulate` runs a whole cluster in this one process: the same chief, ps and sessions, the same messages, your
# training loop as it is, and real gradients. Only three things are replaced: the **clock** is virtual, the **machines**
# and their network are a model, and **computing** takes the time that you say. So 64 workers that compute for seconds
# take seconds on one core, and what comes out is the real model that such a run would have trained.

# %%
import logging
import sys
import time
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np

import dps

sys.path.insert(0, "../examples")
from mnist import images_and_labels

plt.style.use("dps.mplstyle")
logging.getLogger("dps").setLevel(logging.ERROR)
images, labels, _, _ = images_and_labels()
one_hot = np.eye(10, dtype=np.float32)

WORKERS = 64
SECONDS = 2.5  # virtual ones


# %% [markdown]
# ## The loop
#
# A linear classifier of real digits: small, so that 64 of them fit on one core. How long its gradient takes here does
# not matter; in virtual time it takes what the compute model says. The loop is what you would write for real processes.


# %%
def loss_and_gradients(params, x, wanted):
    scores = x @ params["w"] + params["b"]
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(axis=1, keepdims=True)
    by_scores = (shares - wanted) / np.float32(len(x))
    loss = -np.log((shares * wanted).sum(axis=1) + 1e-9).mean()
    return float(loss), {"w": x.T @ by_scores, "b": by_scores.sum(axis=0)}


def train(server, rate, seconds=SECONDS, save_every=None):
    params = {"w": np.zeros((784, 10), np.float32), "b": np.zeros(10, np.float32)}
    rng = np.random.default_rng(server.task)
    now = server.runtime.now  # the clock that the server stands on: here the virtual one
    saving = {"checkpoint_dir": "run", "hooks": [dps.CheckpointSaver(steps=save_every)]} if save_every else {}
    with dps.Session(server, params, optimizer=dps.optim.SGD(rate), **saving) as session:
        session.pull()
        end = now() + seconds
        while now() < end:
            chosen = rng.integers(len(images), size=32)
            loss, gradients = loss_and_gradients(session.pull(), images[chosen], one_hot[labels[chosen]])
            session.push(gradients, loss=loss)


# %% [markdown]
# ## A cluster that is not perfect
#
# A step takes 0.1 s on each machine, give or take 30 %. Four of the 64 machines are bad: they take ten times as long.
# What a message costs who sends and who receives it, what a ps needs for its arithmetic, and how much a network card
# carries is in a *calibration*: `dps bench --calibrate` measures it, and one is part of dps.

# %%
CLUSTER = {
    "ps": 2,
    "workers": WORKERS,
    "seed": 7,
    "compute": dps.sim.Compute(seconds=0.1, jitter=0.3, slow=dict.fromkeys(range(60, 64), 10.0)),
}
MODES = {
    "sync": (dps.SyncReplicas(), 0.6, "C1"),
    "sync, 4 backups": (dps.SyncReplicas(60, 64), 0.6, "C2"),
    "async": (dps.Async(), 0.01, "C0"),
    "bounded by 4": (dps.Bounded(4), 0.01, "C3"),
}
runs = {}


def simulate(mode):
    update, rate, _ = MODES[mode]
    began = time.perf_counter()
    run = runs[mode] = dps.simulate(train, rate, update=update, **CLUSTER)
    taken = sum(row["accepted"] for row in run.history)
    steps = max(row["step"] for row in run.history)
    took = f"{run.seconds:.1f} virtual s in {time.perf_counter() - began:.1f} s"
    print(f"{mode:16} {len(run.history):5} gradients, {taken:5} accepted, {steps:5} updates of the model   ({took})")
    assert not run.errors
    return steps


# %% [markdown]
# ## Sync, with and without backup workers
#
# A synchronous step waits for all 64 gradients. With `SyncReplicas(60, 64)` it takes the first 60, and the last four
# are dropped: four *backup workers*. **What do four bad machines out of 64 cost?**

# %%
waiting = simulate("sync")
print("calibration:", runs["sync"].calibration)
backed_up = simulate("sync, 4 backups")

assert backed_up > 4 * waiting  # the last four of 64 held up the other sixty

# %% [markdown]
# 6 % of the machines took away most of the speed of all: a step is as slow as its slowest worker. The more workers
# there are, the surer it is that one of them is slow, so this gets worse with size. Four backups give the speed back.
#
# ## Async, with and without a bound
#
# Async waits for nobody. The learning rate here is for *one* gradient, where sync applies the mean of 60: 60 pushes at
# 0.01 move the model as far as one step at 0.6. **What does the time look like now?**

# %%
free = simulate("async")
bounded = simulate("bounded by 4")

assert free > 3 * bounded  # a bound of 4 steps lets nobody run away from a machine that is always slow

# %% [markdown]
# The bounded run starts as quickly as async. As soon as all good machines are four steps ahead, they have the pace of
# the bad ones. A bound is for machines that are slow *now and then*, not for these.
#
# Now the question that matters: **which of them learns the most in the same time?**


# %% picture=simulated-64-workers
def number(worker):
    return int(worker.removeprefix("worker:"))


def loss_over_time(run, every=0.125):
    """Mean loss of the good machines' batches, by virtual time from the first push on."""
    rows = [row for row in run.history if number(row["worker"]) < 60]
    times = np.array([row["at"] for row in rows])
    losses = np.array([row["loss"] for row in rows])
    slots = ((times - run.history[0]["at"]) / every).astype(int)
    kept = [slot for slot in np.unique(slots) if slot * every < SECONDS]
    return [(slot + 0.5) * every for slot in kept], [losses[slots == slot].mean() for slot in kept]


figure, ax = plt.subplots(figsize=(8, 4))
for mode, (_, _, colour) in MODES.items():
    times, losses = loss_over_time(runs[mode])
    ax.plot(times, losses, color=colour, marker="o", markersize=4, label=mode)
ax.set(xlabel="virtual time (s)", ylabel="loss (cross-entropy, nats)", xlim=(0, SECONDS), ylim=(0, 2.5))
ax.set_title("64 simulated workers, 4 of them slow: who learns most?")
ax.legend()

final = {mode: loss_over_time(run)[1][-1] for mode, run in runs.items()}
assert final["async"] < final["sync"] and final["sync, 4 backups"] < final["sync"]

# %% [markdown]
# A point is the mean loss of what the 60 good machines saw; a bad one reports the loss of values that are long gone.
# Async and sync with backups are close together, and far ahead of plain sync. What async gains by using every machine,
# it pays with staleness.
#
# ## Staleness with 64 workers
#
# A gradient's staleness is about what all others push during one step of its own worker. With four workers that was two
# or three. **And with 64?**

# %%
staleness = {"good machines": [], "bad machines": []}
for row in runs["async"].history:
    good = number(row["worker"]) < 60
    staleness["good machines" if good else "bad machines"].append(row["staleness"])

figure, ax = plt.subplots()
bins = np.arange(0, max(staleness["bad machines"]) + 20, 10)
for colour, (name, values) in zip(("C0", "C1"), staleness.items(), strict=True):
    share = np.full(len(values), 100 / len(values))
    ax.hist(values, bins, weights=share, color=colour, label=f"{name}: median {np.median(values):.0f} updates")
ax.set(xlabel="staleness of a gradient (updates since its pull)", ylabel="gradients of these machines (%)")
ax.set_title("Async, 64 workers: most gradients are some 60 updates old")
ax.legend()

assert 45 < np.median(staleness["good machines"]) < 75
assert np.median(staleness["bad machines"]) > 300

# %% [markdown]
# This is why a learning rate that is fine on four workers may fail on 64: by the time a gradient arrives, the model has
# been moved sixty times. Better to find that out here. **What if we just took a rate three times as large?**

# %%
bold = dps.simulate(train, 0.03, 1.5, update=dps.Async(), **CLUSTER)

figure, ax = plt.subplots()
for run, label, colour in ((runs["async"], "rate 0.01", "C0"), (bold, "rate 0.03", "C4")):
    times, losses = loss_over_time(run)
    kept = np.array(times) < 1.5
    ax.plot(np.array(times)[kept], np.array(losses)[kept], color=colour, marker="o", markersize=4, label=label)
ax.set(xlabel="virtual time (s)", ylabel="loss (cross-entropy, nats)", xlim=(0, 1.5), ylim=(0, None))
ax.set_title("With 60 stale gradients on their way, a bolder rate overshoots")
ax.legend()

assert max(loss_over_time(bold)[1]) > 1.3 * max(loss_over_time(runs["async"])[1])

# %% [markdown]
# ## How many backup workers should you pay for?
#
# Now a cluster with no bad machines, but with bad *moments*, as shared machines have: at twelve random times some
# worker gets eight times slower for a second. **How many of the 64 should be backups?**

# %%
rng = np.random.default_rng(3)
moments = [
    dps.sim.Slow(f"worker:{rng.integers(WORKERS)}", at=float(rng.uniform(0, 2.5)), seconds=1.0, factor=8.0)
    for _ in range(12)
]
moody = {**CLUSTER, "compute": dps.sim.Compute(seconds=0.1, jitter=0.3), "faults": moments}

backups, per_step, dropped = [0, 1, 2, 4, 16], [], []
for count in backups:
    run = dps.simulate(train, 0.6, 1.0, update=dps.SyncReplicas(WORKERS - count, WORKERS), **moody)
    reached = {row["step"]: row["at"] for row in reversed(run.history)}  # when each step was first heard of
    per_step.append((reached[max(reached)] - reached[1]) / (max(reached) - 1))
    dropped.append(100 * np.mean([not row["accepted"] for row in run.history]))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
where = range(len(backups))
left.bar(where, [1000 * seconds for seconds in per_step], color="C2")
left.set(ylabel="virtual time of a step (ms)", title="Four nearly suffice,")
right.bar(where, dropped, color="C4")
right.set(ylabel="gradients dropped (%)", title="more are mostly waste")
for ax in (left, right):
    ax.set_xticks(where, backups)
    ax.set_xlabel("backup workers, of 64")
    ax.grid(axis="x", visible=False)

assert per_step[0] > 1.5 * per_step[2]  # two backups make a step much quicker
assert per_step[3] < 1.5 * per_step[-1]  # twelve more than four do not do that again
assert dropped[-1] > dropped[1]  # and throw more work away

# %% [markdown]
# ## How many parameter servers?
#
# All gradients of a ps come through its network card. Take a model of 1 MB, and cards of 1 Gbit/s. A worker pushes ten
# times a second. **How many workers does one ps bear? And do two bear twice as many?**

# %%
big = {f"layer {i}": np.zeros((128, 256), np.float32) for i in range(8)}  # 8 x 128 KB
slow_cards = dps.sim.Calibration.shipped().with_card(gigabits=1.0)


def push_only(server, pushes):
    with dps.Session(server, big, optimizer=dps.optim.SGD(0.1)) as session:
        session.push(big)
        began = server.runtime.now()
        for _ in range(pushes):
            session.push(big)
        return pushes / (server.runtime.now() - began)


def pushes_per_s(ps, workers):
    settings = {"compute": dps.sim.Compute(seconds=0.1, jitter=0.3), "calibration": slow_cards}
    return sum(dps.simulate(push_only, 6, ps=ps, workers=workers, **settings).results)


counts = [1, 4, 8, 16, 24, 32]
rates = {ps: [pushes_per_s(ps, workers) for workers in counts] for ps in (1, 2)}

figure, ax = plt.subplots()
full = slow_cards.card_bytes_per_s / 2**20  # pushes of 1 MB
for ps, colour in ((1, "C1"), (2, "C2")):
    ax.plot(counts, rates[ps], color=colour, marker="o", label=f"{ps} ps")
    ax.axhline(ps * full, color=colour, linewidth=1, linestyle="--")
ax.set(xlabel="workers", ylabel="pushes of 1 MB per s, all workers", xlim=(0, None), ylim=(0, None))
ax.set_title("More workers bring no more when the cards of the ps are full (dashed)")
ax.legend()

assert rates[1][1] > 3 * rates[1][0]  # four workers push nearly four times as much,
assert rates[1][-1] < 1.25 * rates[1][3]  # but 32 no more than 16 on one ps,
assert rates[2][-1] > 1.5 * rates[1][-1]  # and two ps bear more

# %% [markdown]
# ## Machines die
#
# A run of hours on 64 machines will lose some. We kill a worker after 1 s, and a *parameter server* after 1.8. The
# worker is gone for good. The ps is started again, and takes its values from the newest checkpoint; `CheckpointSaver`
# asks for one every five steps. Nobody's loop has a line for this.
#
# **What does each loss cost?** Each dot in the picture is a push; its height says which worker's.

# %%
faults = [dps.sim.Kill("worker:20", at=1.0), dps.sim.Kill("ps:1", at=1.8)]
hit = dps.simulate(train, 0.6, 4.0, 5, update=dps.SyncReplicas(56, 64), faults=faults, **CLUSTER)

for event in hit.trace:
    if event.what in ("kill", "restart", "epoch"):
        print(f"{event.time_s:5.2f} s  {event.process:9} {event.what} {event.detail.get('epoch', '')}")

# %%
figure, (ax, below) = plt.subplots(2, 1, figsize=(8, 5.2), sharex=True, height_ratios=(3, 2))
for accepted, colour, label in ((True, "C2", "accepted"), (False, "C1", "dropped: too late, or undone by the loss")):
    rows = [row for row in hit.history if row["accepted"] == accepted]
    ax.scatter([row["at"] for row in rows], [number(row["worker"]) for row in rows], s=5, color=colour, label=label)
ax.set(ylabel="worker", title="A dead worker is not missed; a dead ps costs its restart and a few steps")
ax.set_yticks(range(0, WORKERS, 20))
ax.set_ylim(-2, 82)
ax.legend(loc="upper right", ncols=2, markerscale=3)
below.step([row["at"] for row in hit.history], [row["step"] for row in hit.history], where="post", color="C2")
below.set(xlabel="virtual time (s)", ylabel="global step", xlim=(0, None), ylim=(0, None))
for fault in faults:
    for axes in (ax, below):
        axes.axvline(fault.at, color="0.35", linewidth=1, linestyle="--")
    below.text(fault.at, 1, f"{fault.task} killed ", transform=below.get_xaxis_transform(), ha="right", va="top")

steps = [row["step"] for row in hit.history]
lost = max(before - after for before, after in pairwise(steps))
after = [row for row in hit.history if row["at"] > 1.0]
print(f"{lost} steps were lost with the ps; the run ended at step {steps[-1]}")

assert not any(row["worker"] == "worker:20" for row in after if row["at"] > 1.3)  # it never came back
assert 0 <= lost <= 5 + 1  # no more than lies between two checkpoints
assert steps[-1] > max(row["step"] for row in hit.history if row["at"] < 1.8)  # and the run went on beyond it

# %% [markdown]
# The dead worker's row just ends: with eight backups the step does not miss it. The dead ps stops everybody until it is
# there again; then all go back to the last checkpoint, and on. What that costs is up to you: it is the restart, and
# what was done since the last checkpoint. Try other numbers.
#
# ## The same again
#
# A simulation is drawn from its seed: every delay, every jitter. So a run that went wrong can be had again, as often as
# you like, and looked at with a debugger. `run.trace` has everything that happened, in order.


# %%
def small(seed):
    few = {**CLUSTER, "workers": 8, "seed": seed, "compute": dps.sim.Compute(seconds=0.1, jitter=0.3)}
    return [(row["at"], row["worker"], row["loss"]) for row in dps.simulate(train, 0.01, 1.0, **few).history]


assert small(seed=1) == small(seed=1)  # to the last bit
assert small(seed=1) != small(seed=2)
print("the same seed gives the same run")

# %% [markdown]
# ## What the simulator can tell, and what it cannot
#
# It **can** tell what *waiting* does to your run: stragglers, update modes, backups, bounds, losses and restarts, and
# what staleness does to your learning rate, with your own loop and your own model.
#
# It **cannot** tell what you do not tell it:
#
# * A step takes what `Compute` says. Measure it once on a real machine.
# * Your machines may cost something else than the one that dps was calibrated on. Run `dps bench --calibrate mine.json`
#   on one of yours, and give `calibration="mine.json"`. Its network card is what you say: `--card` and `--latency`.
# * Memory that fills up, switches between the machines, and keys are not in it.
# * Your own clocks, threads and unseeded random numbers are outside of it.
#
# So take its *comparisons* before its seconds: which mode, how many backups, how many ps. Then [measure on real
# processes](async_vs_sync.ipynb).

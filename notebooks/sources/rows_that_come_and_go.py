"""Source of rows_that_come_and_go.ipynb, which build.py makes."""

# %% [markdown]
# # Rows that come and go
#
# A recommender's ids are not known ahead: every day has new advertisements, users and pages, and old ones are never
# seen again. A **keyed table** takes them as they come: `dps.Variable(keys="int64", dim=1, capacity=200_000, ...)` has
# a row for each key that was pushed. Two settings keep it small. With `admit=2` a key gets its row with its second
# push; with `expire_steps=60` it loses the row after 60 steps without a push.
#
# Here a small model trains on 12 days of a stream of clicks, with and without these settings. You will see how many
# rows come, how many go, and what that does to the predictions.

# %%
import logging
import sys
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np

import dps

sys.path.insert(0, "../examples")
from click_stream import DENSE, FEATURES, days

plt.style.use("dps.mplstyle")
logging.getLogger("dps").setLevel(logging.ERROR)
DAYS, EXAMPLES, BATCH = 12, 5000, 250
STEPS_A_DAY = EXAMPLES // BATCH
stream = list(islice(days(EXAMPLES), DAYS))

# %% [markdown]
# ## The stream
#
# It is that of `examples/click_stream.py`. An example has 13 numbers and 26 ids, one of each feature. A key has the
# feature's number in its upper bits, so that one table has the ids of all features. The generator draws ids by Zipf's
# law: the id in place r comes with a frequency of 1 / r^1.2. And every day one in twenty ids is gone for good, and a
# new one takes its place.
#
# **How often does an id come in a day?**

# %%
ids, counts = np.unique(stream[0].keys, return_counts=True)
once, examples_of_once = (counts == 1).mean(), (counts == 1).sum() / counts.sum()
values, how_many = np.unique(counts, return_counts=True)

figure, ax = plt.subplots()
ax.loglog(values[1:], how_many[1:], "o", ms=4, color="C0", label="more often")
ax.loglog(values[:1], how_many[:1], "o", ms=9, color="C1", label=f"once: {once:.0%} of the ids")
ax.set(xlabel="how often an id comes on the first day", ylabel="ids")
ax.set_title("Half of the ids come once, and a few come all the time")
ax.legend()

print(
    f"{len(ids):,} ids in {EXAMPLES:,} examples; those that come once are {examples_of_once:.1%} of what is looked up"
)
assert once > 0.4 and examples_of_once < 0.05

# %% [markdown]
# So about half of the rows of this day would be for ids of which the model can learn next to nothing.
#
# ## The model
#
# A number for each id, one for each of the 13 numbers, and a bias: logistic regression. A step looks up the rows of its
# batch and pushes their gradients. The batch is predicted before it is trained on, so each loss is one on new data.


# %%
def train(**settings):
    """Train on all days. For each day the log loss and the counters of the table, as `session.stats()` has them."""
    params = {
        "ids": dps.Variable(
            keys="int64", dim=1, capacity=200_000, init=dps.init.Zeros(), optimizer=dps.optim.Ftrl(0.3), **settings
        ),
        "numbers": np.zeros(DENSE, np.float32),
        "bias": np.full(1, -1, np.float32),
    }
    losses, counters = [], []
    with (
        dps.LocalCluster(ps=2, workers=1, processes=False) as local,
        local.session(params, optimizer=dps.optim.Adagrad(0.1)) as session,
    ):
        for clicks in stream:
            predicted = []
            for now in clicks.batches(BATCH):
                rows, rest = session.lookup("ids", now.keys), session.pull()
                p = 1 / (1 + np.exp(-rows.sum(axis=(1, 2)) - now.dense @ rest["numbers"] - rest["bias"]))
                off = (p - now.clicked) / np.float32(len(p))
                by_ids = np.repeat(off, FEATURES).reshape(rows.shape)
                by_rest = {"numbers": now.dense.T @ off, "bias": off.sum(keepdims=True)}
                session.push({"ids": dps.Rows(now.keys, by_ids), **by_rest})
                predicted.append(p)
            losses.append(clicks.loss(np.concatenate(predicted)))
            tables = [ps["tables"]["ids"] for ps in session.stats().values() if "tables" in ps]
            counters.append({name: sum(table[name] for table in tables) for name in tables[0]})
        last_read = session.lookup("ids", stream[0].keys)
    return {"loss": losses, "last_read": last_read} | {name: [c[name] for c in counters] for name in counters[0]}


SETTINGS = {
    "every id": {},
    "admit=2": {"admit": 2},
    "admit=2, expire_steps=60": {"admit": 2, "expire_steps": 3 * STEPS_A_DAY},
}
COLOURS = dict(zip(SETTINGS, ("C6", "C0", "C2"), strict=True))
runs = {name: train(**settings) for name, settings in SETTINGS.items()}
day = np.arange(1, DAYS + 1)

# %% [markdown]
# ## How large does the table become?
#
# **How many rows are there after each day?**

# %%
figure, ax = plt.subplots()
for name, run in runs.items():
    ax.plot(day, np.array(run["rows"]) / 1000, "o-", ms=4, color=COLOURS[name], label=name)
ax.set(xlabel="day", ylabel="rows (thousands)", ylim=(0, None))
ax.set_title("Only expiry ends the growth")
ax.legend()

every, admitted, expiring = (np.array(run["rows"]) for run in runs.values())
print(", ".join(f"{name}: {run['rows'][-1]:,} rows" for name, run in runs.items()))
assert (np.diff(every) > 0).all() and (np.diff(admitted) > 0).all()
assert admitted[-1] < 0.75 * every[-1]
assert abs(expiring[-1] / expiring[-5] - 1) < 0.05 and expiring[-1] < 0.45 * every[-1]

# %% [markdown]
# Admission slows the growth down, since ids that come once get no row. But an id that came twice keeps its row for
# ever, though it may be gone. Three days without a push are the end of it here: that is 60 steps, and the table soon
# has as many rows as there are ids worth having.
#
# **What comes and goes on a day?**

# %%
run = runs["admit=2, expire_steps=60"]
came, went = (np.diff(run[name], prepend=0) for name in ("admitted", "expired"))

figure, ax = plt.subplots()
ax.bar(day, came / 1000, color="C2", label="admitted")
ax.bar(day, -went / 1000, color="C1", label="expired")
ax.plot(day, (came - went) / 1000, "o-", ms=4, color="C6", label="together")
ax.axhline(0, color="0.4", linewidth=0.8)
ax.set(xlabel="day", ylabel="rows (thousands)")
ax.set_title("From day 7 on about as many rows go as come")
ax.legend()

assert np.array_equal(np.cumsum(came - went), run["rows"])
assert went[:2].sum() == 0 and abs(came[7:].sum() / went[7:].sum() - 1) < 0.05

# %% [markdown]
# `dps status` shows the same counters of a run: rows, admitted and expired ones, and the gradients that were dropped
# since their key had no row yet.
#
# ## What does it cost?
#
# The generator knows each click's probability, so we know the best log loss of each day. The model cannot reach it: it
# has no products of features, which these clicks depend on (`examples/clicks.py` has a deep part for them).
#
# **Do predictions suffer when rows come late and go early?**

# %%
best = np.array([clicks.loss(clicks.probability) for clicks in stream])
rate = np.array([clicks.loss(clicks.clicked.mean()) for clicks in stream])

figure, ax = plt.subplots()
ax.plot(day, rate - best, color="0.5", linestyle="--", label="the rate of clicks alone")
for name, run in runs.items():
    ax.plot(day, np.array(run["loss"]) - best, "o-", ms=4, color=COLOURS[name], label=name)
ax.set(xlabel="day", ylabel="log loss above the best possible", ylim=(0, None))
ax.set_title("Two fifths of the rows predict as well as all of them")
ax.legend(loc="lower right")

means = {name: float(np.mean((run["loss"] - best)[-7:])) for name, run in runs.items()}
print("above the best possible, last 7 days:", ", ".join(f"{name}: {mean:.4f}" for name, mean in means.items()))
assert max(means.values()) < min(means.values()) + 0.002
assert max(means.values()) < 0.5 * float(np.mean((rate - best)[-7:]))

# %% [markdown]
# ## What does an expired id read?
#
# What it read before its first push: its first value, here 0. A lookup neither makes a row nor keeps one alive. So we
# ask for all ids of the first day again, after the last one. **How many of those are forgotten?**

# %%
first_day, at = np.unique(stream[0].keys, return_index=True)
last_days = np.unique(np.concatenate([clicks.keys.ravel() for clicks in stream[-4:]]))
seen_lately = np.isin(first_day, last_days)
zero = {name: run["last_read"].ravel()[at] == 0 for name, run in runs.items()}

for name, forgotten in zero.items():
    print(f"{name:26} {forgotten.mean():4.0%} of all ids read 0, of those not seen for 4 days", end=" ")
    print(f"{forgotten[~seen_lately].mean():.0%}")
assert zero["every id"].mean() < 0.01
assert zero["admit=2, expire_steps=60"][~seen_lately].all()

# %% [markdown]
# Where to go from here:
#
# * What counts as a push, and what happens when a table is full:
#   [Tables with keys that nobody knows ahead](../docs/guide/placement.md#tables-with-keys-that-nobody-knows-ahead).
# * [`examples/clicks.py`](../examples/clicks.py) trains a wide-and-deep model on this stream with several workers.

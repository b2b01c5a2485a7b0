"""Source of sharding.ipynb, which build.py makes."""

# %% [markdown]
# # Sharding: which ps holds what?
#
# With several parameter servers, each holds a **shard** of the model. Every worker pulls from, and pushes to, all of
# them at once. So a step is over when the *fullest* ps is done: one that holds three times its share makes every step
# three times as long, however many others stand idle.
#
# The number to watch is **max over mean**: the bytes of the fullest ps over the mean. 1.0 is perfect. This notebook
# draws where variables go, under each policy, for a convolutional network and for a model with an embedding table.
#
# ![Six variables on two ps](../docs/pictures/placement.svg)

# %%
import logging
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np

import dps

plt.style.use("dps.mplstyle")
logging.getLogger("dps").setLevel(logging.ERROR)  # dps warns of uneven plans; here we draw them
MB = 1e6


# %% [markdown]
# ## A real set of shapes: ResNet-50
#
# 50 layers; 161 variables. A rule makes them all: four groups of blocks, each block three convolutions that narrow,
# look around, and widen again; every convolution is followed by the two vectors of a batch normalisation.


# %%
def resnet50():
    """Shape of each variable by name, in the order of creation."""
    shapes = {}

    def convolution(name, out, into, size):
        shapes[f"{name}/weights"] = (out, into, size, size)
        shapes[f"{name}/scale"] = shapes[f"{name}/shift"] = (out,)

    convolution("stem", 64, 3, 7)
    into = 64
    for group, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], start=1):
        for block in range(blocks):
            name = f"group{group}/block{block}"
            convolution(f"{name}/narrow", width, into, 1)
            convolution(f"{name}/look", width, width, 3)
            convolution(f"{name}/widen", 4 * width, width, 1)
            if block == 0:
                convolution(f"{name}/shortcut", 4 * width, into, 1)
            into = 4 * width
    shapes["classes/weights"], shapes["classes/bias"] = (1000, 2048), (1000,)
    return shapes


shapes = resnet50()
sizes = np.array([dps.placement.nbytes(name, shape, "float32") for name, shape in shapes.items()])
print(f"{len(shapes)} variables, {sizes.sum() / 4 / 1e6:.1f} million numbers, {sizes.sum() / MB:.0f} MB")

assert len(shapes) == 161
assert round(sizes.sum() / 4 / 1e6, 1) == 25.6

# %% [markdown]
# **Are these variables alike in size?**

# %%
largest_first = np.sort(sizes)[::-1]
top = largest_first[:20].sum() / sizes.sum()

figure, ax = plt.subplots()
ax.bar(range(20), largest_first[:20] / MB, width=1.0, color="C1", label=f"the largest 20: {top:.0%} of all bytes")
ax.bar(range(20, 161), largest_first[20:] / MB, width=1.0, color="C0", label="the other 141")
ax.set(xlabel="variables, the largest first", ylabel="size (MB)")
ax.set_title("A few variables hold nearly everything")
ax.legend()

assert top > 0.5

# %% [markdown]
# They are not: most are vectors of some kilobytes, a few are convolutions of up to 9 MB. A policy that counts
# *variables* is blind to that.
#
# ## Three policies
#
# A policy is a function from a variable's name, shape and dtype to a ps. dps asks it once for every variable, in the
# order in which they are created:
#
# * `RoundRobin`: the next ps, in turn. The default, as it was TensorFlow's.
# * `Random`: a ps drawn from the name. Nobody has to remember anything.
# * `Greedy`: the ps that holds the fewest bytes so far.
#
# **Which is the most even with four ps?**

# %%
POLICIES = {
    "round robin": dps.placement.RoundRobin,
    "random": lambda n: dps.placement.Random(n, seed=1),
    "greedy": dps.placement.Greedy,
}


def place(shapes, policy, n, partitioner=None):
    """Bytes of each piece on each of `n` ps: {ps: [(variable, bytes), ...]}. A piece is a variable or a part of one."""
    chosen, held = policy(n), {ps: [] for ps in range(n)}
    for name, shape in shapes.items():
        parts = partitioner(shape, "float32") if partitioner else 1
        for i, rows in enumerate(dps.partition.split_rows(shape[0], parts)):
            part, its_shape = (f"{name}/part_{i}", (rows, *shape[1:])) if parts > 1 else (name, shape)
            ps = chosen(part, its_shape, "float32")
            held[ps].append((name, dps.placement.nbytes(part, its_shape, "float32")))
    return held


def max_over_mean(held):
    totals = [sum(size for _, size in pieces) for pieces in held.values()]
    return max(totals) / np.mean(totals)


def draw(ax, held, title):
    """A bar for each ps, its pieces on top of each other; those under 0.2 % of all are one grey piece at the top."""
    total = sum(size for pieces in held.values() for _, size in pieces)
    bars = []
    for ps, pieces in held.items():
        all_sizes = sorted((size for _, size in pieces), reverse=True)
        large = [size for size in all_sizes if size > 0.002 * total]
        tops = np.cumsum([0, *large])
        bars += [(ps, size, bottom, "C5") for size, bottom in zip(large, tops[:-1], strict=True)]
        bars += [(ps, sum(all_sizes) - tops[-1], tops[-1], "0.7")]
    x, heights, bottoms, colours = zip(*bars, strict=True)
    ax.bar(x, np.array(heights) / MB, bottom=np.array(bottoms) / MB, color=colours, edgecolor="white", linewidth=0.5)
    ax.axhline(total / len(held) / MB, color="C1", linewidth=1.5, linestyle="--")
    ax.set_title(f"{title}\n{max_over_mean(held):.2f}", fontsize=11)
    ax.set_xticks(list(held))
    ax.set_xlabel("ps")
    ax.grid(axis="x", visible=False)


def headline(figure, text):
    figure.suptitle(text, x=0.02, ha="left", fontweight="bold")


# %%
figure, axes = plt.subplots(1, 3, sharey=True, figsize=(8, 3.6))
for ax, (name, policy) in zip(axes, POLICIES.items(), strict=True):
    held = place(shapes, policy, 4)
    draw(ax, held, name)
    print(f"{name:12} max over mean {max_over_mean(held):.2f}")
axes[0].set_ylabel("bytes held (MB)")
headline(figure, "ResNet-50 on 4 ps: max over mean (dashed: the mean)")

assert max_over_mean(place(shapes, POLICIES["greedy"], 4)) < 1.25  # dps warns above this
assert max_over_mean(place(shapes, POLICIES["greedy"], 4)) < max_over_mean(place(shapes, POLICIES["round robin"], 4))

# %% [markdown]
# Each blue piece of a bar is one variable, the grey one at the top all small ones together. Greedy is close to even
# with four ps. **Is that so with any number?**

# %%
counts = range(1, 17)
figure, ax = plt.subplots()
for marker, (name, policy) in zip("os^", POLICIES.items(), strict=True):
    ax.plot(counts, [max_over_mean(place(shapes, policy, n)) for n in counts], marker=marker, markersize=5, label=name)
limit = [max(1, sizes.max() / (sizes.sum() / n)) for n in counts]
ax.plot(counts, limit, color="0.5", linewidth=1.5, linestyle="--", label="the largest variable alone")
ax.set(xlabel="number of ps", ylabel="max over mean", ylim=(0.9, None))
ax.set_title("Round robin depends on luck, greedy on the largest variable")
ax.legend()

greedy_16 = max_over_mean(place(shapes, POLICIES["greedy"], 16))
print(f"greedy on 16 ps: {greedy_16:.2f}; no placement can be better than {limit[-1]:.2f}")
assert greedy_16 >= limit[-1] > 1.25

# %% [markdown]
# A variable that is larger than a ps's share cannot be placed evenly by any policy: from 11 ps on, the largest
# convolution alone is more than that. And round robin depends on luck: where the pattern *weights, scale, shift* meets
# a number of ps that is a multiple of three, all weights land on every third ps.
#
# ## Cut what is too large
#
# A **partitioner** cuts a variable by rows into parts, and each part is placed for itself. To your loop it is still one
# variable: you pull it whole and push its gradient whole. There are three rules:
#
# | partitioner | parts |
# | --- | --- |
# | `Fixed(n)` | n of each variable, small ones too |
# | `MinSize(min_bytes, max_shards)` | as many as leave at least about `min_bytes` each, at most `max_shards` |
# | `MaxSize(max_bytes)` | as few as keep each within `max_bytes` |
#
# **What do they do to ResNet-50 on 16 ps?**

# %%
PARTITIONERS = {
    "whole": None,
    "Fixed(16)": dps.partition.Fixed(16),
    "MinSize(256 KiB)": dps.partition.MinSize(256 << 10, max_shards=16),
    "MaxSize(1 MiB)": dps.partition.MaxSize(1 << 20),
}

figure, axes = plt.subplots(1, 4, sharey=True, figsize=(8, 3.6))
for ax, (name, partitioner) in zip(axes, PARTITIONERS.items(), strict=True):
    held = place(shapes, POLICIES["greedy"], 16, partitioner)
    draw(ax, held, name)
    ax.set_xticks([0, 5, 10, 15])
    pieces = sum(map(len, held.values()))
    print(f"greedy, {name:17} {pieces:5} pieces, max over mean {max_over_mean(held):.3f}")
axes[0].set_ylabel("bytes held (MB)")
headline(figure, "ResNet-50 on 16 ps, greedy: max over mean before and after cutting")

assert max_over_mean(place(shapes, POLICIES["greedy"], 16, PARTITIONERS["MaxSize(1 MiB)"])) < 1.10
assert max_over_mean(place(shapes, POLICIES["greedy"], 16, PARTITIONERS["MinSize(256 KiB)"])) < 1.05

# %% [markdown]
# All three are even now. They differ in the number of pieces: `Fixed` cuts every little vector into 16 as well, which
# is a lot of book-keeping for nothing. The other two leave the small ones alone.
#
# ## An embedding model: one variable is everything
#
# Recommenders and language models look rows up in a table: here a million rows of 64 numbers, and a small network on
# top. **What can a placement do, when one variable is 99 % of the model?**

# %%
embedding = {"table": (1_000_000, 64), "hidden/w": (256, 512), "hidden/b": (512,), "out/w": (512, 1), "out/b": (1,)}
cut = dps.partition.MinSize(max_shards=8)

before, after = place(embedding, POLICIES["greedy"], 8), place(embedding, POLICIES["greedy"], 8, cut)
figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(8, 3.4))
draw(left, before, "greedy, the table whole")
draw(right, after, "greedy, with MinSize(max_shards=8)")
left.set_ylabel("bytes held (MB)")
headline(figure, "An embedding model on 8 ps: max over mean, before and after")
print(f"max over mean {max_over_mean(before):.2f} -> {max_over_mean(after):.3f}")

assert max_over_mean(before) > 7.5  # seven of eight ps are there for nothing
assert max_over_mean(after) < 1.05

# %% [markdown]
# Nothing, unless the table is cut. Each ps then holds an eighth of the rows, and a lookup of some rows asks those ps
# that have them.
#
# ## Is it true?
#
# So far these were plans. Now the thing itself: a cluster of eight ps in this process, a table of a tenth of that size.
# The session gets the same `placement` and `partitioner`, and `stats` says what each ps really holds.

# %%
small = {name: (shape[0] // 10, *shape[1:]) if name == "table" else shape for name, shape in embedding.items()}


def nested(shapes):
    """Arrays in the nesting that the names say: hidden/w is params["hidden"]["w"]."""
    params = defaultdict(dict)
    for name, shape in shapes.items():
        head, _, tail = name.partition("/")
        array = np.ones(shape, np.float32)
        if tail:
            params[head][tail] = array
        else:
            params[head] = array
    return dict(params)


with dps.LocalCluster(ps=8, workers=1, processes=False) as local:
    policy = {"placement": dps.placement.Greedy(8), "partitioner": cut}
    with local.session(nested(small), optimizer=dps.optim.SGD(0.1), **policy) as session:
        held = [values["nbytes"] for name, values in session.stats().items() if name.startswith("ps")]
        whole = session.pull()["table"]
        rows = session.lookup("table", [0, 99_999])

planned = [sum(size for _, size in pieces) for pieces in place(small, POLICIES["greedy"], 8, cut).values()]
print("held by each ps:", held)
print("the plan was   :", planned)
print("the table comes back whole:", whole.shape, "and by rows:", rows.shape)

assert held == planned
assert whole.shape == small["table"] and rows.shape == (2, 64)

# %% [markdown]
# ## What it is worth
#
# A step waits for the fullest ps. In the [simulator](simulated_cluster.ipynb) we can give each link 1 Gbit/s, and let a
# worker push and pull 6 MB on four ps, placed in four ways. **Does the time of a step follow max over mean?**

# %%
layers = {}
for n, rows in enumerate([700, 300, 500, 100, 650, 250, 450, 50]):
    layers[f"layer{n}/weights"], layers[f"layer{n}/bias"] = (rows, 512), (512,)


def train(server, settings):
    params = nested(layers)
    with dps.Session(server, params, optimizer=dps.optim.SGD(0.0), **settings) as session:
        session.pull()
        begun = server.runtime.now()
        for _ in range(3):
            session.push(params)
            session.pull()
        return (server.runtime.now() - begun) / 3


ways = {
    "round robin": (POLICIES["round robin"], None),
    "random": (POLICIES["random"], None),
    "greedy": (POLICIES["greedy"], None),
    "greedy, MaxSize": (POLICIES["greedy"], dps.partition.MaxSize(1 << 18)),
}
evenness, step_ms = [], []
for policy, partitioner in ways.values():
    evenness.append(max_over_mean(place(layers, policy, 4, partitioner)))
    settings = {"placement": policy(4), "partitioner": partitioner}
    links = dps.sim.Network(bytes_per_s=125e6)  # nothing else takes time: no calibration
    run = dps.simulate(train, settings, ps=4, workers=1, network=links, calibration=None)
    step_ms.append(1000 * run.results[0])

figure, ax = plt.subplots()
slope = np.dot(step_ms, evenness) / np.dot(evenness, evenness)
ax.plot([0, 3.5], [0, 3.5 * slope], color="0.7", linewidth=1.5, linestyle="--")
for (name, _), x, y, marker in zip(ways.items(), evenness, step_ms, "osD^", strict=True):
    ax.plot(x, y, marker, markersize=9, label=f"{name}: {y:.0f} ms")
ax.set(xlabel="max over mean of the bytes per ps", ylabel="virtual time of a step (ms)", xlim=(0, 3.5), ylim=(0, None))
ax.set_title("A step takes as long as its fullest ps")
ax.legend(loc="lower right")

assert step_ms[0] > 1.5 * step_ms[2]  # round robin: all weights on two of four ps
assert max(step_ms) / min(step_ms) > 0.8 * max(evenness) / min(evenness)

# %% [markdown]
# The points lie on a line through zero: twice as uneven, twice as long. That is all that placement is about.
#
# ## What to take home
#
# * dps prints the plan when a session opens, and warns when max over mean is above 1.25.
# * `placement=dps.placement.Greedy(n)` mends it while no variable is larger than a share.
# * When one is, add `partitioner=dps.partition.MaxSize(bytes)` or `MinSize(max_shards=n)`. A checkpoint that was
#   written with one partitioning restores into any other.
# * For a table that is read by rows, look at `dps.Variable(..., sparse=True)` and `session.lookup`, as in
#   [`examples/sparse.py`](../examples/sparse.py).

"""Shared by every peer script: work items, timing, launch and JSON output.

Work items (all float32, loopback only):
  w1_*   dense pull      one variable of 4k/1m/64m/256m bytes, and 'resnet' (161 variables)
  w2_*   dense push      gradients for the same; PS applies SGD / Adagrad; worker waits for the ack
  w3_*   push+pull       resnet set, one async training step's communication
  w4_*   sparse          1,000,000 x 64 table, 8192 distinct Zipf(1.1) rows: pull, push with Adagrad;
                         fresh: 48 row lists in turn, more than dps remembers; repeated: 4 lists in turn
  w5_*   synchronous     2 workers: barrier + mean + apply + pull (resnet set, small set)
"""
import argparse, itertools, json, os, resource, socket, subprocess, sys, tempfile, time
import numpy as np

THREAD_ENV = {k: "1" for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                               "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}
SCALE = float(os.environ.get("PEER_TIME", "1"))     # shorter or longer sampling
LR = 0.01
ACC0 = 0.1
ROWS, DIM, NIDS = 1_000_000, 64, 8192


def resnet50_shapes():
    s = [(64, 3, 7, 7), (64,), (64,)]
    cin = 64
    for blocks, mid in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for b in range(blocks):
            out = mid * 4
            s += [(mid, cin, 1, 1), (mid,), (mid,), (mid, mid, 3, 3), (mid,), (mid,),
                  (out, mid, 1, 1), (out,), (out,)]
            if b == 0:
                s += [(out, cin, 1, 1), (out,), (out,)]
            cin = out
    s += [(1000, 2048), (1000,)]
    return s


SETS = {
    "4k": [(1024,)], "1m": [(262144,)], "64m": [(16777216,)], "256m": [(67108864,)],
    "resnet": resnet50_shapes(), "small": [(2560,)] * 10,
}
assert len(SETS["resnet"]) == 161
DENSE = os.environ.get("PEER_SIZES", "4k,1m,64m,256m,resnet").split(",")


def nelem(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def nbytes(name):
    return 4 * sum(nelem(s) for s in SETS[name])


def shard(name, n_ps):
    """Greedy by size. Returns, for each PS, the indices of its variables."""
    parts, load = [[] for _ in range(n_ps)], [0] * n_ps
    for i in sorted(range(len(SETS[name])), key=lambda i: -nelem(SETS[name][i])):
        p = load.index(min(load))
        parts[p].append(i)
        load[p] += nelem(SETS[name][i])
    return [sorted(p) for p in parts]


LISTS = {"fresh": 48, "repeated": 4}


def row_lists(count):
    """Lists of distinct rows: draws with replacement, of which the first of equal ones are kept."""
    cdf, found = np.cumsum(np.arange(1, ROWS + 1, dtype=np.float64) ** -1.1), []
    for seed in range(count):
        rng, drawn, first = np.random.default_rng(seed), np.empty(0, np.int64), []
        while len(first) < NIDS:
            more = np.searchsorted(cdf, rng.random(max(4 * NIDS, len(drawn))) * cdf[-1], side="right")
            drawn = np.concatenate([drawn, np.minimum(more, ROWS - 1)])
            first = np.unique(drawn, return_index=True)[1]
        found.append(drawn[np.sort(first)[:NIDS]])
    return found


def grads_for(name, value=1.0):
    return [np.full(s, value, np.float32) for s in SETS[name]]


def bench(fn, cap_s=2.0, min_n=5, max_n=3000, warmup=3):
    for _ in range(warmup):
        fn()
    out, t_end = [], time.perf_counter() + cap_s * SCALE
    while len(out) < min_n or (time.perf_counter() < t_end and len(out) < max_n):
        t = time.perf_counter()
        fn()
        out.append(time.perf_counter() - t)
    return out


def stat(samples, nb=None, rows=None, **extra):
    a = np.sort(np.asarray(samples))
    d = {"n": len(a), "min_s": float(a[0]), "median_s": float(np.median(a)), "max_s": float(a[-1]),
         "p99_s": float(a[min(len(a) - 1, int(len(a) * 0.99))])}
    if nb:
        d["GBps"] = nb / d["median_s"] / 1e9
    if rows:
        d["rows_per_s"] = rows / d["median_s"]
    d.update(extra)
    return d


def rss_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def free_ports(n):
    ss = [socket.socket() for _ in range(n)]
    for s in ss:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in ss]
    for s in ss:
        s.close()
    return ports


def parse(extra=None):
    p = argparse.ArgumentParser()
    p.add_argument("--ps", type=int, default=1)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--cases", default="w1,w2,w3,w4")
    p.add_argument("--variant", default="")
    p.add_argument("--role", default="launch")
    p.add_argument("--index", type=int, default=0)
    p.add_argument("--addr", default="")
    p.add_argument("--dir", default="")
    p.add_argument("--t0", type=float, default=0.0, help="wall time just before launch (startup case)")
    p.add_argument("--out", default="")
    if extra:
        extra(p)
    a = p.parse_args()
    a.t0 = a.t0 or time.time()
    os.environ.update(THREAD_ENV)
    return a


def spawn(a, role, index, env=None):
    cmd = [sys.executable, os.path.abspath(sys.argv[0]), "--role", role, "--index", str(index)]
    for k in ("ps", "workers", "cases", "variant", "addr", "dir", "t0"):
        cmd += ["--" + k, str(getattr(a, k))]
    return subprocess.Popen(cmd, env={**os.environ, **THREAD_ENV, **(env or {})})


def launch(a, env=None):
    """Start a.ps + a.workers processes of the calling script; merge the workers' results."""
    a.dir = tempfile.mkdtemp(prefix="peer-")
    ps = [spawn(a, "ps", i, env) for i in range(a.ps)]
    ws = [spawn(a, "worker", i, env) for i in range(a.workers)]
    rc = [p.wait() for p in ws]
    time.sleep(0.3)
    for p in ps:
        if p.poll() is None:
            p.terminate()
    for p in ps:
        try:
            p.wait(10)
        except subprocess.TimeoutExpired:
            p.kill()
    return collect(a, rc)


def collect(a, rc):
    parts = []
    for i in range(a.workers):
        f = os.path.join(a.dir, f"w{i}.json")
        parts.append(json.load(open(f)) if os.path.exists(f) else {})
    res = dict(parts[0])
    for k in list(res):          # rates of concurrent workers add up
        if isinstance(res[k], dict) and "steps_per_s" in res[k] and k.startswith("w3x_"):
            res[k]["steps_per_s"] = sum(p[k]["steps_per_s"] for p in parts if k in p)
    if any(rc):
        res["error_rc"] = rc
    return res


def save_worker(a, res):
    f = os.path.join(a.dir, f"w{a.index}.json")
    json.dump(res, open(f + ".t", "w"))
    os.replace(f + ".t", f)


def emit(a, system, versions, results):
    doc = {"system": system, "variant": a.variant, "ps": a.ps, "workers": a.workers,
           "versions": versions, "results": results}
    s = json.dumps(doc)
    if a.out:
        with open(a.out, "a") as f:
            f.write(s + "\n")
    else:
        print(s)


def run_cases(a, c, barrier=lambda name: None):
    """Drive one worker. c has: create(set), pull(set), push(set, opt, grads), push_pull(set, opt,
    grads), table_create(), table_pull(ids), table_push(ids, g), sync_step(set, grads), rss()."""
    cases, res = a.cases.split(","), {}
    chief = a.index == 0

    def ready(*names):
        if chief:
            for n in names:
                c.create(n)
        barrier("create" + "-".join(names))

    caps = {"4k": 2.0, "1m": 1.5, "64m": 3.0, "256m": 4.0, "resnet": 3.0}
    if "startup" in cases:
        ready("small")
        c.push_pull("small", "sgd", grads_for("small"))
        barrier("first-step")
        res["startup"] = {"seconds": time.time() - a.t0}
    for name in DENSE:
        if "w1" in cases or "w2" in cases:
            ready(name)
        if "w1" in cases:
            res["w1_" + name] = stat(bench(lambda: c.pull(name), caps[name]), nbytes(name))
        if "w2" in cases:
            g = grads_for(name)
            if name == "1m":     # correctness: 3 SGD pushes of ones move every value by -3 lr
                before = float(np.asarray(c.pull(name)[0]).ravel()[7])
                for _ in range(3):
                    c.push(name, "sgd", g)
                after = float(np.asarray(c.pull(name)[0]).ravel()[7])
                assert abs((before - after) - 3 * LR) < 1e-4, (before, after)
            for opt in ("sgd", "adagrad"):
                res[f"w2_{opt}_{name}"] = stat(bench(lambda: c.push(name, opt, g), caps[name]), nbytes(name))
    if "w3" in cases:
        ready("resnet")
        g = grads_for("resnet")
        for opt in ("sgd", "adagrad"):
            s = stat(bench(lambda: c.push_pull("resnet", opt, g), 5.0, min_n=8), 2 * nbytes("resnet"))
            res["w3_" + opt] = {**s, "steps_per_s": 1 / s["median_s"]}
    if "w3x" in cases:           # several workers at once, fixed time, rates add up
        ready("resnet")
        g = grads_for("resnet")
        for opt in ("sgd", "adagrad"):
            c.push_pull("resnet", opt, g)
            barrier("w3x" + opt)
            t, n = time.perf_counter(), 0
            while time.perf_counter() - t < 6 * SCALE:
                c.push_pull("resnet", opt, g)
                n += 1
            res["w3x_" + opt] = {"steps_per_s": n / (time.perf_counter() - t)}
            barrier("w3xe" + opt)
    if "w4" in cases:
        if chief:
            c.table_create()
        barrier("table")
        g, nb = np.ones((NIDS, DIM), np.float32), NIDS * DIM * 4
        for kind, count in LISTS.items():
            idss = itertools.cycle(row_lists(count))
            res[f"w4_{kind}_pull"] = stat(bench(lambda: c.table_pull(next(idss)), 2.0), nb, NIDS)
            res[f"w4_{kind}_push"] = stat(bench(lambda: c.table_push(next(idss), g), 2.0), nb, NIDS)
    if "w5" in cases and hasattr(c, "sync_step"):
        for name in ("small", "resnet"):
            ready(name)
            g = grads_for(name)
            n = 300 if name == "small" else 20
            s = []
            for i in range(n + 3):
                t = time.perf_counter()
                c.sync_step(name, g)
                if i >= 3:
                    s.append(time.perf_counter() - t)
            d = stat(s, 2 * nbytes(name))
            res["w5_" + name] = {**d, "steps_per_s": 1 / d["median_s"]}
            barrier("w5e" + name)
    res["rss_worker_mb"] = rss_mb()
    res["rss_ps_mb"] = c.rss()
    return res

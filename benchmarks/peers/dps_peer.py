"""dps on the work of the peers, in the same shape of figures; and, as variant `limits`, what the machine can do.

variant: ''        same host, two lines: copied (caller's own arrays both ways) and `inplace` (gradients(), view(), of
                   which every value is read)
         'socket'  shared memory off: what there is between machines; two lines: pushes until they are answered, which
                   large ones are before the pass that applies them, and `socket applied`: until the pass is over
         'limits'  memcpy, apply kernels in place, raw TCP with two sizes of buffers, raw pyzmq round trip and barrier
ps, chief and further workers are processes, as `dps bench` starts them. Runs from the tree: PYTHONPATH=ROOT.
"""
import contextlib
import copy

import common as C

a = C.parse()
import numpy as np  # noqa: E402

import dps  # noqa: E402
from dps.process import config
from dps.monitor.beside import workers  # noqa: E402
from dps.monitor.setting import Setting, kernel  # noqa: E402
from dps.transport import limits as L  # noqa: E402

config.keep_large_blocks()  # as in a worker that the launcher or dps.role started
CASES = a.cases.split(",")
TRANSPORT = "socket" if a.variant == "socket" else "tcp"
FORMS = {"": "", "socket applied": " applied"} if a.variant == "socket" else {"": "", "inplace": " in place"}
RESULTS = {variant: {} for variant in FORMS}
CAPS = {"4k": 2.0, "1m": 1.5, "64m": 3.0, "256m": 4.0, "resnet": 3.0}
PATIENCE_S = 120


def keep(key, call, cap, nb, **how):
    """Measure a work in all forms that it has; `call` takes what is behind the work's name for the form."""
    rows = how.pop("rows", None)
    for variant, form in FORMS.items():
        if (rows and form) or (form == " applied" and not key.startswith("w2")):
            continue
        d = C.stat(C.bench(call(form), cap, **how), nb, rows)
        RESULTS[variant][key] = d if rows or key[:2] in ("w1", "w2") else {**d, "steps_per_s": 1 / d["median_s"]}


@contextlib.contextmanager
def opened(setting):
    """A cluster with a session of the first worker, and the functions of its works."""
    with setting.cluster() as server, workers(server.target, setting) as others:
        with setting.session(server) as session:
            calls = setting.calls(session)
            for other in others:
                other.answers.get(timeout=PATIENCE_S)
            yield session, calls, others
            for other in others:
                other.orders.put("end")
            session.request_stop()


def dense():
    for name in dict.fromkeys([*C.DENSE, *(["resnet"] if "w3" in CASES else [])]):
        asked = {"w1", "w2"} & set(CASES) if name in C.DENSE else set()
        for opt in ("sgd", "adagrad"):
            if not (asked & ({"w1", "w2"} if opt == "sgd" else {"w2"}) or ("w3" in CASES and name == "resnet")):
                continue
            with opened(Setting("dense", TRANSPORT, name, opt, a.ps)) as (session, calls, _):
                if opt == "sgd":
                    check(session, calls)
                if "w1" in asked and opt == "sgd":
                    keep("w1_" + name, lambda form: calls["pull" + form], CAPS[name], C.nbytes(name))
                if "w2" in asked:
                    keep(f"w2_{opt}_{name}", lambda form: calls["push" + form], CAPS[name], C.nbytes(name))
                if "w3" in CASES and name == "resnet":
                    keep("w3_" + opt, lambda form: calls["step" + form], 5.0, 2 * C.nbytes(name), min_n=8)


def check(session, calls):
    """3 SGD pushes of ones, of either form, move every value by -3 lr."""
    for form in FORMS.values():
        before = session.pull()["v0"].ravel()[7]
        for _ in range(3):
            calls["push" + form]()
        after = session.pull()["v0"].ravel()[7]
        assert abs((before - after) - 3 * C.LR) < 1e-4, (before, after)


def sparse():
    with opened(Setting("sparse", TRANSPORT, "table", "adagrad", a.ps)) as (_, calls, _):
        for kind, ending in (("fresh", ""), ("repeated", " repeated")):
            for what in ("pull", "push"):
                work = calls[f"sparse {what}{ending}"]
                keep(f"w4_{kind}_{what}", lambda form: work, 2.0, C.NIDS * C.DIM * 4, rows=C.NIDS)


def sync():
    for name, count in (("small", 300), ("resnet", 20)):
        with opened(Setting("sync", TRANSPORT, name, "sgd", a.ps, a.workers)) as (_, calls, others):
            for variant, form in FORMS.items():
                for other in others:
                    other.begin("sync" + form)
                d = C.stat(C.bench(calls["sync" + form], 0, count, warmup=3), 2 * C.nbytes(name))
                RESULTS[variant]["w5_" + name] = {**d, "steps_per_s": 1 / d["median_s"]}


def limits():
    found = RESULTS[""]
    found["memcpy_256m"] = C.stat(C.bench(L.memcpy(256 << 20), 2.0), 256 << 20)
    for opt in ("sgd", "adagrad"):
        found[f"kernel_{opt}_resnet"] = C.stat(C.bench(kernel(opt, C.nbytes("resnet")), 2.0), C.nbytes("resnet"))
    one_way, resnet = 256 << 20, C.nbytes("resnet")
    for key, limit, nb in (
        *((f"tcp_256m_buf{b >> 10}k", L.raw_tcp(one_way, 1, b), one_way) for b in L.BUFFERS),
        *((f"tcp_pushpull_resnet_buf{b >> 10}k", L.raw_tcp(resnet, resnet, b), 2 * resnet) for b in L.BUFFERS),
        ("zmq_4k", L.raw_zmq(4096), 4096),
        ("zmq_barrier_small", L.raw_barrier(C.nbytes("small")), 2 * C.nbytes("small")),
    ):
        with limit as call:
            found[key] = C.stat(C.bench(call, 2.0), nb)


def main():
    if a.variant == "limits":
        limits()
        return C.emit(a, "limits", {"numpy": np.__version__}, RESULTS[""])
    dense()
    if "w4" in CASES:
        sparse()
    if "w5" in CASES:
        sync()
    for variant, results in RESULTS.items():
        args = copy.copy(a)
        args.variant = variant or a.variant
        C.emit(args, "dps", {"dps": dps.__version__}, results)


if __name__ == "__main__":
    main()


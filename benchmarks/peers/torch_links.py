"""The processes of a parameter server of torch RPC (TensorPipe over TCP) for benchmarks/scale_out.py: ps and workers.

    torch_links.py {"job": "worker", "task": 0, "rank": 4, "first": "10.78.0.2", "work": "step", "update": "async", ...}

Each ps has an equal part of the variables, or of the rows of the table; SGD. A synchronous push is answered when all
workers have made theirs. A worker takes orders as those of scale_out_sides.py do.
"""

import json
import os
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = "cable"
import torch  # noqa: E402
import torch.distributed.rpc as rpc  # noqa: E402

from benchmarks.scale_out_sides import DIM, TABLE_ROWS, VARIABLES, answer_orders, row_lists  # noqa: E402

ABOUT = json.loads(sys.argv[1])
LR = 0.01
LOCK = threading.Lock()
VALUES, WAITING = [], []
torch.set_num_threads(1)


def make_values(shapes):
    with LOCK:
        if not VALUES:
            VALUES.extend(torch.zeros(shape) for shape in shapes)


def pull():
    return VALUES


def look_up(numbers):
    return VALUES[0].index_select(0, numbers)


def apply(gradients):
    for value, gradient in zip(VALUES, gradients, strict=True):
        value.add_(gradient, alpha=-LR)


def apply_rows(numbers, gradients):
    VALUES[0].index_add_(0, numbers, gradients, alpha=-LR)


@rpc.functions.async_execution
def push(update, reads, function, *gradients):
    """Apply a gradient; in sync each worker's when all are here. Returns a future of the values, or of nothing."""
    with LOCK:
        future = torch.futures.Future()
        WAITING.append((future, reads, function, gradients))
        if update == "async" or len(WAITING) == ABOUT["workers"]:
            made, WAITING[:] = list(WAITING), []
            for _, _, each, its in made:
                each(*its)
            for other, wants, _, _ in made:
                other.set_result(VALUES if wants else None)
    return future


def train():
    update, count, work = ABOUT["update"], ABOUT["ps"], ABOUT["work"]
    ps = [f"ps{task}" for task in range(count)]

    def all_of(function, *arguments):
        """Call a function on every ps, each with its own arguments, and wait for all."""
        return [
            future.wait()
            for future in [
                rpc.rpc_async(name, function, args=[each[task] for each in arguments]) for task, name in enumerate(ps)
            ]
        ]

    if work == "rows":
        own_rows = -(-TABLE_ROWS // count)
        shapes = [[(own_rows, DIM)]] * count
        lists = row_lists(ABOUT["task"], ABOUT["rows"])
        values = torch.ones(ABOUT["rows"], DIM)
    else:
        size = ABOUT["nbytes"] // 4 // VARIABLES
        shapes = [[(size,)] * len(range(task, VARIABLES, count)) for task in range(count)]
        gradients = [[torch.full(shape, 0.1) for shape in own] for own in shapes]
    all_of(make_values, shapes)

    def rows():
        chosen = torch.from_numpy(next(lists))
        places = [torch.nonzero(chosen // own_rows == task).flatten() for task in range(count)]
        numbers = [chosen[place] - task * own_rows for task, place in enumerate(places)]
        found = torch.empty(len(chosen), DIM)
        for place, part in zip(places, all_of(look_up, numbers), strict=True):
            found[place] = part
        all_of(
            push, [update] * count, [False] * count, [apply_rows] * count, numbers, [values[place] for place in places]
        )

    works = {
        "rows": rows,
        "pull": lambda: all_of(pull),
        "push": lambda: all_of(push, [update] * count, [False] * count, [apply] * count, gradients),
        "step": lambda: all_of(push, [update] * count, [True] * count, [apply] * count, gradients),
    }
    answer_orders(works[work])


def main():
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{ABOUT['first']}:2230",
        num_worker_threads=16,
        rpc_timeout=1200,
        _transports=["uv"],
        _channels=["basic"],
    )
    rpc.init_rpc(
        f"{ABOUT['job']}{ABOUT['task']}",
        rank=ABOUT["rank"],
        world_size=ABOUT["ps"] + ABOUT["workers"],
        rpc_backend_options=options,
    )
    if ABOUT["job"] == "worker":
        train()
    rpc.shutdown()


if __name__ == "__main__":
    main()

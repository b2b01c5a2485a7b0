"""A process of PyTorch for benchmarks/uneven.py: DistributedDataParallel over gloo, or a parameter server of torch RPC.

    torch_uneven.py {"system": "ddp", "task": 0, "rank": 0, "size": 4, "first": "10.78.0.2", "rate": 0.2, ...}

The parameter server applies each gradient as it comes and answers with the values, in one call.
"""

import json
import os
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = "cable"
import mnist  # noqa: E402  # the example
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.rpc as rpc  # noqa: E402

from benchmarks.uneven_sides import Training  # noqa: E402

ABOUT = json.loads(sys.argv[1])
LOCK = threading.Lock()
torch.set_num_threads(1)


def network():
    """The network of the example, with its first values."""
    params = mnist.initial_params()
    layers = [torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)]
    for layer, name in ((layers[0], "hidden"), (layers[2], "out")):
        layer.weight.data = torch.from_numpy(params[name]["w"].T.copy())
        layer.bias.data = torch.from_numpy(params[name]["b"])
    return torch.nn.Sequential(*layers)


def values_of(model):
    """The values as the example nests them."""
    w1, b1, w2, b2 = (parameter.detach().numpy() for parameter in model.parameters())
    return {"hidden": {"w": w1.T, "b": b1}, "out": {"w": w2.T, "b": b2}}


def loss_of(model, images, labels):
    return torch.nn.functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels))


def all_reduce():
    dist.init_process_group(
        "gloo", init_method=f"tcp://{ABOUT['first']}:2231", rank=ABOUT["rank"], world_size=ABOUT["size"]
    )
    model, training = network(), Training(ABOUT)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), ABOUT["rate"])
    for images, labels in training.batches():
        optimizer.zero_grad()
        loss_of(parallel, images, labels).backward()
        optimizer.step()
        if training.has_reached(values_of(model)):
            break


KEPT = []


def push(gradients):
    """On the ps: apply gradients, if there are any, and return the values."""
    with LOCK:
        if not KEPT:
            KEPT.extend(parameter.detach() for parameter in network().parameters())
        for value, gradient in zip(KEPT, gradients, strict=False):
            value.add_(gradient, alpha=-ABOUT["rate"])
        return [value.clone() for value in KEPT]


def parameter_server():
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{ABOUT['first']}:2232", num_worker_threads=16, rpc_timeout=1200,
        _transports=["uv"], _channels=["basic"],
    )  # fmt: skip
    name = "ps" if ABOUT["rank"] == 0 else f"worker{ABOUT['task']}"
    rpc.init_rpc(name, rank=ABOUT["rank"], world_size=ABOUT["size"], rpc_backend_options=options)
    if ABOUT["rank"]:
        model, training = network(), Training(ABOUT)
        for images, labels in training.batches():
            model.zero_grad()
            loss_of(model, images, labels).backward()
            values = rpc.rpc_sync("ps", push, args=([parameter.grad for parameter in model.parameters()],))
            for parameter, value in zip(model.parameters(), values, strict=True):
                parameter.data.copy_(value)
            if training.has_reached(values_of(model)):
                break
    rpc.shutdown()


if __name__ == "__main__":
    {"ddp": all_reduce, "rpc": parameter_server}[ABOUT["system"]]()

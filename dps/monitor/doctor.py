"""What this machine and environment have, for people who ask why something is slow or does not start."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource

from dps.config import THREADS
from dps.errors import ConfigError, DpsError
from dps.transport.current import runtime

PACKAGES = ("dps", "numpy", "numba", "pyzmq", "msgpack", "safetensors")
EXTRAS = {
    "greenlet": "sim", "cloudpickle": "notebook", "matplotlib": "notebook", "pyyaml": "yaml", "numba-cuda": "gpu",
    "tensorboardX": "tensorboard", "torch": "torch",
}  # fmt: skip
"""Packages that some uses need, and the extra that brings each."""


def report() -> list[str]:
    """Lines of a report; does not change anything."""
    versions = {name: _version(name) for name in (*PACKAGES, *EXTRAS)}
    missing = [f"{name} (pip install 'dps[{extra}]')" for name, extra in EXTRAS.items() if versions[name] is None]
    lines = [
        f"python      {platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "packages    " + ", ".join(f"{n} {v}" for n, v in versions.items() if v),
        f"not there   {', '.join(missing) or 'no extra is missing'}",
        "threads     " + ", ".join(f"{n}={os.environ.get(n, 'unset')}" for n in THREADS),
        f"open files  {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} allowed; a node needs about 3 for each peer",
        f"memory      {_shared()}",
        f"loopback    {_loopback()}",
        f"gpu         {_gpu()}",
    ]
    if not all(name in os.environ for name in THREADS):
        lines.append(
            "advice      set OMP_NUM_THREADS=1 and friends when several workers share this machine (dps launch does)"
        )
    return lines


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _shared() -> str:
    """Whether processes of this machine can read each other's values in place."""
    try:
        memory = runtime().share(1 << 20)
        runtime().attach(memory.name)
    except DpsError as error:
        return f"is not shared between processes, sockets are used: {error}"
    return "values and gradients are shared between processes of this machine and user"


def _gpu() -> str:
    """The GPUs that this process can use, or why there are none."""
    try:
        from dps.kernels import device
    except ConfigError as error:
        return f"not usable: {error}"
    problem = device.is_available()
    if problem:
        return f"not usable: {problem}; {device.ADVICE}"
    return "; ".join(f"GPU:{index} {device.describe(index)}" for index in range(device.gpus()))


def _loopback() -> str:
    try:
        endpoint = runtime().endpoint("127.0.0.1:0")
    except DpsError as error:
        return f"cannot listen: {error}"
    endpoint.close(0)
    return "a node can listen on 127.0.0.1"

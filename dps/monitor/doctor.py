"""`dps doctor`: checks this machine and environment, for people who ask why dps is slow or does not start."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from dataclasses import dataclass

from dps.errors import ConfigError, DpsError
from dps.monitor.machine import (
    affinity,
    cgroup_cpus,
    kernel_cache,
    malloc,
    read_setting,
    shared_folder,
    shmem_huge_pages,
)
from dps.process.config import THREADS
from dps.transport.current import runtime

PACKAGES = ("dps", "numpy", "numba", "pyzmq", "msgpack", "safetensors")
EXTRAS = {
    "greenlet": "sim", "cloudpickle": "notebook", "matplotlib": "notebook", "pyyaml": "yaml", "numba-cuda": "gpu",
    "tensorboardX": "tensorboard", "torch": "torch",
}  # fmt: skip
"""Packages that some uses need, and the extra that installs each."""
OPEN_FILES = 4096
"""Enough for some hundred peers of a node."""
SOCKET_BUFFER = 4 << 20
DATAGRAMS = 512


@dataclass(frozen=True)
class Finding:
    """One fact. `advice` says what would be better and why, or is ""; `command` does it. `wrong`: nothing works so."""

    name: str
    found: str
    advice: str = ""
    command: str = ""
    wrong: bool = False

    def __str__(self) -> str:
        do = f": {self.command}" if self.command else ""
        found = f"{self.name:14} {'wrong: ' if self.wrong else ''}{self.found}"
        return found + (f"\n{'':14} advice: {self.advice}{do}" if self.advice else "")


def report() -> list[str]:
    """The lines of a report. Changes nothing."""
    return [str(finding) for finding in findings()]


def findings() -> list[Finding]:
    """All findings, in the order of a report. Changes nothing."""
    return [*_software(), *_processors(), *_memory(), *_network(), Finding("gpu", _gpu())]


def _software() -> list[Finding]:
    versions = {name: _version(name) for name in (*PACKAGES, *EXTRAS)}
    missing = [f"{name} (pip install 'dps[{extra}]')" for name, extra in EXTRAS.items() if versions[name] is None]
    return [
        Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Finding("packages", ", ".join(f"{n} {v}" for n, v in versions.items() if v)),
        Finding("not there", ", ".join(missing) or "no extra is missing"),
        _kernels(),
    ]


def _kernels() -> Finding:
    folder, count = kernel_cache()
    if count:
        return Finding("kernels", f"{count} compiled kernels are kept in {folder}")
    if folder is None:
        why = "each ps compiles its kernels at its start, half a second each; name a folder that can be written"
        return Finding("kernels", "no folder to keep them in", why, "export NUMBA_CACHE_DIR=~/.cache/numba")
    why = "the first run compiles them, half a second each"
    return Finding("kernels", f"none are compiled in {folder}", why, "dps warm")


def _processors() -> list[Finding]:
    made = []
    allowed, count = affinity()
    limit = cgroup_cpus()
    cores = f"{os.cpu_count()} of this machine, {count} for this process ({allowed})"
    if limit is not None and limit < count:
        advice = f"more processes than {limit:g} that compute at once wait for each other; start so many ps and workers"
        made.append(Finding("processors", f"{cores}, {limit:g} by the cgroup's limit", advice))
    else:
        made.append(Finding("processors", f"{cores}, no cgroup limit below that"))
    threads = ", ".join(f"{n}={os.environ.get(n, 'unset')}" for n in THREADS)
    unset = [name for name in THREADS if name not in os.environ]
    why = "one thread for each of several workers on one machine (dps launch and LocalCluster set it)"
    if unset:
        made.append(Finding("threads", threads, why, "export " + " ".join(f"{n}=1" for n in unset)))
    else:
        made.append(Finding("threads", threads))
    return made


def _memory() -> list[Finding]:
    found, advice, command = malloc()
    made = [Finding("malloc", found, advice, command), Finding("memory", _shared())]
    size, free = shared_folder()
    made.append(Finding("/dev/shm", f"{free >> 20} of {size >> 20} MB free; dps shares memory by memfd and leaves it"))
    pages = shmem_huge_pages()
    why = "values that processes share then lie on huge pages: fewer faults and less address translation"
    command = "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    never = pages in ("never", "deny")
    made.append(Finding("shmem pages", f"huge pages: {pages}", why if never else "", command if never else ""))
    return made


def _network() -> list[Finding]:
    made = [Finding("loopback", _loopback())]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} allowed; a node needs about 3 for each peer"
    few = 0 <= soft < OPEN_FILES
    why = "a chief or ps of a large cluster runs out of them"
    made.append(Finding("open files", text, *((why, f"ulimit -n {max(hard, soft)}") if few and hard > soft else ())))
    for name in ("net.core.rmem_max", "net.core.wmem_max"):
        why = "larger socket buffers keep a connection beyond this machine full"
        made.append(_kernel_setting(name, SOCKET_BUFFER, "bytes of a socket's buffer at most", why))
    why = "with more than ten workers on this machine small messages wait for each other"
    made.append(_kernel_setting("net.unix.max_dgram_qlen", DATAGRAMS, "small messages may wait for a process", why))
    return made


def _kernel_setting(name: str, wanted: int, meaning: str, why: str) -> Finding:
    value = read_setting(name)
    label = name.rpartition(".")[2]
    if value is None:
        return Finding(label, f"{name} cannot be read here")
    text = f"{name} = {value}: {meaning}"
    return Finding(label, text, *((why, f"sudo sysctl -w {name}={wanted}") if value < wanted else ()))


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
    return "values and gradients are shared between processes of this machine and user (memfd)"


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

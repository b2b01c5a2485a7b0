"""Reads what the system reports about this machine: processors, memory, kernel settings, numba's cache."""

from __future__ import annotations

import os
from pathlib import Path

from dps.errors import ConfigError
from dps.process import config

CGROUP = Path("/sys/fs/cgroup")
PROC_SYS = Path("/proc/sys")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def affinity() -> tuple[str, int]:
    """The processors that this process may use, as "0,2-3", and how many."""
    try:
        cpus = config.allowed_cpus()
    except ConfigError:
        return "which ones cannot be told", os.cpu_count() or 1
    return config.format_cpus(cpus), len(cpus)


def cgroup_cpus(root: Path = CGROUP) -> float | None:
    """The cgroup's CPU limit in processors, version 2 or 1; None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        given = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if given <= 0 else given / int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def read_setting(name: str, root: Path = PROC_SYS) -> int | None:
    """A kernel setting by its sysctl name; None if it cannot be read."""
    try:
        return int((root / name.replace(".", "/")).read_text())
    except (OSError, ValueError):
        return None


def shmem_huge_pages(file: Path = HUGE_PAGES) -> str:
    """The mode of huge pages for shared memory: "never", "advise", "always" and so on."""
    try:
        return file.read_text().partition("[")[2].partition("]")[0] or "unknown"
    except OSError:
        return "unknown"


def shared_folder() -> tuple[int, int]:
    """Size and free bytes of /dev/shm; zeros if it does not exist."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def malloc() -> tuple[str, str, str]:
    """How malloc treats large blocks here, what would be better and why, and the command."""
    if config.malloc_is_chosen():
        names = [n for n in sorted(os.environ) if n.startswith("MALLOC_") or n == "GLIBC_TUNABLES"]
        values = ", ".join(f"{n}={os.environ[n]}" for n in names)
        return f"the environment sets it, and dps leaves it so: {values}", "", ""
    if config.blocks_kept_by_environment():
        return "large blocks are kept, by the environment", "", ""
    if not config.is_glibc():
        return "not glibc's; dps leaves it as it is", "", ""
    advice = (
        "a program that is started by itself keeps its large blocks, in place of new pages for every message, "
        "and need not copy what it pulls over sockets"
    )
    command = "export " + " ".join(f"{name}={value}" for name, value in config.MALLOC.items())
    return "large blocks are kept in every task of dps.role, dps launch and LocalCluster", advice, command


def kernel_cache() -> tuple[str | None, int]:
    """The folder for dps's compiled kernels, and how many it holds. Does not import numba."""
    source = Path(__file__).parent.parent / "kernels"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folders = [Path(chosen).expanduser()] if chosen else []
    folders += [source / "__pycache__", Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "numba"]
    for folder in folders:
        if count := len(list(folder.rglob("*.nbi"))):
            return str(folder), count
    return next((str(f) for f in folders if _can_be_written(f)), None), 0


def _can_be_written(folder: Path) -> bool:
    """Whether files can be made in a folder, or the folder itself."""
    there = next((f for f in (folder, *folder.parents) if f.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK)

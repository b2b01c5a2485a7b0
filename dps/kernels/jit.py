"""The one decorator that compiles kernels, so that all use the same flags. The bits of results depend on these."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import njit
from numba.core.runtime import rtsys  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., object])

_kernels: list[Any] = []

LIGHT = (0, 61) <= tuple(map(int, numba.__version__.split(".")[:2])) < (0, 69)
"""Whether kernels are loaded with numba's runtime alone. numba's cache first initialises the compiler, which takes a
quarter of a second for each process. Cached code does not need it, and numba initialises it before it compiles. Only
for versions that were tested: cached code that lacks something crashes the process."""


BEYOND = 10_000
"""More lines than any file here has."""


def define(text: str, file: str, space: dict[str, Any]) -> None:
    """Define in `space` the functions of a text, for numba as those of `file`.

    Their lines come after those of the file. numba asks for a function's source, and Python 3.13.0 cannot read lines
    that begin in the middle of something else; those beyond the end are none."""
    exec(compile(BEYOND * "\n" + text, file, "exec"), space)


@functools.cache
def sources() -> str:
    """A digest of the sources of all kernels."""
    seen = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        seen.update(path.name.encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()


def compiled(function: F, nogil: bool = True, rule: str | None = "") -> F:
    """`function` compiled by numba at its first call with each combination of dtypes, and cached on disk.

    - No fastmath: nothing is contracted or reassociated, so an element's bits do not depend on how its run was cut.
    - `error_model="numpy"`: x / 0 is inf or nan; numba's default check of each division stops vectorisation.
    - `nogil`: other Python threads run meanwhile; False for kernels that read Python objects.

    Compiled versions are valid until any kernel's source changes: kernels call each other across files, which numba's
    own check of one file's time and size misses. `rule` is a digest of the file of a rule outside of this folder that
    the kernel is made from; with None each process compiles. They are stored in NUMBA_CACHE_DIR, else beside the
    source, else in the user's cache folder; several processes may write at once. If none is writable, each process
    compiles.

    With Intel's SVML installed beside numba, powers (only `ftrl` with another power than -0.5) may round differently
    at the ends of a run; NUMBA_DISABLE_INTEL_SVML=1 in the environment turns that off.
    """
    made = njit(nogil=nogil, error_model="numpy")(function)
    try:
        if rule is not None:
            made.enable_caching()
    except RuntimeError:  # numba found no folder to write to
        pass
    cache: Any = getattr(made, "_cache", None)
    kept: Any = getattr(cache, "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = sources() + (rule or "")
    if LIGHT and hasattr(cache, "_load_overload"):  # numba's object for "no cache" lacks it
        cache.load_overload = functools.partial(_load, cache)
    _kernels.append(made)
    return cast(F, made)


def _load(cache: Any, signature: Any, context: Any) -> Any:
    """A version from the cache, or None; like numba's `load_overload`, without initialising the compiler."""
    rtsys.initialize(context)
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, context)


@dataclass(frozen=True)
class CompileCounts:
    """Kernel versions in this process: their number, how many came from the cache, and the cache's folders."""

    versions: int
    from_cache: int
    folders: tuple[str, ...]


def compiled_here() -> CompileCounts:
    """The kernels that were compiled or loaded in this process until now."""
    hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in _kernels)
    folders = {kernel.stats.cache_path for kernel in _kernels} - {None}
    return CompileCounts(sum(len(kernel.signatures) for kernel in _kernels), hits, tuple(sorted(folders)))

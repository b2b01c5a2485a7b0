"""What all tests share: an environment that names no cluster, and property tests that a slow machine does not fail."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import hypothesis
import pytest

sys.dont_write_bytecode = False  # or each of the many processes that tests start compiles all that it loads of dps
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: reproducible sums, and tests leave the other cores alone
if os.environ.get("DPS_TEST_GPU") != "1":  # then the tests of CUDA kernels run on the GPU that is there
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before numba: else in its simulator; kernels on CPU are what they were

# Compiling a kernel inside a property test is slow once; CI tries the same examples every time.
hypothesis.settings.register_profile("dps", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis.settings.load_profile("dps")

os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="dps-test-state-")  # runs that tests start are kept there
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

CLUSTER_VARIABLES = ("TF_CONFIG", "DPS_", "SLURM_")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the combinations of a test that is `thinned`, leave as few to CI as have each value of each parameter."""
    thinned = [item for item in items if isinstance(item, pytest.Function) and item.get_closest_marker("thinned")]
    found = [item for item in thinned if not item.get_closest_marker("nightly")]
    for _, group in groupby(found, lambda item: (item.parent, item.originalname)):
        left = {item: {(name, id(value)) for name, value in item.callspec.params.items()} for item in group}
        uses: Counter[tuple[str, int]] = Counter()  # how often each value is in those that are chosen
        while any(value not in uses for values in left.values() for value in values):
            chosen = min(left, key=lambda item: sorted(uses[value] for value in left[item]))
            uses.update(left.pop(chosen))
        for item in left:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(autouse=True)
def no_cluster_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test run from within a Slurm job or a dps task is not that task, and no test leaves a cluster to the next one:
    commands that tests call, such as `dps status --keys DIR`, set variables of this process."""
    for name in list(os.environ):
        if name.startswith(CLUSTER_VARIABLES):
            monkeypatch.delenv(name)
    yield
    for name in list(os.environ):
        if name.startswith(CLUSTER_VARIABLES):
            del os.environ[name]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can enter, as those of `tmp_path` are not."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)

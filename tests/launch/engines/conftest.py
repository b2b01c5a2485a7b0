"""Daemons of the engines, started once for all tests, and users of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.engines.programs import bits
from tests.launch.engines.raylets import Ray
from tests.launch.engines.slurmd import Slurm
from tests.launch.engines.users import RayUser, SlurmUser, SSHUser, User


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    made = Slurm()
    yield made
    made.close()


@pytest.fixture(scope="session")
def ray() -> Iterator[Ray]:
    made = Ray("two", "three")
    yield made
    made.close()


@pytest.fixture
def ssh_user(tmp_path: Path) -> Iterator[SSHUser]:
    made = SSHUser(tmp_path)
    yield made
    made.close()


@pytest.fixture
def slurm_user(tmp_path: Path, slurm: Slurm) -> Iterator[SlurmUser]:
    made = SlurmUser(tmp_path, slurm)
    yield made
    made.close()


@pytest.fixture
def ray_user(tmp_path: Path, ray: Ray) -> Iterator[RayUser]:
    made = RayUser(tmp_path, ray)
    yield made
    made.close()


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("ssh", "slurm", "ray")])
def user(request: pytest.FixtureRequest) -> User:
    """A user of each engine."""
    made: User = request.getfixturevalue(f"{request.param}_user")
    return made


@pytest.fixture(scope="session")
def local_bits(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """The final values of the experiment on this machine, with a Python."""
    found: dict[str, bytes] = {}

    def run(python: str) -> bytes:
        if python not in found:
            here = User(tmp_path_factory.mktemp("local"))
            here.python = python
            here.launch()
            found[python] = bits(here.folder / "runs" / "1")
        return found[python]

    return run

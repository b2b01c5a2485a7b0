"""A program with `dps.jax.optimizer` and no `close()` ends as its user expects; without JAX one line says so."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import dps
from tests.examples.processes import Terminals, free_addresses

needs_jax = pytest.mark.skipif(
    find_spec("jax") is None or find_spec("optax") is None, reason='needs JAX and optax: pip install "dps[jax]"'
)

PROGRAM = """
import sys
import jax, jax.numpy as jnp, optax
import dps

class Told(dps.Hook):
    def end(self, session):
        print("closed at step", session.global_step, flush=True)

given = {"w": jnp.ones(3)}
server = dps.Server.from_env(local=True)
opt = dps.jax.optimizer(server, given, dps.optim.SGD(0.5), update="sync", hooks=[Told()])

@jax.jit
def step(values, state):
    updates, state = opt.update({"w": 2 * values["w"]}, state, values)
    return optax.apply_updates(values, updates), state

values, state = opt.pull(), opt.init(given)
for _ in range(5):
    values, state = step(values, state)
if "raise" in sys.argv:
    raise KeyError("mine")
if "exit" in sys.argv:
    sys.exit(3)
"""


ROOT = str(Path(__file__).parents[2])


def ended(*command: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, *command)
    return subprocess.run(command, check=False, text=True, capture_output=True, timeout=120)


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [("well", 0), ("raise", 1), pytest.param("exit", 3, marks=pytest.mark.nightly)]
)
def test_a_program_alone_ends_with_its_own_exit_code(how: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = ended(str(tmp_path / "train.py"), how)
    assert done.returncode == code, done.stderr
    assert ("closed at step 5" in done.stdout) == (how == "well")  # an error is told to the run, not to hooks' end
    assert ("KeyError: 'mine'" in done.stderr) == (how == "raise")


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [pytest.param("well", 0, marks=pytest.mark.nightly), ("raise", 1)])
def test_two_workers_under_dps_launch_end_without_close(how: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    launch = ("-m", "dps.cli", "launch", "--ps", "1", "--workers", "2", str(tmp_path / "train.py"), "--", how)
    done = ended(*launch)
    assert done.returncode == code, done.stdout + done.stderr
    assert "was silent" not in done.stdout + done.stderr
    if how == "well":
        assert done.stdout.count("closed at step 5") == 2


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"), [("well", 0), pytest.param("raise", 1, marks=pytest.mark.nightly), ("exit", 3)]
)
def test_as_the_program_of_a_role(how: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (chief,) = free_addresses(1)
    role = "-m", "dps.role", "--chief", chief, "--job"
    with Terminals(tmp_path) as terminals:
        terminals.start("chief", *role, "chief", "--ps", "1", "--workers", "1", PYTHONPATH=ROOT)
        terminals.start("ps", *role, "ps", "--task", "0", PYTHONPATH=ROOT)
        terminals.start("worker", *role, "worker", "--task", "0", "--program", "train.py", "--", how, PYTHONPATH=ROOT)
        codes, said = terminals.ended()
    assert codes == {"chief": min(code, 1), "ps": min(code, 1), "worker": code}, said
    assert said["worker"].count("closed at step 5") == (0 if code else 1), said
    assert "was silent" not in str(said)


def train(server: Any, update: str, how: str) -> list[float]:
    """The program above as a function; returns the values at its end."""
    import jax
    import jax.numpy as jnp
    import optax

    given = {"w": jnp.ones(3)}
    opt = dps.jax.optimizer(server, given, dps.optim.SGD(0.1), update=update)

    @jax.jit
    def step(values: Any, state: Any) -> Any:
        updates, state = opt.update({"w": 2 * values["w"]}, state, values)
        return optax.apply_updates(values, updates), state

    values, state = opt.pull(), opt.init(given)
    for _ in range(5):
        values, state = step(values, state)
    if how == "raise":
        raise KeyError("mine")
    return [float(value) for value in values["w"]]


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("update", ["async", "sync"])
def test_in_threads_of_a_local_cluster(update: str, capfd: pytest.CaptureFixture[str]) -> None:
    with dps.LocalCluster(ps=1, workers=2, processes=False) as local:
        run = local.run(train, update, "well")
        one, other = run.wait(60).results
        assert max(row["step"] for row in run.history) >= 5
        if update == "sync":
            assert one == other == pytest.approx([0.8**5] * 3)
        else:  # its own 5 steps, and some of the other's; a gradient of older values takes more away
            assert all(0 < value < 0.8**5 * 1.01 for value in one + other)
        with pytest.raises(dps.DpsError, match="KeyError: 'mine'"):
            local.run(train, update, "raise").wait(60)
    assert "was silent" not in capfd.readouterr().err


@needs_jax
def test_a_good_end_waits_for_the_steps_under_way_and_tells_their_error(tmp_path: Path) -> None:
    """The last step fails behind the program, which has come to its end meanwhile."""
    steps = "for _ in range(5):\n    values, state = step(values, state)\n"
    assert steps in PROGRAM
    (tmp_path / "train.py").write_text(
        PROGRAM.replace(steps, steps + "values, state = step({'w': jnp.full(3, jnp.nan)}, state)\n")
    )
    done = ended(str(tmp_path / "train.py"), "well")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NaN" in done.stderr and "closed at step" not in done.stdout


@pytest.mark.parametrize("library", ["jax", "optax"])
@pytest.mark.parametrize("line", ["import dps.jax", "import dps; dps.jax", "from dps import jax"])
def test_without_the_library_one_line_names_the_extra(library: str, line: str) -> None:
    if library == "optax" and find_spec("jax") is None:
        pytest.skip('needs JAX: pip install "dps[jax]"')
    done = ended("-c", f"import sys; sys.modules[{library!r}] = None\n{line}")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("dps.errors.MissingExtra: ") and f"{library} is" in last and "dps[jax]" in last


def test_all_other_names_of_dps_need_no_jax() -> None:
    done = ended("-c", "import sys; sys.modules['jax'] = None\nfrom dps import *; import dps; print('jax' in dir(dps))")
    assert done.stdout == "True\n", done.stderr

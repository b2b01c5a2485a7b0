"""A PyTorch and a JAX model on the ps; without the library, one line that says what to install."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals, free_addresses

LIBRARIES = {"torch": "torch_mnist.py", "jax": "jax_mnist.py"}
NEEDS = {program: library for library, program in LIBRARIES.items()} | {
    "torch_text.py": "torch",
    "movielens.py": "torch",
    "rollouts.py": "gymnasium",
}
each_library = pytest.mark.parametrize(("library", "program"), LIBRARIES.items(), ids=LIBRARIES)


@each_library
def test_two_workers_train_one_model(library: str, program: str, tmp_path: Path) -> None:
    if find_spec(library) is None:
        pytest.skip(f'needs {library}: pip install "dps[{library}]"')
    with Terminals(tmp_path) as terminals:
        given = str(EXAMPLES / program), "--", "--steps", "80"
        terminals.start("all", "-m", "dps.cli", "launch", "--ps", "2", "--workers", "2", *given)
        codes, said = terminals.ended()
    assert codes == {"all": 0}, said
    found = re.findall(r"done at step (\d+), test accuracy ([\d.]+)", said["all"])
    assert len(found) == 2, said
    for step, accuracy in found:
        assert 80 <= int(step) <= 81
        assert float(accuracy) > 0.75  # guessing is 0.1


def check_torch_alone(codes: dict[str, int], said: str) -> None:
    """Ends with exit code 0 without `close()`, and its model is better than guessing, which is 0.1."""
    assert set(codes.values()) == {0}, said
    found = re.search(r"done at step 80, test accuracy ([\d.]+)", said)
    assert found is not None and float(found[1]) > 0.75, said
    assert "was silent" not in said, said


@pytest.mark.nightly
def test_the_pytorch_program_needs_no_close_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", str(EXAMPLES / "torch_mnist.py"), "--steps", "80")
        codes, said = terminals.ended()
    check_torch_alone(codes, said["alone"])


@pytest.mark.nightly
def test_the_pytorch_program_needs_no_close_as_the_program_of_a_role(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason='needs torch: pip install "dps[torch]"')
    (chief,) = free_addresses(1)
    role, program = ("-m", "dps.role", "--chief", chief, "--job"), str(EXAMPLES / "torch_mnist.py")
    with Terminals(tmp_path) as terminals:
        terminals.start("chief", *role, "chief", "--ps", "1", "--workers", "1")
        terminals.start("ps", *role, "ps", "--task", "0")
        terminals.start("worker", *role, "worker", "--task", "0", "--program", program, "--", "--steps", "80")
        codes, said = terminals.ended()
    check_torch_alone(codes, said["worker"])


@pytest.mark.parametrize(("program", "library"), NEEDS.items(), ids=NEEDS)
def test_without_the_library_one_line_names_the_extra(library: str, program: str, tmp_path: Path) -> None:
    (tmp_path / f"{library}.py").write_text(f"raise ImportError('No module named {library}')\n")
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", str(EXAMPLES / program), PYTHONPATH=str(tmp_path))
        codes, said = terminals.ended()
    assert codes == {"alone": 1}
    assert said["alone"].count("\n") == 1 and f"dps[{library}]" in said["alone"]

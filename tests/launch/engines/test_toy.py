"""A launch engine is one file: the package lists the modules of its folder, and nothing else lists their names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dps
from dps import cli
from dps.errors import ConfigError
from dps.launch import engines

TOY = '''
"""A launch engine that starts tasks as child processes of this one, and notes what it is asked."""

import json
from pathlib import Path

from dps.launch.supervision.child import Child
from dps.transport.private_folders import private_chief, remove

NOTES = Path(__file__).with_name("notes")
NOTES.write_text("imported\\n")


def note(text):
    with NOTES.open("a") as file:
        file.write(text + "\\n")


def make_engine(settings):
    return ToyEngine(settings)


class ToyEngine:
    elsewhere = False

    def __init__(self, settings):
        self.settings = settings

    def check(self, plan):
        note(f"check {json.dumps(dict(self.settings))}")

    def open(self, plan, line, notice):
        self.folder, bind = private_chief()
        return bind

    def start(self, order, line, ended):
        note(f"start {order.name}")
        return Child(order, {"TOY": order.name, **order.env}, line, ended)

    def go_on(self):
        return False

    def used(self):
        return {}

    def close(self):
        remove(self.folder)
'''
TRAIN = """
import os, sys
import numpy as np
import dps

with dps.Server.from_env() as server, dps.Session(server, {"w": np.zeros(3)}, optimizer=dps.optim.SGD(0.1)) as session:
    session.push({"w": np.ones(3)})
open(os.path.join(os.path.dirname(__file__), f"ran {server.task}"), "w").write(os.environ["TOY"])
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of engines beside that of dps, with one file."""
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "dps.launch.engines.toy", raising=False)
    (tmp_path / "train.py").write_text(TRAIN)
    return folder


def test_a_run_with_an_engine_of_one_file_trains(toy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["launch", "--on", "toy", "--workers", "2", str(tmp_path / "train.py")])
    assert code == 0, capfd.readouterr().out
    assert {path.name: path.read_text() for path in tmp_path.glob("ran *")} == {
        "ran 0": "worker:0",
        "ran 1": "worker:1",
    }
    notes = (toy / "notes").read_text().splitlines()
    assert notes[:2] == ["imported", 'check {"on": "toy"}']
    assert sorted(note for note in notes if note.startswith("start")) == [
        "start chief",
        "start ps:0",
        "start worker:0",
        "start worker:1",
    ]


def test_an_experiment_file_runs_on_it_with_its_settings(toy: Path, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text("hosts: [box1]\nroles: {worker: {run: train.py}}\n")
    assert cli.main(["launch", "--on", "toy", str(file)]) == 0
    assert 'check {"on": "toy", "hosts": ["box1"]}' in (toy / "notes").read_text().splitlines()


def test_it_is_known_before_it_is_imported(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["launch", "--help"])
    assert "--on {local,ray,slurm,ssh,toy}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--on tyo: no such engine; wanted local, ray, slurm, ssh or toy"):
        engines.make_engine({"on": "tyo"})
    assert not (toy / "notes").exists()


def test_the_command_imports_no_engine_before_one_is_chosen() -> None:
    code = (
        "import sys, dps.cli; dps.cli.parser(); print([m for m in sys.modules if m.startswith('dps.launch.engines.')])"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout.strip() == "[]"


def listed(file: Path) -> bool:
    """Whether a file has a collection with the names of two engines or more."""
    known = set(engines.names())
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            parts = [*node.keys, *node.values] if isinstance(node, ast.Dict) else node.elts
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            if len(known.intersection(text for text in texts if isinstance(text, str))) > 1:
                return True
    return False


@pytest.mark.slow
def test_no_file_lists_the_names_of_engines_but_for_the_two_that_are_defaults() -> None:
    root = Path(dps.__file__).parent
    files = [file for file in root.rglob("*.py") if root / "cluster" not in file.parents]  # it has resolvers
    assert [str(file.relative_to(root)) for file in files if listed(file)] == ["launch/engines/__init__.py"]

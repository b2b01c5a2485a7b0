"""Functions by their paths: found where they are, and clear about where they are not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from dps.errors import ConfigError
from dps.process.functions import load, loading, path_of
from tests.launch import programs


@pytest.fixture(autouse=True)
def a_path_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def test_a_modules_function_goes_there_and_back() -> None:
    path, code = path_of(programs.echo)
    assert (path, code) == ("tests.launch.programs:echo", b"")
    assert load(path) is programs.echo


def test_a_files_function_is_found_beside_a_module_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def train(server): return 'mine'\n")
    assert load(f"{tmp_path}/json.py:train")(None) == "mine"
    assert hasattr(importlib.import_module("json"), "dumps")


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_of_program.py").write_text("value = 4\n")
    (tmp_path / "program_with_beside.py").write_text(
        "import beside_of_program\ndef train(server): return beside_of_program.value\n"
    )
    assert load("program_with_beside.py:train")(None) == 4


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere:train", "no module 'nowhere'"),
        ("json.nowhere:train", "no module 'json.nowhere'"),
        ("nowhere.py:train", "no file 'nowhere.py'"),
        ("json:train", "json has no function 'train'"),
        ("json", "no module ''"),
    ],
)
def test_what_is_not_there_is_named(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match="wanted package.module:function or folder/file.py:function") as told:
        load(path)
    assert words in str(told.value)


def test_an_import_that_fails_inside_a_program_is_the_programs_own_error(tmp_path: Path) -> None:
    (tmp_path / "program_that_lacks.py").write_text("import nowhere_at_all\n")
    for path in ("program_that_lacks:train", "program_that_lacks.py:train"):
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
            load(path)


def test_a_value_error_while_a_module_is_imported_is_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "program_that_raises.py").write_text("int('no number')\n")
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match="invalid literal"):
        load("program_that_raises:train")


def test_functions_without_a_path_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)

    def inner(server: object) -> None: ...

    for function in (inner, lambda server: None):
        with pytest.raises(ConfigError, match=r"dps\[notebook\]"):
            path_of(function)


@pytest.mark.parametrize("call", ["dps.LocalCluster(workers=1).start()", "dps.LocalCluster(workers=1).__enter__()"])
def test_a_script_that_makes_a_cluster_while_a_worker_imports_it_is_told_what_to_add(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr("dps.launch.supervision.supervisor.Supervisor.start", started.append)
    (tmp_path / "unguarded.py").write_text(f"import dps\ndef train(server): ...\n{call}\n")
    importlib.invalidate_caches()
    for path in (f"{tmp_path}/unguarded.py:train", "unguarded:train"):
        with pytest.raises(ConfigError, match="makes a dps.LocalCluster again") as told:
            load(path)
        assert 'if __name__ == "__main__":' in str(told.value) and "\n" not in str(told.value)
        assert str(told.value).startswith("unguarded")
    assert not started and loading() == ""

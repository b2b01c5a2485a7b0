"""The rooms of dps/: the picture in docs/architecture.md, the contracts and the folders agree, and so do the tests.

import-linter sees imports by name (`make check`). Tests here see the rest: modules that strings name, public names that
`dps` loads when they are used, and names with an underscore.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dps

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]
DPS = ROOT / "dps"
LOOSE = {"__init__", "__main__", "errors", "cli", "role"}
MOST_LAYERS = 14
CORE = ("actors", "transport", "variables", "ps", "chief", "worker", "client")
ON_TOP = ("nn", "data", "strategy", "coordinator", "launch")

OF_THE_PROJECT = {"benchmarks", "chaos", "examples", "networks", "notebooks", "simulation"}
"""Folders of tests that belong to no room."""
SAME_SUBJECT = {"test_leaving.py": "a ps that leaves: the chief's part of it, and all of it in the simulator"}
"""Names of several test files, each with what they have in common."""

# -- the picture, the contracts and the folders --------------------------------------------------------------------


def contract(name: str) -> dict[str, list[str]]:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: dict[str, list[str]] = next(each for each in linter["contracts"] if each["id"] == name)
    return found


@cache
def pictures() -> tuple[list[str], list[str]]:
    """The lines of the page's two pictures: the layers, and the tree of folders."""
    page = (ROOT / "docs" / "architecture.md").read_text().split("\n## Rooms and layers\n")[1].split("\n## ")[0]
    layers, tree = re.findall(r"^```text\n(.*?)^```$", page, re.S | re.M)
    return layers.splitlines(), tree.splitlines()


def pictured_layers() -> list[str]:
    """The layers of the picture, such as "role : cli"."""
    return [re.split(r"\s{2,}", line.strip())[0] for line in pictures()[0]]


def pictured_folders() -> Iterator[str]:
    """The folders of the picture's tree, such as "ps/intake"; each line says what its folder is for."""
    above = ""
    for line in pictures()[1][2:]:
        found = re.fullmatch(r"([│ ]*)[├└]─ (\w+)/ +\S.*", line)
        assert found, f"not a folder with what it is for: {line}"
        above = above if found[1] else found[2]
        yield f"{above}/{found[2]}" if found[1] else above


def folders(root: Path) -> list[str]:
    """The packages below a folder, as paths."""
    return sorted(str(path.parent.relative_to(root)) for path in root.rglob("*/__init__.py"))


def test_the_picture_of_the_layers_is_the_contract() -> None:
    assert pictured_layers() == contract("layers")["layers"]
    assert len(pictured_layers()) <= MOST_LAYERS


def test_the_layers_have_all_that_is_at_the_top_and_little_of_it_is_loose() -> None:
    named = [name for layer in pictured_layers() for name in re.split(r" [|:] ", layer)]
    loose = {path.stem for path in DPS.glob("*.py")}
    assert loose == LOOSE
    assert sorted(named) == sorted({*folders(DPS), *loose} - {"__init__"} - {f for f in folders(DPS) if "/" in f})


def test_nothing_but_modules_lies_at_the_top() -> None:
    others = {path.name for path in DPS.iterdir() if path.is_file() and path.suffix != ".py"}
    assert others == {"py.typed"}


def test_the_tree_has_every_folder_once() -> None:
    assert sorted(pictured_folders()) == folders(DPS)


def test_the_contracts_know_the_core_and_what_stands_on_it() -> None:
    assert contract("core")["source_modules"] == [f"dps.{room}" for room in CORE]
    assert contract("core")["forbidden_modules"] == contract("roles")["source_modules"] == [f"dps.{r}" for r in ON_TOP]


# -- what a newcomer asks ------------------------------------------------------------------------------------------

QUESTIONS = [
    "Where is a push applied?", "Where does a synchronous step close?", "Where is a key or token checked?",
    "Where is a checkpoint committed?", "Where is a published version cut?",
    "Which environment variables are there?", "How does a launch engine plug in?", "How do I add an optimizer?",
    "How do I add an update mode?", "How do I add a hook?", "How do I add a placement?",
]  # fmt: skip


def test_each_question_of_a_newcomer_is_answered_in_few_lines_with_files_that_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().split("\n## How do I\n")[1].split("\n## ")[0]
    asked = re.split(r"^### (.+)\n", page, flags=re.M)
    answers = dict(zip(asked[1::2], asked[2::2], strict=True))
    assert list(answers) == QUESTIONS
    for question, answer in answers.items():
        assert len(answer.strip().splitlines()) < 10, question
        named = re.findall(r"`((?:dps|tests|docs)/[\w/.]+)(?:::([\w.]+))?`", answer)
        assert named, question
        for path, name in named:
            assert (ROOT / path).exists(), f"{question} names {path}"
            text = (ROOT / path).read_text() if name else ""
            assert all(re.search(rf"(?:def|class) {part}\b", text) for part in name.split(".") if part), name


# -- what import-linter cannot see ---------------------------------------------------------------------------------


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (DPS / room).rglob("*.py"))


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module with their lines, docstrings apart."""
    tree = parsed(path)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


MODULE = r"dps(?:\.[a-z_]\w*)+(?::\w+)?"


def named_modules(text: str) -> list[str]:
    """The modules that a string names so that something loads them: it is such a name, or a command with one."""
    return [text.rstrip(".")] if re.fullmatch(rf"{MODULE}\.?", text) else re.findall(rf"python\S* -m ({MODULE})", text)


def imported_from_dps(path: Path) -> Iterator[str]:
    """The modules of the names that a module imports from `dps` itself."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "dps":
            for alias in node.names:
                yield getattr(getattr(dps, alias.name), "__module__", None) or f"dps.{alias.name}"
        if isinstance(node, ast.Import):
            assert "dps" not in [alias.name for alias in node.names], f"{path} imports all of dps"


def test_names_of_modules_are_found_in_strings() -> None:
    assert named_modules("dps.launch.clusters.worker:main") == ["dps.launch.clusters.worker:main"]
    assert named_modules("start python3 -m dps.role --job ps") == ["dps.role"]
    assert named_modules("dps.cluster.resolvers.") == ["dps.cluster.resolvers"]
    assert named_modules("give it dps.Server, or dps.nn layers") == []


@pytest.mark.parametrize("room", CORE)
def test_the_core_names_nothing_of_what_stands_on_it_in_a_string(room: str) -> None:
    for path in modules(room):
        names = [name for _, text in strings(path) for name in named_modules(text)] + list(imported_from_dps(path))
        found = [name for name in names if name.split(".")[1].split(":")[0] in ON_TOP]
        assert not found, f"{path.relative_to(ROOT)} names {found}"


@pytest.mark.parametrize("room", ON_TOP)
def test_what_stands_on_sessions_uses_no_name_with_an_underscore_of_what_is_below(room: str) -> None:
    own = {
        getattr(node, "name", None) or getattr(node, "attr", None) or ast.unparse(getattr(node, "target", node))
        for path in modules(room)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign)
        or (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    }
    for path in modules(room):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dps"):
                private = [alias.name for alias in node.names if re.match(r"_[^_]", alias.name)]
                assert not private or str(node.module).startswith(f"dps.{room}"), f"{path}:{node.lineno}: {private}"
            if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) and node.attr not in own:
                assert ast.unparse(node) in ("os._exit", "argparse._SubParsersAction"), f"{path}:{node.lineno}"


def loaded(module: str) -> Any:
    """A module; of one whose library is not installed its path alone."""
    try:
        return importlib.import_module(module)
    except dps.MissingExtra:
        return importlib.util.find_spec(module)


def test_every_module_that_a_string_names_is_there() -> None:
    """In dps, and in the benchmarks; the tables of names that are loaded when they are used are among these strings."""
    paths = [*sorted(DPS.rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
    named = {name: f"{path}:{line}" for path in paths for line, text in strings(path) for name in named_modules(text)}
    assert {"dps.role", "dps.launch.clusters.worker:main", "dps.launch.hosts.host"} <= named.keys()
    for name, where in named.items():
        module, _, function = name.partition(":")
        found = loaded(module)
        assert not function or callable(getattr(found, function)), f"{where} names {name}"


def test_every_name_that_a_package_loads_when_it_is_used_is_there() -> None:
    packages = [loaded(f"dps.{name.replace('/', '.')}") for name in folders(DPS)]
    lazy = [package for package in (dps, *packages) if hasattr(package, "__getattr__")]
    assert len(lazy) > 5
    for package in lazy:
        for name in getattr(package, "__all__", ()):
            assert getattr(package, name) is not None, f"{package.__name__} has no {name}"


# -- tests lie where one looks for them ----------------------------------------------------------------------------


def test_the_folders_of_tests_are_the_rooms_of_what_they_test() -> None:
    tests = set(folders(ROOT / "tests"))
    top = {name for name in tests if "/" not in name}
    assert top - OF_THE_PROJECT <= set(folders(DPS))
    within = {name for name in tests - top if name.split("/")[0] not in OF_THE_PROJECT}
    assert within <= set(folders(DPS))


def test_two_files_of_tests_have_one_name_only_if_they_have_one_subject() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name, count in names.items() if count > 1} == SAME_SUBJECT.keys()


def test_the_guide_for_contributors_says_why_a_test_lies_in_no_room() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = text.split("## Where a test lies")[1]
    unexplained = [path.stem for path in (ROOT / "tests").glob("*.py") if f"`{path.stem}`" not in rows]
    assert unexplained == ["__init__"], "CONTRIBUTING.md says of each file at the top of tests/ why it is in no room"

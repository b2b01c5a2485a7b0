"""What stands on the API pages says all of its parameters, and its examples run."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import griffe
import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

import dps

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "api"

WITHOUT_EXAMPLE = {
    "dps.cluster.placement.Policy": "a protocol: dps.placement has classes that follow it",
    "dps.cluster.placement.Load": "a protocol: dps.placement.nbytes follows it",
    "dps.launch.clusters.elsewhere.SSHCluster": "it needs hosts; docs/guide/ssh.md has one; make engines runs the like",
    "dps.launch.clusters.elsewhere.SlurmCluster": "it needs a Slurm; it is used as SSHCluster is",
    "dps.launch.clusters.elsewhere.RayCluster": "it needs a Ray; it is used as SSHCluster is",
    "dps.cluster.partition.Partitioner": "a protocol: dps.partition has classes that follow it",
    **{
        f"dps.errors.{name}": "dps raises it; dps.DpsError shows how to catch one"
        for name in dps.__all__
        if isinstance(getattr(dps, name), type) and issubclass(getattr(dps, name), dps.DpsError) and name != "DpsError"
    },
}
"""Classes whose docstrings need no example, and why."""

MADE_BY_DPS = {"dps.messages.replies.Reply", "dps.launch.clusters.run.LocalRun"}
"""Classes that programs only get, so that their constructors are nobody's business."""

Documented = griffe.Class | griffe.Function


@cache
def package() -> Any:
    """dps as the API pages read it."""
    return griffe.load("dps", extensions=griffe.load_extensions(ROOT / "docs" / "building" / "records.py"))


def entries() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every `:::` of the API pages, with its options."""
    for page in sorted(API.glob("*.md")):
        for name, rest in re.findall(r"^::: dps\.(\S+)\n((?: .*\n)*)", page.read_text() + "\n", re.M):
            yield name, (yaml.safe_load(rest) or {}).get("options", {})


def found(name: str) -> Any:
    """The object that a dotted path below `dps` names, where it is defined."""
    at = package()
    for part in name.split("."):
        at = at[part]
        while at.is_alias:
            at = at.final_target
    return at


def members_of(shown: Any, options: dict[str, Any]) -> Iterator[Any]:
    """What the page shows below an entry."""
    chosen = options.get("members")
    hidden = [pattern[1:] for pattern in options.get("filters", ["!^_"])]
    for name, member in (shown.all_members if options.get("inherited_members") else shown.members).items():
        if chosen is None and any(re.search(pattern, name) for pattern in hidden):
            continue
        if (chosen is None or name in chosen) and not (member.is_alias and not member.inherited):
            yield member.final_target if member.is_alias else member


@cache
def documented() -> dict[str, Documented]:
    """All classes and functions on the API pages, by where they are defined."""
    shown: dict[str, Documented] = {}

    def add(thing: Any, options: dict[str, Any]) -> None:
        if thing.is_class or thing.is_function:
            shown[thing.path] = thing
        if not thing.is_function:
            for member in members_of(thing, options) if thing.is_class or "members" in options else ():
                add(member, {})

    for name, options in entries():
        thing = found(name)
        if not thing.is_attribute:
            add(thing, options)
    return shown


def overrides(thing: Documented) -> bool:
    """Whether a method without a docstring has that of the method which it overrides."""
    owner = thing.parent
    return isinstance(owner, griffe.Class) and any(thing.name in base.members for base in owner.mro())


def sections(thing: Documented) -> dict[str, Any]:
    assert thing.docstring is not None, f"{thing.path} has no docstring"
    return {section.kind.value: section.value for section in thing.docstring.parse("google", warnings=False)}


def test_every_docstring_tells_of_each_parameter_result_and_use() -> None:
    """One test, because reading dps takes longer than all that is asked of it."""
    wrong = []
    for name, thing in documented().items():
        try:
            check_docstring(name, thing)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def check_docstring(name: str, thing: Documented) -> None:
    if thing.docstring is None and overrides(thing):
        return
    told = sections(thing)
    parameters = [] if name in MADE_BY_DPS else thing.parameters
    wanted = [parameter.name for parameter in parameters if parameter.name not in ("self", "cls")]
    of = [item.name for item in told.get("parameters", [])]
    assert sorted(name.strip("*") for name in of) == sorted(name.strip("*") for name in wanted), f"{name}: Args"
    assert thing.docstring is not None
    text = thing.docstring.value
    if isinstance(thing, griffe.Function):
        gives = str(thing.returns) != "None" and not (set(thing.labels) & {"property", "cached"})
        assert gives == bool({"returns", "yields"} & set(told)), f"{name} returns {thing.returns}"
    else:
        assert name in WITHOUT_EXAMPLE or "\nExample:\n" in text, f"{name} has no example"
    first = text.splitlines()[0]
    assert first.endswith((".", ":")), f"{name}: the first line is a sentence, got {first!r}"


def test_the_reasons_for_no_example_are_of_classes_that_have_none() -> None:
    for name in WITHOUT_EXAMPLE:
        thing = documented()[name]
        assert thing.docstring is not None and "\nExample:\n" not in thing.docstring.value


def test_the_examples_of_the_session_have_every_argument() -> None:
    thing = documented()["dps.client.session.Session"]
    assert thing.docstring is not None
    text = thing.docstring.value.split("\nExample:\n")[1]
    names = [parameter.name for parameter in thing.parameters if parameter.name not in ("self", "server", "params")]
    missing = [name for name in names if f" {name}=" not in text]
    assert len(names) > 15 and not missing, f"no example has {missing}"


WAIT = (
    "client.session.Session", "coordinator.coordinator", "coordinator.remote_value", "data.remote_pass",
    "data.shared_queue", "launch.local", "launch.run", "served_task", "reply", "strategy.context", "strategy.variables",
)  # fmt: skip
"""Below `dps`: where calls talk to other tasks, or wait for other replicas."""


def test_every_call_that_may_wait_says_whether_it_blocks() -> None:
    silent = []
    for name, thing in documented().items():
        below = name.removeprefix("dps.")
        if isinstance(thing, griffe.Function) and below.startswith(WAIT) and thing.docstring is not None:
            says = re.search(r"\bblocks?\b|at once|[Dd]oes not wait|[Ww]aits\b", thing.docstring.value, re.I)
            if not says and not set(thing.labels) & {"property", "cached"}:
                silent.append(name)
    assert not silent, f"these do not say whether they block: {silent}"


def test_the_page_of_the_session_names_all_that_a_session_has() -> None:
    (options,) = [options for name, options in entries() if name == "Session"]
    members = {name for name in (*dir(dps.Session), *dps.Session.__annotations__) if name[0] != "_"}
    assert set(options["members"]) == members


# -- the examples run ----------------------------------------------------------------------------------------------


def examples() -> Iterator[tuple[str, str, str]]:
    """(where, language, code) of each block of each example."""
    for name, thing in sorted(documented().items()):
        if thing.docstring is None or "\nExample:\n" not in thing.docstring.value:
            continue
        text = thing.docstring.value.split("\nExample:\n")[1]
        blocks = re.findall(r"^    ```(\w+)\n(.*?)^    ```$", text, re.M | re.S)
        assert blocks, f"{name}: an example is a block between ```python or ```pycon and ```"
        for language, code in blocks:
            yield name, language, re.sub("^    ", "", code, flags=re.M)


def needs(code: str, name: str) -> bool:
    """Whether an example uses a name that it does not make itself."""
    return bool(re.search(rf"\b{name}\b", code)) and not re.search(rf"as {name}:|^(>>> )?{name} =", code, re.M)


def run(where: str, language: str, code: str, names: dict[str, Any]) -> None:
    if language == "python":
        exec(compile(code, where, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(code, names, where, where, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = []
    for number, (where, language, code) in enumerate(examples()):
        if where.startswith("dps.adapters.torch") and find_spec("torch") is None:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        try:
            run_example(where, language, code)
        except Exception as error:
            error.add_note(f"in the example of {where}")
            failed.append(error)
    if failed:
        raise ExceptionGroup("examples of docstrings", failed)


def run_example(where: str, language: str, code: str) -> None:
    """With `np` and `dps`; `server`, a local one; `session`, open over "w", three zeros, and "table", 4 rows; and
    `coordinator`, of two workers that serve."""
    assert language in ("python", "pycon"), f"{where}: wanted ```python or ```pycon"
    if "import optax" in code and find_spec("optax") is None:
        return  # tests/adapters say so
    names: dict[str, Any] = {"np": np, "dps": dps, "__name__": "__main__"}
    if needs(code, "coordinator"):
        served = ["operator:add", "operator:mul", "builtins:len", "collections:Counter"]
        cluster = dps.LocalCluster(workers=2, processes=False, serve=served)
        with cluster as local, dps.Coordinator(local.target) as coordinator:
            run(where, language, code, names | {"coordinator": coordinator})
        return
    if not (needs(code, "server") or needs(code, "session")):
        run(where, language, code, names)
        return
    with dps.Server.create_local_server() as server:
        names["server"] = server
        if not needs(code, "session"):
            run(where, language, code, names)
            return
        table = np.repeat(np.arange(4, dtype=np.float32)[:, None], 2, 1)
        params = {"w": np.zeros(3, np.float32), "table": dps.Variable(table, sparse=True)}
        with dps.Session(server, params, optimizer=dps.optim.SGD(0.5)) as session:
            names["session"] = session
            run(where, language, code, names)


def test_examples_fit_the_width_of_the_site() -> None:
    for where, _, code in examples():
        assert max(map(len, code.splitlines())) <= 88, f"{where}: a line of the example is longer than 88 characters"


def test_every_example_that_is_there_is_run() -> None:
    written = sum(
        "\nExample:\n" in (thing.docstring.value if thing.docstring else "") for thing in documented().values()
    )
    assert len({name for name, _, _ in examples()}) == written


def paragraphs_told_twice(docstring: str) -> Iterator[str]:
    """The paragraphs of a docstring that have 80 % of their words in an earlier one; no Google sections, no code."""
    earlier: list[set[str]] = []
    for paragraph in docstring.split("\n\n"):
        words = re.findall(r"[a-z_]+", paragraph.lower())
        is_prose = not re.match(r"\s|[A-Z][a-z]+:\n", paragraph)
        if words and is_prose and any(sum(word in before for word in words) >= 0.8 * len(words) for before in earlier):
            yield paragraph
        earlier.append(set(words))


def test_no_docstring_says_the_same_in_two_paragraphs() -> None:
    twice = []
    for path in (ROOT / "dps").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                told = paragraphs_told_twice(ast.get_docstring(node) or "")
                twice += [f"{path.relative_to(ROOT)}: {paragraph}" for paragraph in told]
    assert not twice, "\n\n".join(twice)


def test_a_second_telling_is_found() -> None:
    text = "Take a pass. Raises ValueError for rows.\n\nRaises ValueError for the rows.\n\nArgs:\n    pass: rows"
    assert list(paragraphs_told_twice(text)) == ["Raises ValueError for the rows."]

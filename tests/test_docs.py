"""The documents say what is true: their examples run, the names and flags in them exist, their links lead somewhere.

In docs/guide/, docs/coming-from-tensorflow.md and README.md every ```python and ```bash block is run, in order, in a
folder of its own; python blocks of a page share their names. What a block prints stands below it, in a block without a
language. A comment on the line before a block changes that:

    <!-- file: NAME -->      the block is written to NAME, for what follows to run or to import
    <!-- skip: REASON -->    the block is not run
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]

import dps
from dps import cli, errors, role

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
RUN = [*sorted((DOCS / "guide").glob("*.md")), DOCS / "coming-from-tensorflow.md", ROOT / "README.md"]
HIDDEN = ("DPS_", "SLURM_", "TF_CONFIG", "NUMBA_", "PYTEST_")
"""What a script's environment has not from these tests."""

README_SETUP = """
import numpy as np
import dps

def train(server, update=None):
    with dps.Session(server, {"w": np.zeros(2, np.float32)}, optimizer=dps.optim.SGD(0.1), update=update,
                     hooks=[dps.StopAtStep(last_step=5)]) as session:
        while not session.should_stop():
            session.push({"w": np.ones(2, np.float32)})
"""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block. `note`: the comment before it, such as "file: trainer.py", or "". `shown`: what it prints, the
    block without a language right after it; None if there is none."""

    page: Path
    line: int
    language: str
    note: str
    text: str
    shown: str | None


@cache
def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[Block]:
    lines = read(page).splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("```")]
    texts = {a: "\n".join(lines[a + 1 : b]) + "\n" for a, b in zip(starts[::2], starts[1::2], strict=True)}
    for start, end in zip(starts[::2], starts[1::2], strict=True):
        before = lines[start - 1] if start else ""
        note = re.fullmatch(r"<!-- ((?:file|skip): .+) -->", before)
        after = next((i for i in range(end + 1, len(lines)) if lines[i]), start)
        shown = texts[after] if lines[after] == "```" and after > start else None
        yield Block(page, start + 1, lines[start][3:].strip(), note[1] if note else "", texts[start], shown)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", read(page), flags=re.S | re.M)


# -- what is in the blocks runs ------------------------------------------------------------------------------------


def on_free_ports(text: str) -> str:
    """The documents' ports 22xx of 127.0.0.1, as ports that are free here and that nobody is given by chance."""
    chosen: dict[str, str] = {}
    for address in sorted(set(re.findall(r"127\.0\.0\.1:22\d\d\b", text))):
        while address not in chosen:
            port = random.randrange(20_000, 32_000)
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                chosen[address] = f"127.0.0.1:{port}"
    return re.sub(r"127\.0\.0\.1:22\d\d\b", lambda found: chosen[found[0]], text)


def run_bash(block: Block, text: str, log: Path) -> None:
    """Run a block as a script; no process outlives it."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(HIDDEN)}
    environ |= {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environ |= {"DPS_RUNS": str(log.parent / "runs")}  # the runs of a page begin with number 1
    with log.open("w") as output:
        command = ["bash", "-euo", "pipefail", "-c", text]
        child = subprocess.Popen(command, env=environ, start_new_session=True, stdout=output, stderr=output)
    try:
        code = child.wait(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert code == 0, f"{name_of(block.page)}:{block.line} gave {code}\n{log.read_text()}"


def check_shown(block: Block, printed: str) -> None:
    """What a python block prints stands below it, line by line, but for whom a slow start waits for. Of the lines below
    a bash block each is printed, in any order: tasks print by turns, beside lines that a page leaves out. "..." stands
    for any text."""
    where = f"{name_of(block.page)}:{block.line}"
    wanted = (block.shown or "").splitlines()
    got = [line for line in printed.splitlines() if not line.startswith("[chief] the chief waits for ")]
    fits = [re.compile(re.escape(line).replace(re.escape("..."), ".*")) for line in wanted]
    if block.language == "python" and block.page.name != "README.md":
        assert len(got) == len(wanted) and all(map(re.Pattern.fullmatch, fits, got)), f"{where} printed\n{printed}"
    for pattern in fits:
        assert any(map(pattern.fullmatch, got)), f"{where} did not print {pattern.pattern}, but\n{printed}"


def run_page(page: Path, folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}  # what stands under the guard of a script runs, too
    if page.name == "README.md":
        (folder / "readme_setup.py").write_text(README_SETUP)
    for block in blocks(page):
        text = on_free_ports(block.text)
        if block.note.startswith("file: "):
            (folder / block.note[6:]).write_text(text)
            sys.modules.pop(Path(block.note[6:]).stem, None)  # of another test
        elif block.note.startswith("skip: "):
            continue
        elif block.language == "bash":
            run_bash(block, text, folder / "output.txt")
            check_shown(block, (folder / "output.txt").read_text())
        elif block.language == "python":
            code = compile("\n" * block.line + text, str(page), "exec")
            printed = io.StringIO()
            used = readme_names() if page.name == "README.md" else contextlib.nullcontext(names)
            with used as given, contextlib.redirect_stdout(printed):
                exec(code, given)
            check_shown(block, printed.getvalue())


@contextlib.contextmanager
def readme_names() -> Iterator[dict[str, Any]]:
    """What a fragment of the README takes for granted: a model, batches, a session with a table, a function."""
    setup = importlib.import_module("readme_setup")
    table = {"table": dps.Variable(np.zeros((9, 2), np.float32), sparse=True)}
    with (
        dps.Server.create_local_server() as server,
        dps.Session(server, table, optimizer=dps.optim.SGD(1.0)) as session,
    ):
        yield {
            "__name__": "__main__", "dps": dps, "np": np,
            "train": setup.train, "session": session, "indices": np.array([1, 3]),
            "gradients": np.ones((2, 2), np.float32),
        }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in, whose files can be imported."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", RUN, ids=name_of)
@pytest.mark.slow
def test_the_examples_of_a_page_run(page: Path, folder: Path) -> None:
    shown = [block.text for block in blocks(page) if not block.note.startswith("skip: ")]
    if any(re.search(r"import (dps\.)?torch", text) for text in shown):
        pytest.importorskip("torch", reason="this page needs PyTorch: pip install '.[torch]'")
    if page.name == "jax.md":
        pytest.importorskip("optax", reason="this page needs JAX and optax: pip install '.[jax]'")
    run_page(page, folder)


def test_the_loop_of_the_readme_prints_what_stands_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    loop, printed, *_ = (b for b in blocks(ROOT / "README.md") if b.language == "python" or "step 100" in b.text)
    exec(compile(loop.text, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed.text


def test_every_block_says_what_language_it_is_and_why_it_is_skipped() -> None:
    for page in RUN[:-1]:
        for block in blocks(page):
            assert block.language in ("python", "bash", "yaml", ""), f"{name_of(page)}:{block.line} is {block.language}"
            assert not block.note.startswith("skip: ") or len(block.note) > 15, f"{name_of(page)}:{block.line}: why?"


def unguarded(text: str) -> list[int]:
    """The lines of a script that make a LocalCluster of processes when a worker process imports it."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) or (
            isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        ):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("LocalCluster"):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                found += [call.lineno] if given.get("processes") != "False" else []
    return found


def test_the_guard_stands_in_every_snippet_whose_cluster_has_processes() -> None:
    assert unguarded("with dps.LocalCluster(ps=2) as local:\n    local.run(train)\n") == [1]
    for page in PAGES:
        for block in (block for block in blocks(page) if block.language == "python"):
            assert not unguarded(block.text), f"{name_of(page)}:{block.line}"
    for path in (ROOT / "examples").glob("*.py"):
        assert not unguarded(path.read_text()), path


def test_what_a_page_prints_stands_below_the_code() -> None:
    """`test_the_examples_of_a_page_run` compares it with what is printed."""
    for page in RUN[:-1]:
        for block in blocks(page):
            if block.language == "python" and not block.note and "print(" in block.text:
                assert block.shown is not None, f"{name_of(page)}:{block.line} prints; show what, in a block below it"


WIDTH = 88
"""Characters of code that the site shows without a scroll bar."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_fits_the_width_of_the_site(page: Path) -> None:
    for block in (block for block in blocks(page) if block.language in ("python", "bash")):
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            assert len(line) <= WIDTH, f"{name_of(page)}:{number} has {len(line)} characters"


# -- names, flags, codes and messages are those of the code --------------------------------------------------------


def exists(path: str) -> bool:
    """Whether a dotted path names a module, or something in one."""
    module, rest = "dps", path.split(".")[1:]
    found: Any = dps
    for name in rest:
        module = f"{module}.{name}"
        try:
            found = getattr(found, name)
        except AttributeError:
            try:
                found = importlib.import_module(module)
            except dps.MissingExtra:  # an adapter, whose library is not installed
                return True
            except ImportError as error:
                return (error.name or "dps").partition(".")[0] != "dps"
        except dps.MissingExtra:
            return True
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_of_dps_that_a_page_mentions_exists(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", prose(page)) + re.findall(r"^::: (\S+)$", prose(page), re.M)
    mentioned = {name for span in spans for name in re.findall(r"(?<![\w/.-])dps(?:\.[A-Za-z_]\w*)+", span)}
    missing = {name for name in mentioned if not exists(name)}
    assert not missing, f"{name_of(page)} names {', '.join(sorted(missing))}"


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    text = "\n".join(read(page) for page in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"(?:^::: |heading: |^# |^## )`?(dps\.\w+)", text, re.M))
    errors_shown = re.search(r"::: dps\.errors\n.*?members: \[(.*?)\]", text, re.S)
    assert errors_shown is not None
    documented |= {f"dps.{name}" for name in errors_shown[1].split(", ")}
    assert {f"dps.{name}" for name in dps.__all__} - documented == set()


def help_of(capsys: pytest.CaptureFixture[str], command: str) -> str:
    main, arguments = (role.main, []) if command.startswith("python") else (cli.main, command.split()[1:])
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


FLAG = r"--[a-z][a-z_-]*"
COMMANDS = re.findall(r"^## `((?:dps|python) [^`]+)`$", read(DOCS / "guide" / "command-line.md"), re.M)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_of_a_command_are_those_of_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    section = prose(DOCS / "guide" / "command-line.md").split(f"## `{command}`\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`--[^|]+) \|", section, re.M)
    written = {flag for row in rows for flag in re.findall(FLAG, row)}
    named = {flag for span in re.findall(r"`([^`\n]+)`", section) for flag in re.findall(rf"(?<!\S){FLAG}", span)}
    known = set(re.findall(rf"(?<![\w-]){FLAG}", help_of(capsys, command))) - {"--help"}
    if command in ("dps status", "dps keys"):
        written |= named
    assert written == known
    assert named <= known | {"--help"}


def test_the_exit_codes_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+?) \|$", read(DOCS / "guide" / "command-line.md"), re.M)
    line = "exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in rows)
    for command in ("python -m dps.role", "dps", "dps launch"):
        assert line in help_of(capsys, command)


def test_every_error_is_explained_with_its_exit_code() -> None:
    text = read(DOCS / "guide" / "errors.md")
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, dps.DpsError)]
    rows = re.findall(r"^\| `dps\.(\w+)` \|[^|]*\| (\d) \| [^|]+ \|$", text, re.M)
    written = {name: int(code) for name, code in rows}
    assert written == {c.__name__: c.exit_code for c in classes if c is not dps.DpsError}


def test_the_messages_that_are_quoted_are_in_the_code() -> None:
    """Of each message, three plain words that follow each other do so in the source (fewer of a short one)."""
    source = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "dps").rglob("*.py"))
    source = " ".join(re.sub(r'"\s*f?"', "", source).split())
    quoted = re.findall(r"(?<![\w*])\*([^*\n]+)\*(?![\w*])", prose(DOCS / "guide" / "errors.md"))
    assert len(quoted) > 30
    for message in quoted:
        words = [word if re.fullmatch(r"[a-z]+,?", word) else "|" for word in re.sub(r"[():]", "", message).split()]
        windows = {n: [" ".join(words[i : i + n]).rstrip(",") for i in range(len(words) - n + 1)] for n in (1, 2, 3)}
        plain = {n: [window for window in windows[n] if "|" not in window] for n in windows}
        assert any(window in source for window in plain[3] or plain[2] or plain[1]), message


# -- pages, links and pictures -------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Ids of the headings, as mkdocs makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.M):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", heading)).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", plain))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_all_rows_of_a_table_have_the_same_columns(page: Path) -> None:
    before, columns = "", 0
    for line in prose(page).splitlines():
        if line.startswith("|"):
            found = re.sub(r"`[^`]*`|\\\|", "", line).count("|")
            assert not before.startswith("|") or found == columns, f"{name_of(page)}: {line}"
            columns = found
        before = line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file.parent == DOCS / "notebooks":  # a page that the build makes of a notebook
            file = ROOT / "notebooks" / f"{file.stem}.ipynb"
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor and file.suffix == ".md" and file.parent != DOCS / "api":
            assert anchor in anchors(file), f"{name_of(page)} links to {target}"


def test_every_page_is_in_the_navigation_and_every_decision_in_its_index() -> None:
    nav = yaml.safe_load(read(ROOT / "mkdocs.yml"))["nav"]
    named: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, str):
            named.add(node)
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(child)

    walk(nav)
    decisions = {f"decisions/{file}" for file in re.findall(r"\]\((\d{4}-[^)]+)\)", read(DOCS / "decisions/index.md"))}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}  # made by the build
    assert named | decisions == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | notebooks


def test_the_gallery_has_every_example_and_every_notebook() -> None:
    text = read(DOCS / "gallery.md")
    for path in sorted((ROOT / "examples").glob("*.py")):
        assert f'--8<-- "examples/{path.name}"' in text, f"the gallery does not show examples/{path.name}"
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        assert f"](notebooks/{path.stem}.md)" in text, f"the gallery does not name notebooks/{path.name}"


def test_every_module_is_in_the_list_of_files_and_the_architecture_page_links_to_it() -> None:
    listed = re.findall(r"^- `([^`]+)`: \S", (DOCS / "files.md").read_text(), re.MULTILINE)
    modules = {name_of(path) for path in (ROOT / "dps").rglob("*.py") if path.name != "__init__.py"}
    assert sorted(listed) == sorted(modules), "docs/files.md is out of date; run python docs/building/modules.py"
    assert "](files.md)" in (DOCS / "architecture.md").read_text()


def test_every_decision_states_its_context_the_decision_and_the_consequences_and_is_in_the_index() -> None:
    index = read(DOCS / "decisions" / "index.md")
    for page in sorted((DOCS / "decisions").glob("0*.md")):
        found = [word for word in ("Context", "Decision", "Consequences") if f"**{word}.**" in read(page)]
        assert found == ["Context", "Decision", "Consequences"], f"{name_of(page)} states only {found}"
        assert f"]({page.name})" in index, f"docs/decisions/index.md does not name {page.name}"


def test_every_place_in_the_code_that_the_architecture_page_names_is_there() -> None:
    text = (DOCS / "architecture.md").read_text()
    places = re.findall(r"`(dps/[a-z_/]+\.py)::([A-Za-z_.]+)`", text)
    assert len(places) > 20
    parsed = {file: ast.parse((ROOT / file).read_text()) for file, _ in places}
    for file, name in places:
        node: ast.AST = parsed[file]
        for part in name.split("."):
            inner = [n for n in ast.iter_child_nodes(node) if getattr(n, "name", "") == part]
            assert inner, f"docs/architecture.md names {file}::{name}, which is not there"
            node = inner[0]
    for file in re.findall(r"\bdps/[a-z_/]+\.py\b", text):
        assert (ROOT / file).exists(), f"docs/architecture.md names {file}, which is not there"


DECISIONS = sorted((DOCS / "decisions").glob("0*.md"))
NAMING = [DOCS / "architecture.md", DOCS / "security.md", DOCS / "glossary.md", ROOT / "CONTRIBUTING.md", *DECISIONS]
"""Pages that name files, classes and methods of the code."""
NOT_OURS = {"None", "SECURITY.md", "breakpoint()", "state_dict()"}
ONCE = {"Look", "Shown", "Step", "Stepped"}
"""What decisions name because it is no longer there."""


@cache
def code_names() -> tuple[dict[str, set[str]], set[str]]:
    """The names within each class of dps (classes of one name are one here), and the names of all of dps."""
    classes, every = dict[str, set[str]](), set[str]()
    for path in sorted((ROOT / "dps").rglob("*.py")):
        pending: list[tuple[ast.AST, tuple[set[str], ...]]] = [(ast.parse(read(path)), (every,))]
        while pending:
            node, within = pending.pop()
            found = getattr(node, "name", None) or getattr(node, "attr", None) or getattr(node, "id", None)
            found = found or getattr(node, "arg", None)
            for names in within if isinstance(found, str) else ():
                names.add(found)
            if isinstance(node, ast.ClassDef):
                within = (*within, classes.setdefault(node.name, set()))
            pending += [(child, within) for child in ast.iter_child_nodes(node)]
    return classes, every


@pytest.mark.parametrize("page", NAMING, ids=name_of)
def test_every_file_class_and_method_that_a_page_names_is_there(page: Path) -> None:
    text = re.sub(r"^```(?!text).*?^```$", "", read(page), flags=re.S | re.M)
    spans = re.findall(r"`([^`\n]+)`", text)
    files = set(re.findall(r"\b(?:dps|tests|benchmarks)/[\w/-]+\.(?:py|txt)\b", text))
    files |= {f"dps/**/{span}" for span in spans if re.fullmatch(r"[a-z_/]+\.py", span) and not (ROOT / span).exists()}
    gone = {file for file in files if not any(ROOT.glob(file))}
    classes, known = code_names()
    for owner, name in {pair for span in spans for pair in re.findall(r"\b([A-Z]\w+)\.(\w+)", span)}:
        if name not in classes.get(owner, {name}) or owner not in known:
            gone.add(f"{owner}.{name}")
    if page.parent.name == "decisions":
        gone |= {span for span in spans if re.fullmatch(r"(?:[A-Z][a-z]+)+", span)} - known
    gone |= {span for span in spans if re.fullmatch(r"_?[a-z]+(?:_[a-z]+)*\(\)", span) and span[:-2] not in known}
    gone -= NOT_OURS | ONCE
    assert not gone, f"{name_of(page)} names {', '.join(sorted(gone))}, which are not there"


def test_the_architecture_page_names_methods() -> None:
    assert len(set(re.findall(r"`([A-Z]\w+)\.(\w+)`", read(DOCS / "architecture.md")))) > 20


def test_every_picture_is_shown_and_has_no_background_of_its_own() -> None:
    shown = "\n".join(read(page) for page in PAGES)
    for picture in sorted((DOCS / "pictures").glob("*.svg")):
        root = ElementTree.parse(picture).getroot()
        width, height = root.attrib["viewBox"].split()[2:]
        assert f"pictures/{picture.name})" in shown
        assert root.attrib["aria-label"]
        for shape in root.iter("{http://www.w3.org/2000/svg}rect"):
            assert (shape.attrib["width"], shape.attrib["height"]) != (width, height)


def test_the_words_of_strategies_and_of_the_coordinator_are_in_the_glossary() -> None:
    from dps import strategy

    text = (DOCS / "glossary.md").read_text()
    words = [*strategy.__all__, "Coordinator", "RemoteValue", "RemoteError"]
    assert not [word for word in words if not re.search(rf"\b{word}\b", text, re.IGNORECASE)]

"""The notebooks run from top to bottom, and what is committed of them is what they give."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

from notebooks import build

LONGEST_FIRST = [
    "async_vs_sync", "simulated_cluster", "rows_that_come_and_go", "in_graph", "sharding", "first_steps",
    "one_reader_four_workers", "local_steps", "one_text",
    "fit_under_three_strategies",
]  # fmt: skip
LONG = {"async_vs_sync", "simulated_cluster"}
"""They take as long as all others, so CI does not run them."""
PICTURES = {"async_vs_sync": "async-vs-sync", "simulated_cluster": "simulated-64-workers"}


def committed(name: str) -> nbformat.NotebookNode:
    return nbformat.read(Path(build.HERE) / f"{name}.ipynb", as_version=4)


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def plots(notebook: nbformat.NotebookNode) -> list[bytes]:
    return [base64.b64decode(o.data["image/png"]) for o in outputs(notebook) if "image/png" in o.get("data", {})]


def text(notebook: nbformat.NotebookNode) -> str:
    """All text that the cells gave, without the plots."""
    return "".join(o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in outputs(notebook))


def run(name: str, environment: dict[str, str]) -> nbformat.NotebookNode:
    """The committed notebook run anew. Raises for a cell that fails, an assertion among them, or takes over 60 s."""
    notebook = committed(name)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    build.run(notebook, environment)
    return notebook


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[nbformat.NotebookNode]]]:
    """The notebooks whose tests are run, three at a time: one of them mostly sleeps. As their readers run them: without
    a simulated GPU, which strategies that take all GPUs would use."""
    wanted = {str(item.name) for item in request.session.items}
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(3) as pool:
        patch.delenv("NUMBA_ENABLE_CUDASIM", raising=False)
        environment = dict(os.environ)  # copied here: pytest changes it while a kernel starts in its thread
        yield {name: pool.submit(run, name, environment) for name in LONGEST_FIRST if f"{RUNS}[{name}]" in wanted}


RUNS = "test_runs_from_top_to_bottom_with_all_its_plots_and_without_a_warning"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in LONGEST_FIRST]
)
def test_runs_from_top_to_bottom_with_all_its_plots_and_without_a_warning(
    name: str, running: dict[str, Future[nbformat.NotebookNode]]
) -> None:
    done = running[name].result()
    assert len(plots(done)) == len(plots(committed(name))) >= 3
    told = "".join(o.text for o in outputs(done) if o.get("name") == "stderr").splitlines()
    assert [line for line in told if ": the chief waits for " not in line] == []  # slow cores, and no warning


def test_every_source_has_its_notebook() -> None:
    assert build.names() == sorted(LONGEST_FIRST) == sorted(path.stem for path in build.HERE.glob("*.ipynb"))


@pytest.mark.parametrize("name", LONGEST_FIRST)
def test_is_committed_as_its_source_says_and_with_its_outputs(name: str) -> None:
    notebook, source = committed(name), build.from_source(name)
    assert [(c.cell_type, c.source) for c in notebook.cells] == [(c.cell_type, c.source) for c in source.cells]
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))  # run once, in order


@pytest.mark.parametrize("name", LONGEST_FIRST)
def test_shows_no_error_no_warning_and_no_path_of_a_machine(name: str) -> None:
    notebook = committed(name)
    assert not [o for o in outputs(notebook) if o.output_type == "error" or o.get("name") == "stderr"]
    assert not re.search(r"/(home|root|tmp|Users|work|var)/|Warning|warning|0x[0-9a-f]{6}", text(notebook))


@pytest.mark.parametrize("name", LONGEST_FIRST)
def test_asks_before_each_plot_and_checks_what_it_claims(name: str) -> None:
    cells = committed(name).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert sum(cell.source.count("?**") for cell in cells if cell.cell_type == "markdown") >= 3
    assert sum(cell.source.count("\nassert ") for cell in cells if cell.cell_type == "code") >= 4
    assert all(len(plot) < 100_000 for plot in plots(committed(name)))


@pytest.mark.parametrize(("name", "picture"), PICTURES.items())
def test_gives_the_readme_its_picture(name: str, picture: str) -> None:
    png = (build.PICTURES / f"{picture}.png").read_bytes()
    assert png in plots(committed(name))
    assert len(png) < 150_000


@pytest.mark.parametrize("name", LONGEST_FIRST)
def test_a_notebook_that_needs_images_asks_for_them_in_its_first_cell(name: str) -> None:
    first, *rest = [cell.source for cell in committed(name).cells if cell.cell_type == "code"]
    if any("images_and_labels" in source for source in (first, *rest)):  # which end here where they are missing
        assert "\nimages_file()" in first or "= images_and_labels()" in first

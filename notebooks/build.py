"""Makes the notebooks from their sources: python notebooks/build.py [NAME ...]

A source in `sources/` is Python with cells between `# %%` lines, as editors know it; prose is in `# %% [markdown]`
cells. Each is run from top to bottom and saved with its outputs. A cell that begins with `# %% picture=NAME` also gives
its plot to docs/pictures/NAME.png.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

HERE = Path(__file__).resolve().parent
PICTURES = HERE.parent / "docs" / "pictures"
CELL_TIMEOUT_S = 60
"""For a cell that hangs. Alone on two cores the longest takes 7 s; in CI, five others run beside it."""
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def names() -> list[str]:
    return sorted(source.stem for source in (HERE / "sources").glob("*.py"))


def from_source(name: str) -> nbformat.NotebookNode:
    """The notebook without outputs."""
    _, *chunks = ("\n" + (HERE / "sources" / f"{name}.py").read_text()).split("\n# %%")
    cells = []
    for number, chunk in enumerate(chunks):
        head, _, body = chunk.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            cell = new_markdown_cell("\n".join(lines))
        else:
            settings = dict(word.split("=") for word in head.split())
            cell = new_code_cell(body.strip(), metadata=settings)
        cell.id = f"{name.replace('_', '-')}-{number:02}"
        cells.append(cell)
    metadata = {"kernelspec": KERNEL, "language_info": {"file_extension": ".py", "name": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def run(notebook: nbformat.NotebookNode, environment: dict[str, str] | None = None) -> None:
    """Run all cells, in place, in this folder, with the environment variables of this process or others. Raises
    CellExecutionError and CellTimeoutError."""
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": str(HERE)}}
        client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, resources=resources, coalesce_streams=True)
        kernel = client.create_kernel_manager()
        kernel.transport, kernel.connection_file = "ipc", f"{folder}/kernel.json"  # no port for others to find
        asyncio.run(client.async_execute(env=dict(os.environ) if environment is None else environment))


def save(name: str, notebook: nbformat.NotebookNode) -> None:
    """Write the notebook, without what differs from run to run and says nothing, and its pictures."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            output.pop("transient", None)
            if "picture" in cell.metadata and "image/png" in output.get("data", {}):
                (PICTURES / f"{cell.metadata['picture']}.png").write_bytes(base64.b64decode(output.data["image/png"]))
    notebook.metadata.language_info = {"file_extension": ".py", "name": "python"}
    nbformat.validate(notebook)
    (HERE / f"{name}.ipynb").write_text(nbformat.writes(notebook) + "\n")


def main() -> None:
    for name in sys.argv[1:] or names():
        notebook = from_source(name)
        run(notebook)
        save(name, notebook)
        print(f"{name}: {len(notebook.cells)} cells", flush=True)


if __name__ == "__main__":
    main()

"""Makes the site's pages of the notebooks, with their outputs, when the site is built; keeps words of code in tables whole."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
WIDE = "---\nhide: [toc]\n---"
"""The head of a page without a table of contents, because a notebook's code is wide."""
GUIDE = ("guide/", "api/session.md", "starting.md", "compression.md")
BEHIND = ("decisions/", "files.md", "semantics-coverage.md", "performance-history.md", "architecture.md", "faults.md", "notebooks/")
"""Pages for those who ask how dps is made; what a user asks is answered elsewhere."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with the files of the site: adds a page for each notebook, and its pictures."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = page_of(json.loads(path.read_text(encoding="utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Called by mkdocs with a page's text: pages of the guide come first in the search, reasons and lists last."""
    path = page.file.src_uri
    boost = 4.0 if path.startswith(GUIDE) else 0.25 if path.startswith(BEHIND) else 1.0
    page.meta.setdefault("search", {"boost": boost})
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of a page's text."""
    return re.sub(r"<td\b.*?</td>", lambda cell: whole_words(cell[0]), html, flags=re.S)


def whole_words(cell: str) -> str:
    """A table's cell in which each word of code is an element of its own, because browsers break lines after a hyphen.

    The style sheet keeps these elements in one line; a line may still end at a space."""
    return re.sub(
        r"<code>([^<]*)</code>",
        lambda code: "<code>" + re.sub(r"\S+", r"<span>\g<0></span>", code[1]) + "</code>",
        cell,
    )


def page_of(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the pictures that the page shows, by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(linked(source))
        elif cell["cell_type"] == "code":
            parts.append(fenced(source, "python"))
            for output in cell.get("outputs", []):
                parts += shown(output, name, pictures)
    note = f"*The notebook `notebooks/{name}.ipynb`, with the outputs of one run.*"
    return "\n\n".join([WIDE, *parts, note]) + "\n", pictures


def linked(markdown: str) -> str:
    """Adapt a notebook's links, which start from its own folder, to its page in docs/notebooks."""
    markdown = markdown.replace("](../docs/", "](../").replace(".ipynb)", ".md)")
    return re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](../gallery.md#\1)", markdown)


def shown(output: dict[str, Any], name: str, pictures: dict[str, bytes]) -> list[str]:
    """An output of a cell: a picture, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}-{len(pictures)}.png"
        pictures[file] = base64.b64decode("".join(data["image/png"]))
        return [f"![What the cell above draws]({file})"]
    text = "".join(output.get("text") or data.get("text/plain") or "")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip()
    return [fenced(text, "text")] if text else []


def fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"

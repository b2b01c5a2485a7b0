"""The site needs no network, and its search works from a folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = (ROOT / "mkdocs.yml").read_text()


def test_what_makes_the_search_work_from_a_folder_is_our_own() -> None:
    assert re.search(r"^  - offline", SETTINGS, re.M)
    found = re.search(r"polyfills: \[(\S+)\]", SETTINGS)
    assert found is not None and (ROOT / "docs" / found[1]).is_file()
    assert "iframe-worker" in found[1]  # a name without it, and the plugin adds its own from elsewhere


@pytest.mark.slow
def test_no_page_of_the_site_loads_anything_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 50 and (tmp_path / "search" / "search_index.js").is_file()
    for page in pages:
        text = page.read_text()
        assert "assets/iframe-worker.js" in text
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text)
        elsewhere = [tag for tag in tags if re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)]
        assert not elsewhere, f"{page.name}: {elsewhere[:3]}"

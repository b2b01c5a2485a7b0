"""Puts the page of a run together: HTML, style and script in one file that loads nothing, with or without data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources
from typing import Any

POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'"
)
"""A browser runs the page's own script and style, known by their digests, and asks nobody but this server."""
NOT_IN_PAGES = "; frame-ancestors 'none'"
"""What a policy may say in a header alone."""


def policy() -> str:
    """The content security policy of the page, as a header."""
    return _policy() + NOT_IN_PAGES


def live_page() -> str:
    """The page that asks this server for the run's figures."""
    return _filled("")


def saved_page(values: dict[str, Any]) -> str:
    """The page with the figures of a run in it, for a file that opens without a server."""
    return _filled(script_data(values))


def script_data(values: dict[str, Any]) -> str:
    """Values as JSON that may stand in a script element: no text of a run can end the element."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def forward_page(path: str) -> str:
    """A page that goes on to a path of the same server. A redirection would not do: a browser leaves strict cookies out
    of a request that began on another site, such as a terminal in a web page."""
    return (
        '<!doctype html><meta charset="utf-8"><title>dps watch</title>'
        f'<meta http-equiv="refresh" content="0; url={html.escape(path)}">'
    )


@cache
def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _policy() -> str:
    return POLICY.format(script=_digest("page.js"), style=_digest("page.css"))


def _digest(name: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(_part(name).encode()).digest()).decode()}'"


def _filled(data: str) -> str:
    made = _part("page.html")
    parts = {"POLICY": html.escape(_policy()), "STYLE": _part("page.css"), "SCRIPT": _part("page.js"), "DATA": data}
    before, *rest = made.split("@@")  # text, name, text, name, text: what is put in is not looked at again
    return before + "".join(parts[part] if number % 2 == 0 else part for number, part in enumerate(rest))

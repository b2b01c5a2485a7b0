"""Commands as lists of words, and `{{ name }}` in texts. A value stays in its word whatever it contains."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from dps.flags import nearest
from dps.launch.experiment.nodes import Node, Place

NAME = re.compile(r"\{\{\s*([\w-]+)\s*\}\}")
MARK = re.compile(r"\x00([\w-]+)\x00")
"""A name in a text that a shell's rules have split; no file contains these characters."""


def split(node: Node) -> tuple[str, ...]:
    """The words of a command: a text, split as a shell does and never given to one, or a list of words. `{{ name }}`
    stays as it is written, without spaces."""
    if isinstance(node.value, list):
        for word in node.value:
            if isinstance(word.value, list | dict) or word.value is None:
                word.fail(f"got {word.shown}, wanted a word")
        words = [_marked(word.text) for word in node.value]
    elif isinstance(node.value, dict) or node.value is None:
        node.fail(f"got {node.shown}, wanted a program and its arguments, as a text or a list")
    else:
        try:
            words = shlex.split(_marked(node.text))
        except ValueError as error:
            node.fail(f"cannot be split as a shell does: {str(error).lower()}")
    if not words:
        node.fail("got no words, wanted a program and its arguments")
    return tuple(MARK.sub(r"{{\1}}", word) for word in words)


def _marked(text: str) -> str:
    return NAME.sub("\x00\\1\x00", text)


def fill(text: str, values: Mapping[str, str]) -> str:
    """A text with the values of its names. KeyError for a name without one."""
    return NAME.sub(lambda found: values[found[1]], text)


def check_names(node: Node, text: str, known: Sequence[str]) -> None:
    """Raise the error for the first name in a node, or below it, that has no value. `text`: that of the whole file."""
    if isinstance(node.value, list | dict):
        for below in node.value.values() if isinstance(node.value, dict) else node.value:
            check_names(below, text, known)
        return
    for found in NAME.finditer(node.text):
        if found[1] not in known:
            why = f"{node.path}: no parameter {found[1]!r}; {nearest(found[1], known)}"
            raise _place(node, found[0], text).error(why)


def _place(node: Node, name: str, text: str) -> Place:
    """Where a name of a node stands in the file; the node's own place if its text was joined from several lines."""
    offset = text.find(name, node.place.offset)
    if offset < 0:
        return node.place
    begin = text.rfind("\n", 0, offset) + 1
    return Place(node.place.file, text.count("\n", 0, offset) + 1, offset - begin + 1, offset)

"""Reads a YAML or JSON file into values that know their line and column, so that errors can name them."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

from dps.errors import ConfigError, MissingExtra
from dps.process.record import made, record

DEEPEST = 20
"""A file is not nested deeper than this."""


@record
class FilePosition:
    """A position in a file; lines and columns count from 1. `offset`: from the start of the file's text."""

    file: str
    line: int
    column: int
    offset: int = 0

    def error(self, message: str) -> ConfigError:
        """The error for what stands here."""
        return ConfigError(f"{self.file}:{self.line}:{self.column}: {message}")


@record
class LocatedValue:
    """A value with its place. `value`: a scalar, a list of nodes, or a dict of nodes by their keys. `text`: a scalar as
    the file has it. `path`: the keys that lead to it, such as "roles.ps.count"."""

    value: Any
    place: FilePosition
    text: str = ""
    path: str = ""
    keys: dict[str, FilePosition] = made(default_factory=dict)
    """The position of each key of a dict."""

    def fail(self, message: str) -> NoReturn:
        """Raise the error for this value."""
        raise self.place.error(f"{self.path}: {message}" if self.path else message)

    @property
    def shown(self) -> str:
        """The value, for messages."""
        if isinstance(self.value, dict):
            return f"keys {', '.join(self.value)}" if self.value else "no keys"
        return "a list" if isinstance(self.value, list) else repr(self.text) if self.text else "nothing"


def read(file: str) -> tuple[LocatedValue, str]:
    """The value in a .yaml, .yml or .json file, and its text. Raises ConfigError with line and column for bad text."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise MissingExtra(
            f"{file}: an experiment file needs PyYAML, which is not installed; pip install 'dps[yaml]'"
        ) from None
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {getattr(error, 'strerror', None) or error}; wanted a file in YAML") from None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise FilePosition(file, 1, 1).error("the file is empty; dps init writes one to begin with")
        return NodeReader(file, loader, yaml).node(root, ""), text
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = FilePosition(file, mark.line + 1, mark.column + 1) if mark is not None else FilePosition(file, 1, 1)
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        line = text.splitlines()[mark.line] if mark is not None and mark.line < len(text.splitlines()) else ""
        hint = "; inside { } a text with {{ }} needs quotes" if "{{" in line else ""
        raise place.error(f"got no YAML: {why}{hint}") from None


class NodeReader:
    """Turns the nodes of PyYAML into ours."""

    def __init__(self, file: str, loader: Any, yaml: Any) -> None:
        self._file, self._loader, self._yaml = file, loader, yaml

    def node(self, found: Any, path: str, depth: int = 0) -> LocatedValue:
        """A node and those below it."""
        mark = found.start_mark
        place = FilePosition(self._file, mark.line + 1, mark.column + 1, mark.index)
        if depth > DEEPEST:
            raise place.error(f"nested deeper than {DEEPEST} levels; is something a part of itself?")
        if isinstance(found, self._yaml.MappingNode):
            return self._mapping(found, place, path, depth)
        if isinstance(found, self._yaml.SequenceNode):
            return LocatedValue([self.node(each, path, depth + 1) for each in found.value], place, path=path)
        try:
            value = self._loader.construct_object(found)
        except ValueError:  # such as the date 2026-02-31
            value = found.value
        return LocatedValue(value, place, "" if value is None else found.value, path)

    def _mapping(self, found: Any, place: FilePosition, path: str, depth: int) -> LocatedValue:
        values: dict[str, LocatedValue] = {}
        keys: dict[str, FilePosition] = {}
        self._loader.flatten_mapping(found)
        for key, value in found.value:
            at = FilePosition(self._file, key.start_mark.line + 1, key.start_mark.column + 1, key.start_mark.index)
            if not isinstance(key, self._yaml.ScalarNode):
                raise at.error("a key is text; a value that begins with {{ needs quotes around it")
            if key.value in values:
                raise at.error(f"{key.value!r} is here twice")
            below = f"{path}.{key.value}" if path else key.value
            values[key.value], keys[key.value] = self.node(value, below, depth + 1), at
        return LocatedValue(values, place, path=path, keys=keys)

"""The sources of examples: arrays in memory, a generator, or files that a function reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dps.data.arrays import Arrays
from dps.data.stage import Block, State, check_stage
from dps.errors import ConfigError, DataError, DpsError


class ArraySource:
    """The rows of arrays, in their order."""

    name = "from_arrays"

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.numbers = arrays, {"next": arrays.rows, "rows": None}

    def open_cursor(self, epoch: int, at: State | None) -> ArrayCursor:
        at = check_stage(at, self)
        if at is not None and at["rows"] != self.arrays.rows:
            raise ConfigError(f"position: got one of arrays with {at['rows']} rows, these have {self.arrays.rows}")
        return ArrayCursor(self.arrays.rows, 0 if at is None else at["next"])


class ArrayCursor:
    """Row numbers, rising."""

    def __init__(self, rows: int, first: int) -> None:
        self._rows, self._next = rows, first

    def read_block(self, count: int) -> Block:
        first, self._next = self._next, min(self._rows, self._next + count)
        return np.arange(first, self._next)

    def state(self) -> State:
        return {"stage": ArraySource.name, "rows": self._rows, "next": self._next}

    def close(self) -> None:
        """Does nothing, because no file is open."""


class GeneratorSource:
    """Examples that a function's generator yields."""

    name = "from_generator"
    arrays = None
    numbers: Mapping[str, int | None] = {"next": None}

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self._function = function

    def open_cursor(self, epoch: int, at: State | None) -> GeneratorCursor:
        at = check_stage(at, self)
        return GeneratorCursor(self._function, 0 if at is None else at["next"])


class GeneratorCursor:
    """The generator, started again and read up to the cursor's position."""

    def __init__(self, function: Callable[[], Iterable[Any]], first: int) -> None:
        self._what = f"from_generator: {function_name(function)}"
        self._next = 0
        self._error: DpsError | None = None
        """What the generator has raised. It is over then, and its examples are not."""
        self._examples = call_guarded(lambda: iter(function()), self._what, self._progress_text)
        while self._next < first and len(self.read_block(first - self._next)):
            pass
        check_long_enough(self._what, self._next, first)

    def _progress_text(self) -> str:
        return f" after {self._next} examples"

    def read_block(self, count: int) -> Block:
        if self._error is not None:
            raise self._error
        try:
            found = call_guarded(lambda: list(itertools.islice(self._examples, 1)), self._what, self._progress_text)
        except DpsError as error:
            self._error = error
            raise
        self._next += len(found)
        return found

    def state(self) -> State:
        return {"stage": GeneratorSource.name, "next": self._next}

    def close(self) -> None:
        close_examples(self._examples)


class FileSource:
    """The examples in files, file after file."""

    name = "from_files"
    arrays = None

    def __init__(self, paths: Sequence[str], read: Callable[[str], Iterable[Any]]) -> None:
        self._paths, self._read = list(paths), read
        self.numbers = {"file": len(self._paths), "files": None, "example": None}

    def open_cursor(self, epoch: int, at: State | None) -> FileCursor:
        at = check_stage(at, self)
        if at is not None and at["files"] != len(self._paths):
            raise ConfigError(f"position: got one of {at['files']} files, this dataset has {len(self._paths)}")
        file, skipped = (0, 0) if at is None else (at["file"], at["example"])
        return FileCursor(self._paths, self._read, file, skipped)


class FileCursor:
    """Reads one file at a time, opened when its first example is wanted."""

    def __init__(self, paths: list[str], read: Callable[[str], Iterable[Any]], file: int, skipped: int) -> None:
        self._paths, self._read, self._file, self._skipped = paths, read, file, skipped
        self._example = 0
        self._open: Iterator[Any] | None = None

    def _file_text(self) -> str:
        return f"from_files: {function_name(self._read)}({self._paths[self._file]!r})"

    def _progress_text(self) -> str:
        return f" after {self._example} examples"

    def read_block(self, count: int) -> Block:
        while self._file < len(self._paths):
            if self._open is None:
                self._open_file()
            found = self._read_example()
            if found:
                return found
            self._file, self._example, self._open = self._file + 1, 0, None
        return []

    def _open_file(self) -> None:
        path = self._paths[self._file]
        self._open = call_guarded(lambda: iter(self._read(path)), self._file_text(), self._progress_text)
        skipped, self._skipped = self._skipped, 0
        while self._example < skipped and self._read_example():
            pass
        check_long_enough(self._file_text(), self._example, skipped)

    def _read_example(self) -> list[Any]:
        examples = self._open
        assert examples is not None
        found: list[Any] = call_guarded(
            lambda: list(itertools.islice(examples, 1)), self._file_text(), self._progress_text
        )
        self._example += len(found)
        return found

    def state(self) -> State:
        at = max(self._example, self._skipped)
        return {"stage": FileSource.name, "files": len(self._paths), "file": self._file, "example": at}

    def close(self) -> None:
        close_examples(self._open)


def check_long_enough(what: str, there: int, skipped: int) -> None:
    """Raise ConfigError if a source has fewer examples than a position says were read."""
    if there < skipped:
        raise ConfigError(f"position: got one after {skipped} examples, and {what} gives {there}")


def close_examples(examples: object) -> None:
    """Close a generator; other iterators have nothing to close."""
    close = getattr(examples, "close", None)
    if close is not None:
        close()


def function_name(function: Callable[..., Any]) -> str:
    """A function's name, for messages."""
    return getattr(function, "__qualname__", None) or type(function).__name__


def call_guarded(call: Callable[[], Any], what: str, told: Callable[[], str]) -> Any:
    """The result of `call`. Its errors become a DataError of one line; those of dps are raised as they are."""
    try:
        return call()
    except DpsError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise DataError(f"{what} raised {type(error).__name__}{told()}: {text}") from error

"""The road of a gradient is one: each of its stages has one door in the code, and few kinds.

See "The ordinary way in ten lines" in docs/architecture.md. The tests read the syntax tree of `dps/`. A failure names
file and line of each place, so that one sees which of them is the second door.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.rules

ROOT = Path(__file__).parents[1]
ON_PS = "dps/ps"
IN_CLIENT = "dps/client"


@cache
def sources() -> dict[str, str]:
    """The text of each file of dps/, by its path in the repository."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "dps").rglob("*.py"))}


@cache
def tree(path: str) -> ast.Module:
    return ast.parse(sources()[path])


def found(room: str, wanted: Callable[[ast.AST], bool], word: str = "") -> list[str]:
    """Where a room has what is wanted, as "FILE:LINE CLASS.FUNCTION". `word`: what only files with it can have."""
    places = []
    for path, text in sources().items():
        if path.startswith(f"{room}/") and word in text:
            places += [f"{path}:{line} {owner}" for line, owner in _within(tree(path), "", wanted)]
    return places


def _within(node: ast.AST, owner: str, wanted: Callable[[ast.AST], bool]) -> Iterator[tuple[int, str]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.ClassDef | ast.FunctionDef)
        inside = f"{owner}.{child.name}".strip(".") if isinstance(child, ast.ClassDef | ast.FunctionDef) else owner
        if wanted(child):
            yield child.lineno, inside  # type: ignore[attr-defined]
        yield from _within(child, inside if named else owner, wanted)


def owners(places: list[str]) -> list[str]:
    return [place.split(" ", 1)[1] for place in places]


def called(node: ast.AST, name: str) -> bool:
    """Whether a node calls something of that name, a method too."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    return (function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")) == name


def assigned(node: ast.AST, name: str) -> bool:
    """Whether a node assigns an attribute of that name."""
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)


def kinds(room: str, base: str) -> list[str]:
    """The classes of a room that are a `base`, directly or not."""
    bases: dict[str, tuple[str, set[str]]] = {}
    for path in sources():
        for node in ast.walk(tree(path)) if path.startswith(f"{room}/") else ():
            if isinstance(node, ast.ClassDef):
                names = {getattr(each, "id", getattr(each, "attr", "")) for each in node.bases}
                bases[node.name] = f"{path}:{node.lineno} {node.name}", names
    named = {base}
    while more := {name for name, (_, of) in bases.items() if of & named} - named:
        named |= more
    return [place for name, (place, _) in bases.items() if name in named - {base}]


def test_a_push_has_one_handler_on_the_ps() -> None:
    handlers = found("dps", lambda node: isinstance(node, ast.FunctionDef) and node.name == "on_Push", "on_Push")
    assert owners(handlers) == ["PsActor.on_Push"], handlers
    looks = found(ON_PS, lambda node: called(node, "isinstance") and "Push" in ast.unparse(node).split("(")[1].split())
    assert not looks, f"these look whether a message is a push: {looks}"
    receivers = found(ON_PS, lambda node: called(node, "receive"))
    assert owners(receivers) == ["PsActor.on_Push"], receivers


def test_the_handler_of_a_push_has_fewer_than_20_lines() -> None:
    found = tree("dps/ps/server.py")
    (handler,) = [n for n in ast.walk(found) if isinstance(n, ast.FunctionDef) and n.name == "on_Push"]
    lines = (handler.end_lineno or 0) - handler.body[0].lineno + 1
    assert lines < 20, f"dps/ps/server.py:{handler.lineno}: on_Push has {lines} lines"


def test_drafts_have_one_opener() -> None:
    makers = found(ON_PS, lambda node: called(node, "Draft"))
    assert owners(makers) == ["Store.open_draft"], makers


def test_what_is_current_has_one_writer() -> None:
    index = found(ON_PS, lambda node: assigned(node, "current"))
    copies = "DeviceMemory.refresh"  # the values are on a GPU, and buffers are copies of one version for readers
    assert set(owners(index)) == {"ArenaMemory.__init__", "ArenaMemory.wrote", copies}, index
    calls = found(ON_PS, lambda node: called(node, "wrote") and _on_memory(node))
    assert owners(calls) == ["Store.end_draft"], calls
    version = [place for place in found(f"{ON_PS}/store", lambda node: assigned(node, "counter")) if "Store." in place]
    assert set(owners(version)) == {"Store.__init__", "Store.end_draft"}, version
    outside = found(ON_PS, lambda node: assigned(node, "counter") and "store" in ast.unparse(node.value))  # type: ignore[attr-defined]
    assert not outside, f"these change a store's version from outside: {outside}"


def _on_memory(call: ast.AST) -> bool:
    """Whether a call is of a method of an arena's memory; a draft's listener has a method `wrote`, too."""
    function = call.func if isinstance(call, ast.Call) else None
    return isinstance(function, ast.Attribute) and ast.unparse(function.value).startswith("memory")


def test_a_draft_becomes_current_in_one_publication() -> None:
    def publishes(node: ast.AST) -> bool:
        return called(node, "end_draft") and any(
            each.arg == "published" and ast.unparse(each.value) == "True"
            for each in node.keywords  # type: ignore[attr-defined]
        )

    places = found(ON_PS, publishes)
    assert owners(places) == ["Draft.publish"], places


def test_the_kinds_are_few() -> None:
    for what, most, there in (
        ("cargo", 6, kinds(IN_CLIENT, "Cargo")),
        ("intake", 3, kinds(ON_PS, "Intake")),
        ("draft", 3, kinds(ON_PS, "Draft")),
    ):
        assert len(there) <= most, f"{len(there)} kinds of {what}, at most {most} are allowed: {there}"
    assert kinds(IN_CLIENT, "Cargo") and kinds(ON_PS, "Intake"), "the base classes have other names by now"


def test_nobody_asks_which_update_mode_it_is() -> None:
    """What differs between modes is in their classes: `dps/client/modes.py`, `dps/client/local.py`, `dps/ps/modes/`."""
    own = {"dps/client/modes.py", "dps/client/local.py"}

    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr in {"sync", "bounded", "local"} and ast.unparse(node.value).endswith(("agreed", "mode"))
        if isinstance(node, ast.Subscript):
            return ast.unparse(node.slice) == "'mode'"
        looks = called(node, "isinstance") or called(node, "type")
        return looks and "mode" in ast.unparse(node).lower().replace("model", "")

    for room in (IN_CLIENT, ON_PS):
        places = [place for place in found(room, asks) if place.split(":")[0] not in own]
        assert not places, f"these ask which update mode it is: {places}"
    assert found(IN_CLIENT, asks), "the table of the modes in dps/client/modes.py is found"


def test_a_session_has_one_class() -> None:
    changed = found("dps", lambda node: assigned(node, "__class__"), "__class__")
    assert not changed, f"these make an object one of another class: {changed}"
    assert kinds("dps", "Session") == []
    (session,) = [n for n in tree("dps/client/session.py").body if isinstance(n, ast.ClassDef)]
    assert session.bases == [], "its parts are attributes; a reader finds its calls in one file"

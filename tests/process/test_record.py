"""Records: what people expect of frozen data classes, without what those cost at import."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from dps.process.record import as_dict, fields_of, made, record, replace


@record
class Point:
    """Where."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 2
    marks: list[int] = made(default_factory=list)

    @functools.cached_property
    def doubled(self) -> int:
        return 2 * self.x


@record
class Named(Point):
    name: str = ""

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x must be 0 or more")


def test_fields_are_taken_by_place_and_by_name_and_have_their_defaults() -> None:
    assert fields_of(Named) == ("x", "y", "marks", "name")
    assert as_dict(Named(1, name="a")) == {"x": 1, "y": 2, "marks": [], "name": "a"}
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]


def test_the_parameters_are_shown_before_an_instance_is_made() -> None:
    @record
    class Fresh(Named):
        more: int = 3

        def __call__(self, angle: float) -> None: ...

    assert str(inspect.signature(Fresh)).startswith("(x, y=2, marks=") and "more=3" in str(inspect.signature(Fresh))
    assert list(inspect.signature(Fresh(1)).parameters) == ["angle"]
    assert list(inspect.signature(type("Own", (Fresh,), {"__init__": lambda self, z: None})).parameters) == ["z"]


def test_what_is_wrapped_around_the_constructor_before_its_first_use_stays() -> None:
    @record
    class Fresh:
        x: int

    calls, init = [], Fresh.__init__

    def counted(self: Any, *args: Any, **named: Any) -> None:
        calls.append(args)
        init(self, *args, **named)

    Fresh.__init__ = counted  # type: ignore[method-assign]
    assert [Fresh(x).x for x in range(3)] == [0, 1, 2] and len(calls) == 3


def test_a_default_that_is_made_belongs_to_one_instance() -> None:
    one, other = Point(1), Point(1)
    one.marks.append(5)
    assert other.marks == []


def test_nothing_can_be_set_or_deleted() -> None:
    point: Any = Point(1)
    with pytest.raises(AttributeError, match=r"Point\.x cannot be changed; make another one"):
        point.x = 2
    with pytest.raises(AttributeError):
        del point.x
    with pytest.raises(AttributeError):
        point.z = 1
    assert point.x == 1 and point.doubled == 2


def test_equal_records_are_of_one_class_with_equal_fields() -> None:
    assert Point(1) == Point(1, 2) and Point(1) != Point(2) and Point(1) != Named(1)
    assert hash(Point(1, 2, ())) == hash(Point(1, 2, ()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))


def test_a_copy_may_differ_and_is_checked_as_every_one() -> None:
    assert replace(Named(1, name="a"), x=3) == Named(3, name="a")
    with pytest.raises(ValueError, match="x must be 0 or more"):
        replace(Named(1), x=-1)
    assert copy.copy(Point(1)) == pickle.loads(pickle.dumps(Point(1))) == copy.deepcopy(Point(1)) == Point(1)
    assert repr(Point(1)) == "Point(x=1, y=2, marks=[])"


def test_a_record_can_be_matched_by_place() -> None:
    match Point(1, 5):
        case Point(x, y):
            assert (x, y) == (1, 5)


FROZEN = """
import sys, dataclasses, dps, dps.role, dps.ps.server, dps.chief.server
dps.Session
for module in [module for name, module in sys.modules.items() if name.startswith("dps.")]:
    for cls in [each for each in vars(module).values() if isinstance(each, type) and dataclasses.is_dataclass(each)]:
        if cls.__module__ == module.__name__ and cls.__dataclass_params__.frozen:
            print(cls.__module__ + "." + cls.__name__)
"""
NO_RECORDS = {
    "dps.checkpoint.manifest.Manifest": "computes one of its fields, and ignores one when it is compared",
    "dps.checkpoint.manifest.SavedPart": "one for each part of 100,000 variables: slots save memory",
    "dps.checkpoint.manifest.SavedVariable": "as SavedPart",
    "dps.kernels.jit.CompileCounts": "in a room where nothing of dps.process is imported",
    "dps.kernels.optimizers._Binding": "as CompileCounts",
}
"""Frozen dataclasses that tasks load at their start, and why they are no records."""


def test_immutable_data_that_a_task_loads_at_its_start_is_a_record() -> None:
    found = subprocess.run([sys.executable, "-c", FROZEN], stdout=-1, text=True, check=True).stdout.split()
    assert set(found) <= set(NO_RECORDS)

"""Records are to their users what frozen dataclasses with slots are."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from dps.record import as_dict, constructor, defaults, fields_of, made, record, replace


@record
class Point:
    """A place."""

    name: ClassVar[str] = "point"
    x: int
    y: int = 2
    tags: list[str] = made(default_factory=list)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is below 0")

    @functools.cached_property
    def far(self) -> int:
        return self.x + self.y


@dataclass(frozen=True, slots=True)
class Same:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)


@record
class Deep(Point):
    z: int = 5
    y: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "z", 2 * self.z)


@record
class Nothing: ...


@record
class One:
    value: object


def test_fields_are_arguments_in_order_with_their_defaults() -> None:
    for made_of in (Point(1), Point(x=1), Point(1, 2, []), Point(1, tags=[])):
        assert (made_of.x, made_of.y, made_of.tags) == (1, 2, [])
    assert Point(1).tags is not Point(1).tags
    assert fields_of(Point) == Point.__match_args__ == ("x", "y", "tags") and Point.name == "point"
    assert defaults(Point)["y"] == 2 and "x" not in defaults(Point)
    assert list(inspect.signature(constructor(Point)).parameters) == ["self", "x", "y", "tags"]
    assert Point.__doc__ == "A place." and Point.__qualname__ == "Point" and Point.__module__ == __name__
    match Point(4, 5):
        case Point(x, y):
            assert (x, y) == (4, 5)


@pytest.mark.parametrize("wrong", [(), (1, 2, [], 4)])
def test_arguments_that_do_not_fit_are_refused_as_a_dataclass_does(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError) as own:
        Point(*wrong)
    with pytest.raises(TypeError) as theirs:
        Same(*wrong)
    assert str(own.value) == str(theirs.value).replace("Same", "Point")
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="x is below 0"):
        Point(-1)


def test_nothing_of_an_instance_can_be_changed_or_added() -> None:
    point = Point(1)
    for name in ("x", "other"):
        with pytest.raises(AttributeError, match=f"Point.{name} cannot be changed"):
            setattr(point, name, 3)
    with pytest.raises(AttributeError, match="cannot be changed"):
        del point.x
    assert point == Point(1) and not hasattr(One(1), "__dict__")


def test_equal_values_of_one_class_are_equal_and_hash_alike() -> None:
    assert One((1, 2)) == One((1, 2)) != One((1, 3)) and hash(One((1, 2))) == hash(One((1, 2)))
    same: object = Same(1)
    assert Point(1) == Point(1) != same and Nothing() == Nothing() and {Nothing(): 1}[Nothing()] == 1
    assert Point(1) != Deep(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))  # it has a list


def test_they_print_as_dataclasses_do() -> None:
    assert repr(Point(1)) == repr(Same(1)).replace("Same", "Point") == "Point(x=1, y=2, tags=[])"
    assert repr(Nothing()) == "Nothing()"


def test_a_record_that_extends_another_has_its_fields_first_and_may_give_them_other_defaults() -> None:
    deep = Deep(1)
    assert fields_of(Deep) == ("x", "y", "tags", "z") and as_dict(deep) == {"x": 1, "y": 3, "tags": [], "z": 10}
    assert Point(1).y == 2 and isinstance(deep, Point) and deep.far == 4
    with pytest.raises(ValueError, match="x is below 0"):
        Deep(-1)


def test_a_class_without_the_decorator_that_extends_a_record_is_made_as_it_is() -> None:
    class Plain(One):
        pass

    assert Plain(3).value == 3 and One(4).value == 4


def test_copies_have_the_same_values_and_what_is_replaced() -> None:
    point = Point(1, 7, ["a"])
    assert replace(point, y=8) == Point(1, 8, ["a"]) and point.y == 7
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
    assert copy.deepcopy(point).tags is not point.tags
    with pytest.raises(ValueError, match="x is below 0"):
        replace(point, x=-1)


def test_a_property_is_cached_in_each_instance() -> None:
    point = Point(1)
    assert point.far == 3 and point.__dict__ == {"far": 3}

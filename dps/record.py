"""Frozen classes of plain data, made in a tenth of the time that `dataclasses` takes.

A dataclass compiles six methods when its class is made, 0.7 ms: with all of dps's messages and settings half of the
time of an import. A record is the same to its users and to type checkers (PEP 681), but has its methods from here, and
compiles its constructor when its first instance is made.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast, dataclass_transform

T = TypeVar("T")


class _Made:
    """Stands for a default that each instance has of its own."""

    __slots__ = ("factory",)

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory


def made(*, default_factory: Callable[[], T]) -> T:
    """The default of a field that is made anew for each instance."""
    return cast(T, _Made(default_factory))


@dataclass_transform(frozen_default=True, field_specifiers=(made,))
def record(cls: type[T]) -> type[T]:
    """A class decorator: as `@dataclass(frozen=True, slots=True)`, and instances can be copied.

    Fields are what is annotated in the class, after those of a record that it extends; what is annotated as a ClassVar
    is none. Where a class caches properties, its instances have room for them.
    """
    namespace = dict(cls.__dict__)
    own = [name for name, hint in cls.__annotations__.items() if not str(hint).startswith(("ClassVar", "typing.Class"))]
    inherited = getattr(cls, "__match_args__", ())
    names = (*inherited, *(name for name in own if name not in inherited))
    values = {name: namespace.pop(name) for name in own if name in namespace}
    for gone in ("__dict__", "__weakref__"):
        namespace.pop(gone, None)
    slots = [name for name in own if name not in inherited]
    if any(isinstance(value, functools.cached_property) for value in namespace.values()):
        slots.append("__dict__")
    namespace["__slots__"] = tuple(slots)
    namespace["__match_args__"] = names
    namespace["__record_defaults__"] = {**getattr(cls, "__record_defaults__", {}), **values}
    namespace["__record_values__"] = staticmethod(_getter(names))
    for name, method in _METHODS.items():
        namespace.setdefault(name, method)
    metaclass: Any = type(cls)
    final = metaclass(cls.__name__, cls.__bases__, namespace)
    final.__qualname__ = cls.__qualname__
    if "__init__" not in namespace:
        final.__init__ = _first_call(final)
    for value in namespace.values():
        for cell in getattr(value, "__closure__", None) or ():
            if cell.cell_contents is cls:  # what `super()` in a method stands for
                cell.cell_contents = final
    return cast(type[T], final)


def defaults(cls: type) -> Mapping[str, Any]:
    """The defaults of a record's fields, by name."""
    return cast(Mapping[str, Any], cls.__record_defaults__)  # type: ignore[attr-defined]  # of records only


def fields_of(cls: type) -> tuple[str, ...]:
    """The names of a record's fields, in order."""
    return cast(tuple[str, ...], cls.__match_args__)  # type: ignore[attr-defined]  # of records only


def as_dict(instance: Any) -> dict[str, Any]:
    """A record's values by their names; what is inside them stays as it is."""
    return dict(zip(instance.__match_args__, instance.__record_values__(instance), strict=True))


def replace(instance: T, **changes: Any) -> T:
    """A copy with other values in some fields."""
    return type(instance)(**{**as_dict(instance), **changes})


def constructor(cls: type) -> Callable[..., None]:
    """The constructor with its arguments, for who looks at them."""
    own = getattr(cls.__init__, "of_record", None)  # type: ignore[misc]
    if own is not None:
        own.__init__ = _compiled(own)
    return cast(Callable[..., None], cls.__init__)  # type: ignore[misc]


def _first_call(cls: type) -> Callable[..., None]:
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        constructor(cls)(self, *values, **named)

    __init__.of_record = cls  # type: ignore[attr-defined]
    return __init__


def _compiled(cls: type) -> Callable[..., None]:
    """`__init__` with the fields as arguments; each is put straight into its slot."""
    names, given = fields_of(cls), defaults(cls)
    scope: dict[str, Any] = {"_made": _Made}
    arguments, lines = ["self"], []
    for name in names:
        scope[f"_put_{name}"] = getattr(cls, name).__set__
        value = name
        if name in given:
            scope[f"_default_{name}"] = default = given[name]
            arguments.append(f"{name}=_default_{name}")
            if isinstance(default, _Made):
                value = f"{name} if {name} is not _default_{name} else _default_{name}.factory()"
        else:
            arguments.append(name)
        lines.append(f" _put_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n" + "\n".join(lines or [" pass"]), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


# -- the methods of all records ---------------------------------------------------------------------------------------


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda instance: (getattr(instance, names[0]),)) if names else lambda instance: ()


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in as_dict(self).items())})"


def _eq(self: Any, other: object) -> Any:
    values: Callable[[Any], tuple[Any, ...]] = self.__record_values__
    return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(self.__record_values__(self))


def _reduce(self: Any) -> Any:
    return type(self), self.__record_values__(self)


def _frozen(self: Any, name: str, *_: Any) -> NoReturn:
    raise AttributeError(f"{type(self).__name__}.{name} cannot be changed; make another one, with dps.record.replace")


_METHODS = {
    "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__reduce__": _reduce,
    "__setattr__": _frozen, "__delattr__": _frozen,
}  # fmt: skip

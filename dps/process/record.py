"""`record`: frozen classes of plain data, like dataclasses but cheaper to import.

A dataclass compiles six methods when its class is made, which takes 0.7 ms; for all of dps's settings this was a third
of the import time. A record is the same for its users and for type checkers (PEP 681), but shares its methods. Only its
constructor is compiled, when the first instance is made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast, dataclass_transform

T = TypeVar("T")


class _Made:
    """A default that is made anew for each instance."""

    __slots__ = ("factory",)

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory


def made(*, default_factory: Callable[[], T]) -> T:
    """Declare a field's default that is made anew for each instance."""
    return cast(T, _Made(default_factory))


@dataclass_transform(frozen_default=True, field_specifiers=(made,))
def record(cls: type[T]) -> type[T]:
    """A class decorator, like `@dataclass(frozen=True)`.

    Fields are the annotated names of the class, after those of a record that it extends. ClassVars are not fields.
    """
    own = own_fields(cls)
    inherited = fields_of(cls)
    names = (*inherited, *(name for name in own if name not in inherited))
    given = {**defaults(cls), **{name: cls.__dict__[name] for name in own if name in cls.__dict__}}
    methods: dict[str, Any] = {
        "__match_args__": names, "__record_defaults__": given, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash,
        "__setattr__": _frozen, "__delattr__": _frozen,
    }  # fmt: skip
    if "__init__" not in cls.__dict__:
        construct(cls, names, given, checked=hasattr(cls, "__post_init__"))
    for name, method in methods.items():
        if cls.__dict__.get(name) is None:
            setattr(cls, name, method)
    return cls


def own_fields(cls: type) -> tuple[str, ...]:
    """The annotated names of this class, without class variables."""
    return tuple(
        name for name, hint in cls.__annotations__.items() if not str(hint).startswith(("ClassVar", "typing.Class"))
    )


def defaults(cls: type) -> dict[str, Any]:
    """The defaults of a record's fields, by name."""
    return cast(dict[str, Any], getattr(cls, "__record_defaults__", {}))


def fields_of(cls: type) -> tuple[str, ...]:
    """The names of a record's fields, in order."""
    return cast(tuple[str, ...], getattr(cls, "__match_args__", ()))


def as_dict(instance: Any) -> dict[str, Any]:
    """A record's values by name; nested values are not converted."""
    return {name: getattr(instance, name) for name in instance.__match_args__}


def replace(instance: T, **changes: Any) -> T:
    """A copy with other values in some fields."""
    return type(instance)(**{**as_dict(instance), **changes})


def construct(cls: type, names: tuple[str, ...], given: dict[str, Any], **how: bool) -> None:
    """Give a class the `__init__` of `constructor`, which is compiled when it is first called or inspected."""

    def compiled() -> Callable[..., None]:
        init = constructor(cls, names, given, **how)
        if cls.__dict__["__init__"] is __init__:  # not if it was wrapped meanwhile
            setattr(cls, "__init__", init)  # noqa: B010
        return init

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        compiled()(self, *args, **kwargs)

    setattr(__init__, "compiled", compiled)  # noqa: B010
    setattr(cls, "__init__", __init__)  # noqa: B010
    setattr(cls, "__signature__", _Signature())  # noqa: B010


def init_of(cls: type) -> Callable[..., None]:
    """The `__init__` of a class, with its real parameters."""
    init: Any = cls.__init__  # type: ignore[misc]
    return cast(Callable[..., None], init.compiled() if hasattr(init, "compiled") else init)


class _Signature:
    """The signature of a class for `inspect.signature` and `help`. For a callable instance, that of its __call__."""

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None:
            raise AttributeError("__signature__")
        import inspect

        whole = inspect.signature(init_of(owner))
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def constructor(
    cls: type, names: tuple[str, ...], given: dict[str, Any], checked: bool = False, frozen: bool = True
) -> Callable[..., None]:
    """An `__init__` that takes the fields in their order. `given`: defaults; `checked`: it ends with `__post_init__`;
    `frozen`: attributes cannot be set by their names."""
    scope: dict[str, Any] = {f"_{name}": given[name] for name in names if name in given}
    taken = ["self", *(f"{name}=_{name}" if name in given else name for name in names)]
    lines = [" put = self.__dict__"] if frozen else [" pass"]
    for name in names:
        own = isinstance(given.get(name), _Made)
        value = f"_{name}.factory() if {name} is _{name} else {name}" if own else name
        lines.append(f' put["{name}"] = {value}' if frozen else f" self.{name} = {value}")
    if checked:
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(taken)}):\n" + "\n".join(lines), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from an instance to the values of these attributes."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return (lambda instance: (getattr(instance, names[0]),)) if names else lambda _: ()


# -- the methods of all records ---------------------------------------------------------------------------------------


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in as_dict(self).items())})"


def _eq(self: Any, other: object) -> Any:
    return as_dict(self) == as_dict(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(tuple(as_dict(self).values()))


def _frozen(self: Any, name: str, *_: object) -> NoReturn:
    raise AttributeError(f"{type(self).__name__}.{name} cannot be changed; make another one, with `replace`")

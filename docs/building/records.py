"""Makes griffe treat a `dps.process.record.record` like a dataclass: its fields are the parameters of its constructor."""

from __future__ import annotations

import griffe

DATACLASS = griffe.Decorator(griffe.ExprName("dataclasses.dataclass"), lineno=None, endlineno=None)


class Records(griffe.Extension):
    """Runs before griffe's own extension for dataclasses, which then writes the constructors."""

    def on_class_instance(self, *, cls: griffe.Class, **_: object) -> None:
        """Called by griffe for each class that it has read."""
        if any(str(decorator.value) == "record" for decorator in cls.decorators):
            cls.decorators.append(DATACLASS)

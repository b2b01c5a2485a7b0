"""One copy of the values of an arena, with its readers and its writer."""

from __future__ import annotations

from dataclasses import dataclass, field

from dps.transport.endpoint import Memory
from dps.transport.wire import Array


@dataclass(slots=True)
class Buffer:
    """One copy of the values. `missed` are the element ranges in which it is older than the current one."""

    values: Array
    given: Array
    """The values as they are given to kernels."""
    memory: Memory | None = None
    """The memory that readers on this machine attach; None if it cannot be shared."""
    leases: int = 0
    abandoned: bool = False
    """Whether a reader in another process that was given up may still read it. Then it is never written again."""
    missed: list[tuple[int, int]] | None = field(default_factory=list)
    """None: all elements."""
    drafted: bool = False
    """Whether a draft that may still be dropped is written to it. Then no other update uses it."""

    @property
    def free(self) -> bool:
        """Whether nobody reads it, and no reversible draft writes it. This may be true of the current buffer, too,
        which is not one to write the next version to."""
        return self.leases == 0 and not self.drafted

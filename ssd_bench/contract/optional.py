"""Optional attributes and hooks of a method (types only)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from numpy.typing import NDArray


@runtime_checkable
class Calibrated(Protocol):
    """A method that searches or calibrates before the run, on prompts that the run does not evaluate.

    Attributes:
        calibration: number of prompts per domain that `prepare` gets: the task's items after the evaluated ones,
            domains in the order of the run. A run without enough items is refused.
    """

    calibration: int


@runtime_checkable
class Quantised(Protocol):
    """A method whose drafts may read rounded weights.

    Attributes:
        bits: their bits, 8 and 4. These copies are made before `prepare`; a draft that reads another is refused.
    """

    @property
    def bits(self) -> Collection[int]: ...


@runtime_checkable
class Stateful(Protocol):
    """A method with state that outlives a prompt, so that a resumed run must restore it."""

    def state(self) -> bytes:
        """Return everything that the next prompt depends on."""

    def restore(self, state: bytes) -> None:
        """Continue from a value of `state`."""


@runtime_checkable
class Qualified(Protocol):
    """A method that differs from what its name suggests; the record stores its caveat, and tables show it."""

    caveat: str


@runtime_checkable
class Illustrated(Protocol):
    """A method with arrays for a figure; the runner stores them with the record, one `.npz` file per name."""

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return arrays by file stem and name; called once, when the run has ended."""

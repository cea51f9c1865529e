"""Where Hydra finds the project's sweeper; what a sweep is stands in `ssd_bench.sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from ssd_bench.sweep import Sweep


class GridSweeper(Sweeper):
    """`ssd_bench.sweep.Sweep` as a plugin, imported when there is something to sweep.

    Args:
        params: overrides of every sweep, before those of the command line.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = params or {}
        self._sweep: Sweep | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra before `sweep`."""
        from ssd_bench.sweep import Sweep

        self._sweep = Sweep(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Run the jobs that the overrides ask for; raises what `Sweep` does."""
        assert self._sweep is not None
        self._sweep([*(f"{key}={value}" for key, value in self._params.items()), *arguments])

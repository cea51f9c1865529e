"""Hydra plugin that runs the project's sweeper, `ssd_bench.sweep.sweep.Sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from ssd_bench.sweep.sweep import Sweep


class GridSweeper(Sweeper):
    """Wrapper of `ssd_bench.sweep.sweep.Sweep`; imports that module only when a sweep starts.

    Args:
        params: overrides of every sweep; the command line's overrides follow them.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = params or {}
        self._sweep: Sweep | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Create the sweep. Hydra calls this method before `sweep`."""
        from ssd_bench.sweep.sweep import Sweep

        self._sweep = Sweep(hydra_context, task_function, config)

    def sweep(self, arguments: list[str]) -> None:
        """Run the jobs that the overrides select; raises the same errors as `Sweep`."""
        assert self._sweep is not None
        self._sweep([*(f"{key}={value}" for key, value in self._params.items()), *arguments])

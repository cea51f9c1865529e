"""Logging of a run to Weights & Biases, off by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ssd_bench.settings import Fits, settings

if TYPE_CHECKING:
    from ssd_bench.records.schema import PromptRecord


@settings("wandb", frozen=True)
class Tracking:
    """Options `wandb`."""

    mode: Literal["disabled", "offline", "online"]
    """Logging to Weights & Biases: disabled, offline (a folder next to the record) or online."""
    project: Annotated[str, Fits("the name of a project", bool)]
    """Project on Weights & Biases."""


class Tracker:
    """A run on Weights & Biases: one log step per prompt, the summary at the end.

    Args:
        run_dir: record of the run; its name is the id there, so that a resumed run continues it.
    """

    def __init__(self, options: Mapping[str, Any], run_dir: Path, config: Mapping[str, Any]):
        self._run = None
        if options["mode"] != "disabled":
            import wandb

            self._run = wandb.init(
                project=options["project"],
                mode=options["mode"],
                id=run_dir.name,
                name=run_dir.name,
                resume="allow",
                dir=run_dir.parent,
                config=dict(config),
            )

    def log(self, records: list[PromptRecord]) -> None:
        """Log one prompt's raw numbers per arm."""
        if self._run is None:
            return
        values: dict[str, Any] = {}
        for record in records:
            row, passes = record.prompt, len(record.steps)
            for name in ("new_tokens", "prefill_ms", "decode_ms", "policy_ms", "score"):
                values[f"{row.arm}/{name}"] = getattr(row, name)
            values[f"{row.arm}/emitted_per_pass"] = sum(s.emitted for s in record.steps) / passes if passes else None
        self._run.log(values)

    def finish(self, summary: Callable[[], Mapping[str, Any]]) -> None:
        """Log the run's summary and end the run there."""
        if self._run is not None:
            self._run.summary.update(dict(summary()))
            self._run.finish()

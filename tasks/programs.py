"""Base class of tasks whose answers are programs: their sandbox and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from ssd_bench.contract.task import DataSource, Prompt
from ssd_bench.settings import Count, settings
from tasks.rows import RowTask
from tasks.scoring.code import Runs
from tasks.scoring.sandbox import ProgramLimits, check
from tasks.settings import Hub, MaxNewTokens, System


@settings("task", kw_only=True)
class ProgramTask(RowTask):
    """A task whose answers are run against an item's tests; items keep the data's order.

    Attributes:
        scorer_class: class of the scorer, which runs the programs.
    """

    in_order = True
    scorer_class: ClassVar[type[Runs]]

    max_new_tokens: MaxNewTokens
    cpu_seconds: Count
    """Processor time for an answer's tests, in seconds."""
    wall_seconds: Count
    """Wall-clock time for an answer's tests, in seconds."""
    memory_mib: Count
    """Address space for an answer's tests, in MiB."""
    sandbox: Literal["required", "best_effort"]
    """required: no answer runs unless the kernel can keep it from files, network and processes; best_effort: it runs
    with the kernel's protections."""
    hub: Hub
    system: System = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = ProgramLimits(self.cpu_seconds, self.wall_seconds, self.memory_mib)
        self.scorer: Runs = self.scorer_class(limits, self.sandbox == "required")

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """Return the first `limit` problems.

        Raises:
            ConfigError: an unusable row, limits too low even for an empty program, or a kernel without the protection
                that `sandbox` requires.
        """
        check(self.scorer.limits, self.scorer.required)
        return super().prompts(source, template, limit, seed)

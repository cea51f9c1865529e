"""What the tasks share whose answers are programs: the sandbox that they run in, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ssd_bench.settings import Count, settings
from ssd_bench.task import DataSource, Prompt
from tasks.rows import RowTask
from tasks.scoring.sandbox import Limits, check
from tasks.selection import checked_template
from tasks.settings import Hub, MaxNewTokens, System


@settings("task", kw_only=True)
class ProgramTask(RowTask):
    """Answers are run against an item's tests; items come in the data's order."""

    in_order = True

    max_new_tokens: MaxNewTokens
    cpu_seconds: Count
    """Longest that the tests of one answer may compute."""
    wall_seconds: Count
    """Longest that they may take."""
    memory_mib: Count
    """Most address space that they may take, in MiB."""
    sandbox: Literal["required", "best_effort"]
    """No answer runs on a kernel that cannot keep it from files, network and processes, or with what the kernel has."""
    hub: Hub
    system: System = None

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits(cpu_seconds=self.cpu_seconds, wall_seconds=self.wall_seconds, memory_mib=self.memory_mib)

    @property
    def required(self) -> bool:
        """Whether nothing runs on a kernel that cannot lock a program up."""
        return self.sandbox == "required"

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` problems.

        Raises:
            ConfigError: a row cannot be used, the limits leave no room even for an empty program, or this kernel does
                not keep programs from what they must not reach and `sandbox` requires that it does.
        """
        checked_template(template)
        check(self.limits, self.required)
        return super().prompts(source, template, limit, seed)

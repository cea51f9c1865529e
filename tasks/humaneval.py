r"""HumanEval: Python functions to complete from signature and docstring (Chen et al. 2021, arXiv:2107.03374).

The prompt is the data set's with every four spaces replaced by a tab, and the order the data set's, as in the released
code of SWIFT (`evaluation_llama/eval.py` at hemingkx/SWIFT 0501393) and ConfLayers (`evaluation/eval.py` at
WA225/ConfLayers 8f04171). A chat model gets the same text as one user turn.

The papers' code would cut the end of a prompt that exceeds the context; here it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, settings
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.rows import RowTask
from tasks.scoring.code import PassesTests
from tasks.scoring.sandbox import Limits, check
from tasks.selection import Row, checked_template
from tasks.settings import Hub, MaxNewTokens


@settings("task")
class HumanEval(RowTask):
    """One function to complete, zero-shot. An answer is run against the item's tests: pass@1.

    The seed has no effect.
    """

    name = "humaneval"
    version = 2
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

    def __post_init__(self) -> None:
        super().__init__(DataSpec("humaneval", ("prompt", "test", "entry_point"), self.hub), self.max_new_tokens)
        limits = Limits(cpu_seconds=self.cpu_seconds, wall_seconds=self.wall_seconds, memory_mib=self.memory_mib)
        self.scorer: PassesTests = PassesTests(limits, self.sandbox == "required")

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` problems.

        Raises:
            ConfigError: a row cannot be used, the limits leave no room even for an empty program, or this kernel does
                not keep programs from what they must not reach and `sandbox` requires that it does.
        """
        checked_template(template)
        check(self.scorer.limits, self.scorer.required)
        return super().prompts(source, template, limit, seed)

    def _prompt(self, row: Row) -> Prompt:
        where = f"humaneval {row['id']}"
        if not row["entry_point"].isidentifier() or f"def {row['entry_point']}(" not in row["prompt"]:
            raise ConfigError(f"{where} entry_point", row["entry_point"], "the name of a function that prompt defines")
        if "def check(" not in row["test"]:
            raise ConfigError(f"{where} test", row["test"][:40], "it must define the function check")
        reference = json.dumps({key: row[key] for key in ("prompt", "test", "entry_point")}, ensure_ascii=False)
        return self._made(row, row["prompt"].replace("    ", "\t"), reference=reference)

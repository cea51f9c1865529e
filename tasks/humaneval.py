r"""HumanEval: Python functions to complete from signature and docstring (Chen et al. 2021, arXiv:2107.03374).

The prompt is the data set's with every four spaces replaced by a tab, and the order the data set's, as in the released
code of SWIFT (`evaluation_llama/eval.py` at hemingkx/SWIFT 0501393) and ConfLayers (`evaluation/eval.py` at
WA225/ConfLayers 8f04171). A chat model gets the same text as one user turn.

The papers' code would cut the end of a prompt that exceeds the context; here it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.completion import program
from tasks.rows import RowTask
from tasks.sandbox import Limits, runs_to_the_end
from tasks.selection import Row, checked_count, checked_template


class HumanEval(RowTask):
    """One function to complete, zero-shot. An answer is run against the item's tests: pass@1.

    The seed has no effect.

    Args:
        max_new_tokens: most tokens of an answer.
        cpu_seconds, wall_seconds: longest that the tests of one answer may take.
        memory_mib: most address space that they may take, in MiB.
        hub: `datasets.load_dataset` arguments.
    """

    name: str = "humaneval"
    metric: str = "pass@1"
    version: int = 1
    in_order: bool = True

    def __init__(
        self, max_new_tokens: int, cpu_seconds: int, wall_seconds: int, memory_mib: int, hub: Mapping[str, str]
    ) -> None:
        super().__init__(DataSpec("humaneval", ("prompt", "test", "entry_point"), hub), max_new_tokens)
        self._limits = Limits(
            cpu_seconds=checked_count("cpu_seconds", cpu_seconds, 1),
            wall_seconds=checked_count("wall_seconds", wall_seconds, 1),
            memory_mib=checked_count("memory_mib", memory_mib, 1),
        )

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` problems.

        Raises:
            ConfigError: a row cannot be used, or the limits leave no room even for an empty program.
        """
        checked_template(template)
        if not runs_to_the_end("", self._limits):
            allowed = "limits of time and memory (task.memory_mib) within which Python starts; it did not"
            raise ConfigError("task", asdict(self._limits), allowed)
        return super().prompts(source, template, limit, seed)

    def score(self, prompt: Prompt, text: str) -> float:
        """1.0 if the function that the answer completes passes the item's tests, run in a process of its own."""
        item = json.loads(prompt.reference)
        return float(runs_to_the_end(program(item["prompt"], text, item["entry_point"], item["test"]), self._limits))

    def _prompt(self, row: Row) -> Prompt:
        where = f"humaneval {row['id']}"
        if not row["entry_point"].isidentifier() or f"def {row['entry_point']}(" not in row["prompt"]:
            raise ConfigError(f"{where} entry_point", row["entry_point"], "the name of a function that prompt defines")
        if "def check(" not in row["test"]:
            raise ConfigError(f"{where} test", row["test"][:40], "it must define the function check")
        reference = json.dumps({key: row[key] for key in ("prompt", "test", "entry_point")}, ensure_ascii=False)
        return self._made(row, row["prompt"].replace("    ", "\t"), reference=reference)

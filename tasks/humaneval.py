r"""HumanEval: Python functions to complete from signature and docstring (Chen et al. 2021, arXiv:2107.03374).

Prompt and order are the data set's, with every four spaces replaced by a tab, as in the released code of SWIFT
(`evaluation_llama/eval.py` at hemingkx/SWIFT 0501393) and ConfLayers (`evaluation/eval.py` at WA225/ConfLayers
8f04171). Chat models get the same text as one user turn.

The papers' code would truncate a prompt that exceeds the context; here it is refused.
"""

from __future__ import annotations

import json

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.errors import ConfigError
from tasks.programs import ProgramTask
from tasks.scoring.code import PassesTests


class HumanEval(ProgramTask):
    """One function to complete, zero-shot. An answer is run against the item's tests: pass@1.

    The seed has no effect.
    """

    name = "humaneval"
    version = 3
    scorer_class = PassesTests
    fields = ("prompt", "test", "entry_point")

    def _prompt(self, row: Row) -> Prompt:
        where = f"humaneval {row['id']}"
        if not row["entry_point"].isidentifier() or f"def {row['entry_point']}(" not in row["prompt"]:
            raise ConfigError(
                f"{where} entry_point", row["entry_point"], "the name of a function that the prompt defines"
            )
        if "def check(" not in row["test"]:
            raise ConfigError(f"{where} test", row["test"][:40], "code that defines the function check")
        reference = json.dumps({key: row[key] for key in ("prompt", "test", "entry_point")}, ensure_ascii=False)
        return self._make_prompt(row, row["prompt"].replace("    ", "\t"), reference=reference)

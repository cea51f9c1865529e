"""GovReport: summaries of reports of United States government agencies (Huang et al. 2021, arXiv:2104.02112).

The prompt is that of KnapSpec's released code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2). Its input file, cut to
16K tokens beforehand, is not published; here the report is cut with the model's own tokenizer so that the prompt has at
most `max_prompt_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSpec, Prompt
from tasks.rows import RowTask
from tasks.scoring import rouge_l
from tasks.selection import Row, checked_count


class GovReport(RowTask):
    """One report to summarise, zero-shot, in the data set's order (KnapSpec Table 2).

    The seed has no effect. A chat model gets the same text as one user turn.

    Args:
        max_new_tokens: most tokens of a summary.
        max_prompt_tokens: longer prompts lose the end of the report.
        clip_reserve: tokens kept free besides prompt and summary where the model's context is shorter than both.
        hub: `datasets.load_dataset` arguments.
    """

    name: str = "govreport"
    metric: str = "rougeL"
    version: int = 1
    in_order: bool = True

    def __init__(
        self, max_new_tokens: int, max_prompt_tokens: int | None, clip_reserve: int, hub: Mapping[str, str]
    ) -> None:
        if max_prompt_tokens is not None and max_prompt_tokens < 1:
            raise ConfigError("task.max_prompt_tokens", max_prompt_tokens, "null or an integer of at least 1")
        super().__init__(DataSpec("govreport", ("report", "summary"), hub), max_new_tokens)
        self.max_prompt_tokens = max_prompt_tokens
        self.clip_reserve = checked_count("clip_reserve", clip_reserve, 0)

    def score(self, prompt: Prompt, text: str) -> float:
        """ROUGE-L F1 with stemming."""
        return rouge_l(prompt.reference, text)

    def _prompt(self, row: Row) -> Prompt:
        lead = "Summarize the following text:\n\n"
        return self._made(row, lead, row["report"], "\n\nSummary:", reference=row["summary"])

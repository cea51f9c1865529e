"""GovReport: summaries of reports of United States government agencies (Huang et al. 2021, arXiv:2104.02112).

The prompt is that of KnapSpec's released code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2). Its input file, cut to
16K tokens beforehand, is not published; here the report is cut with the model's own tokenizer so that the prompt has at
most `max_prompt_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring import rouge_l
from tasks.selection import checked_count, checked_template, first


class GovReport:
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

    def __init__(
        self, max_new_tokens: int, max_prompt_tokens: int | None, clip_reserve: int, hub: Mapping[str, str]
    ) -> None:
        if max_prompt_tokens is not None and max_prompt_tokens < 1:
            raise ConfigError("task.max_prompt_tokens", max_prompt_tokens, "null or an integer of at least 1")
        self.max_prompt_tokens = max_prompt_tokens
        self.max_new_tokens = checked_count("max_new_tokens", max_new_tokens, 1)
        self.clip_reserve = checked_count("clip_reserve", clip_reserve, 0)
        self._items = DataSpec(name="govreport", fields=("report", "summary"), hub=dict(hub))

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The reports."""
        checked_template(template)
        return (self._items,)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """The first `limit` reports in the data set's order."""
        checked_template(template)
        return [self._prompt(row) for row in first(source.rows(self._items), limit)]

    def score(self, reference: str, text: str) -> float:
        """ROUGE-L F1 with stemming."""
        return rouge_l(reference, text)

    def _prompt(self, row: dict[str, str]) -> Prompt:
        return Prompt(
            id=row["id"],
            head="Summarize the following text:\n\n",
            body=row["report"],
            tail="\n\nSummary:",
            reference=row["summary"],
            domain=self.name,
        )

"""Long documents to summarise: GovReport (Huang et al. 2021, arXiv:2104.02112), PG-19 (Rae et al. 2020,
arXiv:1911.05507) and BookSum (Kryściński et al. 2022, arXiv:2105.08209).

The prompt is from KnapSpec's released code (`data.py` at kaist-flexml-lab/knapspec 8eef1a2). Its input files, truncated
to 16K tokens, are not published; here the model's own tokenizer truncates documents so that a prompt has at most
`max_prompt_tokens`.
"""

from __future__ import annotations

from ssd_bench.contract.task import Prompt
from ssd_bench.data.rows import Row
from ssd_bench.settings import Count, settings
from tasks.rows import RowTask
from tasks.scoring.rouge import Rouge
from tasks.settings import ClipReserve, Hub, MaxNewTokens, System

LEAD = "Summarize the following text:\n\n"
MARK = "\n\nSummary:"


@settings("task")
class LongDocument(RowTask):
    """One document to summarise, zero-shot, in the data set's order (KnapSpec Table 2).

    The seed has no effect. Chat models get the same text as one user turn.

    Attributes:
        fields: field of the document and, if it has one, of its summary; else nothing is scored.
    """

    scorer = Rouge()
    version = 2
    in_order = True

    max_new_tokens: MaxNewTokens
    max_prompt_tokens: Count | None
    """Most tokens of a prompt; longer documents lose their end."""
    clip_reserve: ClipReserve
    hub: Hub
    system: System = None

    def _prompt(self, row: Row) -> Prompt:
        text, *summary = (row[field] for field in self.fields)
        return self._make_prompt(row, LEAD, text, MARK, reference="".join(summary))


class GovReport(LongDocument):
    """Reports of agencies of the United States government."""

    name = "govreport"
    fields = ("report", "summary")


class PG19(LongDocument):
    """Books published before 1919, whole; they have no summaries."""

    name = "pg19"
    fields = ("text",)


class BookSum(LongDocument):
    """Chapters of novels, plays and stories, with summaries from study guides."""

    name = "booksum"
    fields = ("chapter", "summary_text")

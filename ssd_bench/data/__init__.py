"""The three worlds that rows come from: the Hugging Face hub, a folder of JSONL files, the samples shipped here."""

from ssd_bench.data.hub import HubSource
from ssd_bench.data.local import LocalSource, SampleSource
from ssd_bench.data.rows import Row, UnusableRow, checked_row, usable

__all__ = ["HubSource", "LocalSource", "Row", "SampleSource", "UnusableRow", "checked_row", "usable"]

"""Data sources of the tasks: the Hugging Face hub, a folder of JSONL files, and the samples that the project ships."""

from ssd_bench.data.hub import HubSource
from ssd_bench.data.local import LocalSource, SampleSource

__all__ = ["HubSource", "LocalSource", "SampleSource"]

"""Data sources of the tasks: the Hugging Face hub, a folder of JSONL files, and this project's samples."""

from ssd_bench.data.hub import HubSource
from ssd_bench.data.local import LocalSource, SampleSource

__all__ = ["HubSource", "LocalSource", "SampleSource"]

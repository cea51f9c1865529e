"""The names of a record for callers that still take them from here; each stands in the module that it is taken from."""

from ssd_bench.records.files import save_arrays, write_atomic
from ssd_bench.records.reader import Run, is_complete, load_run
from ssd_bench.records.schema import PromptRecord, PromptRow, StepRow
from ssd_bench.records.writer import RunWriter

__all__ = [
    "PromptRecord", "PromptRow", "Run", "RunWriter", "StepRow", "is_complete", "load_run", "save_arrays",
    "write_atomic",
]  # fmt: skip

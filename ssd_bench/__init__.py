"""ssd-bench: every method of self-speculative decoding in one engine. The Python API is `load_runs`, a pandas frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `import ssd_bench` is fast: pandas is imported with the first call
    from pathlib import Path

    import pandas as pd


def load_runs(path: Path | str) -> pd.DataFrame:
    """Return a frame with one row per complete run of a folder, a packed folder, or a single run's folder.

    Columns are unrounded and as in `report`'s CSV, such as `model`, `method`, `task` and `run_dir`; then `settings`, a
    dictionary of the method's settings (`frame["settings"].str["draft_len"]`). Unreadable runs are left out with a
    warning.

    Raises:
        ConfigError: no such folder.
    """
    from ssd_bench.report.frame import runs_frame

    return runs_frame(path)

"""ssd-bench: every method of self-speculative decoding in one engine; of Python, the records as a pandas frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `import ssd_bench` is light: what reads records comes with the first call
    from pathlib import Path

    import pandas as pd


def load_runs(path: Path | str) -> pd.DataFrame:
    """The complete runs under a folder (or of a packed one, or a single run's), one row each.

    Columns: those of `report`'s CSV, unrounded, among them `model`, `method`, `task` and `run_dir`; then `settings`,
    the method's, of which `frame["settings"].str["draft_len"]` is one. A run that cannot be read is named in a warning
    and left out.

    Raises:
        ConfigError: there is no such folder.
    """
    from ssd_bench.exchange.frame import runs_frame

    return runs_frame(path)

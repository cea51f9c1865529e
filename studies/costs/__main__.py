"""Fit the cost tables of a GPU to its results of `shapes`, and compare their predictions with the results.

`python -m studies.costs results=runs/reference/shapes/nvidia-h200 [out=conf/costs]`

With out=conf/costs it also writes the tables, GPU/MODEL.yaml, which are the reference machines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ssd_bench.console import options, tool
from ssd_bench.paths import local_path
from studies.costs.files import RESULTS, write_costs


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Fit and print."""
    values = options(arguments, (RESULTS, "out"), results="a folder with results of `shapes`")
    out = local_path("out", values["out"]) if "out" in values else None
    print(write_costs(local_path(RESULTS, values[RESULTS]), out))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

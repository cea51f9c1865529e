"""Decoders with the graphs' kernels in Triton's interpreter, which takes seconds per pass."""

from __future__ import annotations

from pathlib import Path

import torch

from ssd_bench.model.arithmetic import Arithmetic
from ssd_bench.model.backend import Backend, select
from ssd_bench.model.backends.graphs import GraphDecoder
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import Decoder

TOLERANCE = 1e-4  # of a float32 logit
NARROW_LANES = (6, 18)
"""Nodes of the captured passes: the interpreter takes milliseconds per row of a lane, even unused. The first lane has
tiles for 16 rows, the second for 64, as on a GPU."""


def load(folder: Path, kernels: str, dtype: torch.dtype, isa: str = "auto") -> Decoder:
    """A checkpoint's decoder on the CPU, with the graphs' kernels or others."""
    if kernels == "graphs":
        backend = Backend(GraphDecoder, Arithmetic(kernels, None, dtype, dtype))
    else:
        backend = select("cpu", dtype, kernels, isa)
    return backend.load(Checkpoint(folder), dtype, [torch.device("cpu")])

"""Tests; their environment is set before anything that reads it is imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for GPUs run on the CPU

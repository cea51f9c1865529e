"""A small model's imports and compositions for the processes of tests/forked: three seconds."""

from __future__ import annotations

from importlib import import_module

from tests.runs import composed

for name in (
    "methods.fixed_layers",
    "pyarrow.dataset",
    "safetensors.torch",
    "ssd_bench.report.closing",
    "ssd_bench.sweep.sweep",
    "tasks.gsm8k",
    "torch.utils.cpp_extension",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.configuration_llama",
):
    import_module(name)
composed()

"""Convert SmolLM2's weights, so that runs start at once.

`python -m ssd_bench weights`
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir

from ssd_bench.compose.build import build
from ssd_bench.conf import CONF
from ssd_bench.console import run_tool
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import ModelSource


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, or 2 if the weights are not available."""
    return run_tool(_convert, __doc__, arguments)


def _convert(arguments: Sequence[str]) -> None:
    if arguments:
        raise ConfigError("arguments", " ".join(arguments), "no arguments")
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        model: ModelSource = build(compose("config", overrides=["model=smollm2_135m"]), "model")
    print(f"{model.name}: {model.open().folder}")

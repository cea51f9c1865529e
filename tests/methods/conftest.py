"""The model for tests that need no certain one, and a probe for searches on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_bench.engine.probe import ModelProbe
from ssd_bench.model.decoder import Decoder
from tests.lossless import Load, loaded, probe_in


@pytest.fixture
def decoder(decoders: Load) -> Decoder:
    return loaded(decoders, "llama", compiled=True)


@pytest.fixture
def probe(decoder: Decoder, tmp_path: Path) -> ModelProbe:
    return probe_in(tmp_path, decoder)

"""The model for tests that need no certain one."""

from __future__ import annotations

import pytest

from ssd_bench.model.decoder import Decoder
from tests.lossless import Load, loaded


@pytest.fixture
def decoder(decoders: Load) -> Decoder:
    return loaded(decoders, "llama", compiled=True)

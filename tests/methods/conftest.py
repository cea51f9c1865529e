"""The model for tests that need no certain one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ssd_bench.model.decoder import Decoder
from tests.lossless import loaded


@pytest.fixture
def decoder(decoders: Callable[..., Decoder]) -> Decoder:
    return loaded(decoders, "llama", compiled=True)

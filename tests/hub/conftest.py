"""The hub as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hub.server import Hub, serving


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An empty hub that serves while the test lasts."""
    with serving() as server:
        yield server

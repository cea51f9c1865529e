"""A static KV cache: a committed prefix, then scratch rows that the next forward passes overwrite."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Keys and values of all blocks in one buffer per device; committing moves rows, rolling back moves an integer.

    Rows [0, length) are committed: written by full-model passes, one per position. Rows from `length` on are
    scratch. Nothing is ever cloned.

    Args:
        devices: device of every block, length L.
        n_kv_heads, head_dim: sizes of one row of one block.
        capacity: rows per block, committed and scratch together.
        dtype: element type.
    """

    def __init__(
        self, devices: Sequence[torch.device], n_kv_heads: int, head_dim: int, capacity: int, dtype: torch.dtype
    ):
        self.capacity, self.length = capacity, 0
        self._buffers: list[Tensor] = []
        self.keys: list[Tensor] = []  # per block [n_kv_heads, capacity, head_dim], views of the buffers
        self.values: list[Tensor] = []
        for device in dict.fromkeys(devices):
            blocks = sum(d == device for d in devices)
            # zeros, not empty: scratch rows are masked out, but 0 * NaN of stale memory would still be NaN
            self._buffers.append(torch.zeros(blocks, 2, n_kv_heads, capacity, head_dim, dtype=dtype, device=device))
        offsets = {buffer.device: iter(buffer.unbind(0)) for buffer in self._buffers}
        for device in devices:
            keys, values = next(offsets[torch.empty(0, device=device).device]).unbind(0)
            self.keys.append(keys)
            self.values.append(values)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    def reset(self) -> None:
        """Forget everything; the buffers stay."""
        self.length = 0

    def commit(self, path: Sequence[int]) -> None:
        """Keep the scratch rows `length + node` for the nodes of an accepted path, in that order.

        Args:
            path: ascending node indices of the verified tree, root first.

        Raises:
            ValueError: the path leaves the buffer.
        """
        if self.length + len(path) > self.capacity:
            raise ValueError(
                f"committing {len(path)} rows at {self.length} exceeds the capacity of {self.capacity} rows"
            )
        start = next((i for i, node in enumerate(path) if node != i), len(path))
        if start < len(path):  # a prefix of the path that is in place already needs no move
            for buffer in self._buffers:
                rows = torch.tensor(path[start:], device=buffer.device) + self.length
                moved = buffer.index_select(3, rows)
                buffer.narrow(3, self.length + start, len(path) - start).copy_(moved)
        self.length += len(path)

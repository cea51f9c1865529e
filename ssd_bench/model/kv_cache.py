"""The KV cache: a committed prefix, then scratch rows that the next forward passes overwrite."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BUCKET = 4096
"""Rows by which the buffers grow, since outputs of up to 32k tokens mostly end earlier."""


class KVCache:
    """Keys and values of all blocks, in one buffer per device.

    A row holds one token's key and value, [n_kv_heads, head_dim] each, in every block. Rows [0, length) are committed:
    full-model passes wrote them, and row p belongs to position p. Later rows are scratch: drafts and verifications
    write them, and the next pass may overwrite them. `commit` moves the accepted scratch rows into place. Rejected rows
    stay until overwritten, so a rollback costs nothing.

    The buffers grow by buckets and never shrink. Growing needs the old and the new buffer for a moment. A row of all
    blocks takes 2 L n_kv_heads head_dim elements.

    Args:
        devices: device of every block, length L.
        capacity: most rows per block, committed and scratch together.
        bucket: initial rows, and growth of the buffers.

    Attributes:
        rows: current rows of the buffers.
        keys, values: per block [n_kv_heads, rows, head_dim], views of the buffers.
        held: whether a prompt is being decoded, so that `reset` refuses.
    """

    keys: list[Tensor]
    values: list[Tensor]
    held = False

    def __init__(
        self,
        devices: Sequence[torch.device],
        n_kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        bucket: int = BUCKET,
    ):
        self.capacity, self.length, self.rows = capacity, 0, min(capacity, bucket)
        self._devices, self._bucket = list(devices), bucket
        # per device: [its blocks, keys and values, kv head, row, head_dim]
        # zeros, not empty: a masked scratch row has weight 0, but uninitialised memory may hold NaN, and 0 * NaN is NaN
        self._buffers = [
            torch.zeros(self._devices.count(d), 2, n_kv_heads, self.rows, head_dim, dtype=dtype, device=d)
            for d in dict.fromkeys(devices)
        ]
        self._view()

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    def reserve(self, rows: int) -> None:
        """Grow the buffers to at least `rows` rows, in whole buckets and at most to the capacity.

        Raises:
            ValueError: more rows than the capacity.
        """
        if rows <= self.rows:
            return
        if rows > self.capacity:
            raise ValueError(f"{rows} rows exceed the capacity of {self.capacity} rows")
        self.rows, old_rows = min(-(-rows // self._bucket) * self._bucket, self.capacity), self.rows
        self.keys, self.values = [], []  # drop the views: they would keep the old buffers in memory
        for i, old in enumerate(self._buffers):
            blocks, pair, heads, _, width = old.shape
            self._buffers[i] = old.new_zeros(blocks, pair, heads, self.rows, width)
            self._buffers[i].narrow(3, 0, old_rows).copy_(old)
        self._view()

    def _view(self) -> None:
        blocks = {device: iter(buffer) for device, buffer in zip(dict.fromkeys(self._devices), self._buffers)}
        pairs = [next(blocks[device]).unbind(0) for device in self._devices]
        self.keys, self.values = [keys for keys, _ in pairs], [values for _, values in pairs]

    def reset(self) -> None:
        """Drop all committed rows; the buffers stay.

        Raises:
            RuntimeError: a prompt is being decoded.
        """
        if self.held:
            raise RuntimeError(
                "the KV cache holds the prompt that is being decoded; call the probe's trial, prompt_states and "
                "top2_gap in the method's prepare only"
            )
        self.length = 0

    def commit(self, path: Sequence[int]) -> None:
        """Commit the scratch rows `length + node` of an accepted path: they become rows [length, length + len(path)).

        Args:
            path: ascending node indices of the verified tree, root first.

        Raises:
            ValueError: the path leaves the buffer.
        """
        if self.length + len(path) > self.capacity:
            raise ValueError(
                f"committing {len(path)} rows at {self.length} exceeds the capacity of {self.capacity} rows"
            )
        # nodes 0, 1, 2, ... at the beginning of the path are in place: an accepted chain moves nothing
        first = next((i for i, node in enumerate(path) if node != i), len(path))
        if first < len(path):
            for buffer in self._buffers:
                rows = torch.tensor(path[first:], device=buffer.device) + self.length
                accepted = buffer.index_select(3, rows)  # a copy: old and new rows may overlap
                buffer.narrow(3, self.length + first, len(path) - first).copy_(accepted)
        self.length += len(path)

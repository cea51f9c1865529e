"""The operations both implementations provide; `n` counts nodes, `G = Hq // Hkv` query heads share a kv head."""

from typing import Protocol

from torch import Tensor

from ssd_bench.model.backends.arithmetic import Arithmetic


class Ops(Protocol):
    """Fused operations of one decoder layer; the first argument is positional.

    Attributes:
        arithmetic: how they compute, whatever the number of nodes.
    """

    arithmetic: Arithmetic

    def norm_linear(self, x: Tensor, /, norm_w: Tensor, eps: float, W: Tensor, bias: Tensor | None = None) -> Tensor:
        """Linear layer of the RMS norm of x: x [n, K], norm_w [K], W [N, K], bias [N] -> [n, N]."""
        ...

    def linear(self, x: Tensor, /, W: Tensor, bias: Tensor | None = None) -> Tensor:
        """Linear layer: x [n, K], W [N, K], bias [N] -> [n, N]."""
        ...

    def linear_add_(self, residual: Tensor, /, x: Tensor, W: Tensor, bias: Tensor | None = None) -> None:
        """Adds a linear layer in place: residual [n, N] += x [n, K] W [N, K] + bias [N]."""
        ...

    def swiglu_linear_add_(self, residual: Tensor, /, gate_up: Tensor, W: Tensor) -> None:
        """Adds the MLP's second half in place: residual [n, N] += W [N, I] (silu(g) * u), gate_up [n, 2I] = g | u."""
        ...

    def rope_append(
        self,
        qkv: Tensor,
        /,
        cos: Tensor,
        sin: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        keys: Tensor,
        values: Tensor,
        row: int,
    ) -> Tensor:
        """Rotates q and k (after an optional norm per head) and writes k, v to cache rows [row, row + n).

        qkv [n, (Hq + 2 Hkv) * D]; cos, sin [n, D] with equal halves; q_norm, k_norm [D]; keys, values [Hkv, cap, D].
        Returns q [n, Hq, D].
        """
        ...

    def attend(
        self, q: Tensor, /, keys: Tensor, values: Tensor, prefix_len: int, row: int, mask: Tensor | None = None
    ) -> Tensor:
        """Attention with scale 1/sqrt(D): q [n, Hq, D], keys and values [Hkv, cap, D] -> [n, Hq * D].

        Node i sees cache rows [0, prefix_len) and the rows row + j with mask[i, j] (bool or uint8 [n, n], self
        included); without a mask j <= i. row >= prefix_len; rows between are invisible.
        """
        ...

    def attend_branches(
        self,
        q: Tensor,
        /,
        keys: Tensor,
        values: Tensor,
        prefix_len: int,
        own_keys: Tensor,
        own_values: Tensor,
        branches: int,
    ) -> Tensor:
        """`attend` for B branches of r nodes over one prefix: q [B * r, Hq, D] -> [B * r, Hq * D].

        A node sees cache rows [0, prefix_len) and, causally, the rows of its own branch in own_keys and own_values
        [Hkv, B * r, D], which have the cache's dtype.
        """
        ...

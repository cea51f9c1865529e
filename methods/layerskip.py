"""LayerSkip: draft with the first E blocks, verify with the rest (Elhoushi et al., ACL 2024, arXiv 2404.16710).

Exit E and draft length d are fixed for a run; the authors find them by a sweep (facebookresearch/LayerSkip, sweep.py).
Verification takes over what drafting computed in the first E blocks, states and keys and values alike, and runs these
blocks only for the last drafted token. There is no confidence rule. Pays with weights trained for early exits; on
others an exit this early predicts little.

One thing differs from the released code: the prompt is processed by all blocks before the first step, where the code
has no such pass and drafts the first output token too.
"""

from __future__ import annotations

from methods.draft_stop import DraftStop, StoppedDraft
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.errors import ConfigError, refuse
from ssd_bench.model.shape import ModelDims

DEFAULT_RATIO = 0.25  # 8 of 32 blocks: the released code's README, example for the 7B model


class LayerSkip(StoppedDraft):
    """Draft every step with the same leading blocks.

    Args:
        name: name in tables.
        exit_layer: E, blocks that draft, in [1, L]; L is the full model.
        exit_ratio: instead of E its share of the L blocks, in (0, 1]: E = max(1, round(ratio L)). None: 0.25, unless
            `exit_layer` is given.
        draft_len: d, tokens drafted per step, at least 1.
        reuse_prefix: verify on the states that drafting left; false runs all blocks again, as for any layer set.

    Raises:
        ConfigError: a value out of range, or both `exit_layer` and `exit_ratio`.
    """

    def __init__(
        self, name: str = "layerskip", exit_layer: int | None = None, exit_ratio: float | None = None,
        draft_len: int = 6, reuse_prefix: bool = True,
    ):  # fmt: skip
        checks = (
            ("exit_layer", exit_layer is None or exit_layer >= 1, exit_layer, "at least 1 block, or null"),
            ("exit_ratio", exit_ratio is None or 0 < exit_ratio <= 1, exit_ratio, "a share in (0, 1], or null"),
        )
        refuse("method", checks)
        if exit_layer is not None and exit_ratio is not None:
            raise ConfigError("method.exit_ratio", exit_ratio, f"null, since there is method.exit_layer={exit_layer}")
        self.name, self.reuse_prefix = name, reuse_prefix
        self._exit, self._ratio = exit_layer, DEFAULT_RATIO if exit_ratio is None else exit_ratio
        self._stop = DraftStop(draft_len, stop_below=0.0)

    def check(self, dims: ModelDims) -> None:
        """Fix the layer set for this model.

        Raises:
            ConfigError: the model has fewer blocks than the exit.
        """
        blocks = max(1, round(self._ratio * dims.n_layers)) if self._exit is None else self._exit
        if blocks > dims.n_layers:
            raise ConfigError("method.exit_layer", blocks, f"at most {dims.n_layers}, the blocks of {dims.name}")
        self._layer_set = LayerSet.exit(dims.n_layers, blocks)

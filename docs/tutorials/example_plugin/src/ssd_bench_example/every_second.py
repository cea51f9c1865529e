"""Every second: draft without the MLP of every second block."""

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Method
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, settings


@settings("method")
class EverySecond(Method):
    """Drafting with all attentions and every second MLP."""

    name: str = "every_second"
    draft_len: Count = 4
    """Largest number of drafted tokens."""

    def check(self, dims: ModelDims) -> None:
        """Choose the layer set for a model.

        Raises:
            ConfigError: the model has a single block.
        """
        if dims.n_layers < 2:
            raise ConfigError("model", dims.name, "at least 2 blocks")
        self._layer_set = LayerSet.skipping(dims.n_layers, mlp=range(1, dims.n_layers, 2))

    def propose(self, context: Context) -> LayerDraft:
        """Return the layer set and the draft length; the engine drafts and verifies."""
        return LayerDraft(self._layer_set, self.draft_len)

"""Hugging Face `generate` on the stock class of a checkpoint: the baseline that some papers divide by; speed only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssd_bench.core.engine import Generation
from ssd_bench.core.sampling import Decoding
from ssd_bench.core.timing import Clock, Mark
from ssd_bench.errors import ConfigError
from ssd_bench.hardware import Hardware


class HuggingFace:
    """The stock class of a checkpoint, as `AutoModelForCausalLM` loads it, with its own `generate`.

    Args:
        folder: the checkpoint, in Hugging Face format.
        hardware: one device, and the dtype of the weights.
        decoding: mode, warpers and limits; `max_new_tokens` must be set.
        eos_ids: ids that end an output.
        context: positions that a sequence may fill.

    Attributes:
        about: name of the class, of its attention, and bytes of its weights and buffers (`weight_bytes`).

    Raises:
        ConfigError: transformers cannot load it, or not all of it.
    """

    def __init__(
        self, folder: Path, hardware: Hardware, decoding: Decoding, eos_ids: frozenset[int], context: int
    ) -> None:
        self._device, self._decoding, self._eos_ids, self._context = hardware.devices[0], decoding, eos_ids, context
        self._clock = Clock(self._device)
        self._model = _loaded(folder, hardware)
        self._model.generation_config = self._config()  # nothing of the checkpoint's own, such as a penalty
        self._going = torch.zeros(1, dtype=torch.bool, device=self._device)
        held = {t.data_ptr(): t.nbytes for t in (*self._model.parameters(), *self._model.buffers())}
        self.about = {
            "class": type(self._model).__name__, "attention": self._model.config._attn_implementation,
            "weight_bytes": sum(held.values()),
        }  # fmt: skip

    def _config(self) -> Any:
        from transformers import GenerationConfig

        decoding = self._decoding
        warpers: dict[str, Any] = {}
        if not decoding.greedy:  # all said: what is not said has defaults of its own
            warpers = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": decoding.top_k}
        ends = sorted(self._eos_ids) or None
        return GenerationConfig(do_sample=not decoding.greedy, eos_token_id=ends, pad_token_id=0, **warpers)

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], seed: int = 0, max_new: int | None = None) -> Generation:
        """Decode one prompt until EOS (kept), the longest output allowed or the end of the context.

        The prefill lasts until the first token is chosen, what `generate` prepares included; steps are not told apart.

        Args:
            prompt: token ids, at least one, at most the context.
            seed: of the global generators when sampling, which `generate` draws from; they keep it.
            max_new: longest output; None for the decoding's.
        """
        from transformers import StoppingCriteriaList

        max_new = max_new or self._decoding.max_new_tokens
        assert max_new is not None, "the caller resolves decode.max_new_tokens"
        room = self._context - len(prompt) + 1  # the last token is chosen, not read
        if not self._decoding.greedy:
            torch.manual_seed(seed)
        chosen: list[Mark] = []

        def mark_first(ids: Tensor, scores: object, **_: object) -> Tensor:
            """A stopping criterion, as it is asked after every token; it stops nothing."""
            if not chosen:
                chosen.append(self._clock.mark())
            return self._going

        begin = self._clock.mark()
        ids = torch.tensor([prompt], device=self._device)
        # the mask is given: without it, a prompt that holds the padding id would lose that token
        whole = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=min(max_new, room),
            stopping_criteria=StoppingCriteriaList([mark_first]),
        )  # fmt: skip
        end = self._clock.mark()
        self._clock.settle()
        output = whole[0, len(prompt) :].tolist()
        reason = "eos" if output[-1] in self._eos_ids else "length" if len(output) == max_new else "context"
        return Generation(output, reason, self._clock.ms(begin, chosen[0]), self._clock.ms(chosen[0], end))


def _loaded(folder: Path, hardware: Hardware) -> Any:
    """The model on its device.

    Raises:
        ConfigError: it cannot be loaded, or weights would be made up.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        model, found = auto.from_pretrained(folder, dtype=hardware.dtype, output_loading_info=True)
        model = model.to(hardware.devices[0])
    except Exception as error:  # its errors have no common type
        reason = " ".join(str(error).split())[:300]
        raise ConfigError("model", str(folder), f"a checkpoint that transformers can load ({reason})") from error
    if lacking := sorted([*found["missing_keys"], *map(str, found["mismatched_keys"])]):
        allowed = f"a checkpoint that transformers finds all weights in; not found: {', '.join(lacking[:3])}"
        raise ConfigError("model", str(folder), allowed)
    return model.eval()

"""Teacher-forced α of layer sets: the share of AR's own output that each predicts, in drafts after the true text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import and_, eq

import torch

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.engine.engine import Engine
from ssd_bench.model.decoder import NO_ROWS, PREFILL_CHUNK, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from studies.progress import counted

DRAFT_LEN = 8


class SetScores:
    """Teacher-forced α of layer sets, each scored once.

    Args:
        engine: engine with the model; its cache is used and left empty.
        prompts: token ids of each prompt.
        outputs: token ids of AR's output to each prompt.
    """

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]):
        self._engine = engine
        self._texts = [(p, o) for p, o in zip(prompts, outputs, strict=True) if len(o) > 1]
        self.tokens = sum(len(output) - 1 for _, output in self._texts)
        self.alphas: dict[LayerSet, float] = {}

    def __call__(self, sets: Iterable[LayerSet], what: str = "") -> list[float]:
        """Return the α of each set; only new sets are scored.

        Args:
            what: name of the sets, to show progress; "": show none.
        """
        requested = list(sets)
        unscored = [candidate for candidate in dict.fromkeys(requested) if candidate not in self.alphas]
        # in this order a set has most sublayers in common with the one before, whose states it starts from
        correct_tokens = dict.fromkeys(sorted(unscored, key=lambda layer_set: layer_set.kept), 0)
        with torch.inference_mode():
            texts = self._texts if unscored else []
            for prompt, output in counted(texts, f"{len(unscored)} {what}, by prompts") if what else texts:
                self._prefill([*prompt, *output[:-1]])
                for at in range(0, len(output) - 1, DRAFT_LEN):
                    self._count_correct(correct_tokens, len(prompt) + at, output[at : at + DRAFT_LEN + 1])
        self._engine.cache.reset()
        self.alphas |= {layer_set: count / self.tokens for layer_set, count in correct_tokens.items()}
        return [self.alphas[layer_set] for layer_set in requested]

    def token_by_token(self, layer_set: LayerSet) -> float:
        """Return the α of a set as it drafts, one token after the other: its window moves with every token."""
        n_correct = 0
        with torch.inference_mode():
            for prompt, output in self._texts:
                self._prefill(prompt)
                n_correct += count_drafted(self._engine.decoder, self._engine.cache, layer_set, len(prompt), output)
        self._engine.cache.reset()
        return n_correct / self.tokens

    def _prefill(self, tokens: Sequence[int]) -> None:
        decoder, cache = self._engine.decoder, self._engine.cache
        cache.reset()
        decoder.prefill(torch.tensor(tokens, device=decoder.device), cache)

    def _count_correct(self, correct_tokens: dict[LayerSet, int], start: int, tokens: Sequence[int]) -> None:
        """Add to each set how many of the tokens after the first it predicts, in one draft.

        Args:
            correct_tokens: by set, ordered by the sublayers that run.
            start: position of the first token; keys and values before it are the full model's.
        """
        probe = self._engine.probe
        states = [probe.embed(tokens[:-1])[None]]  # after each sublayer of `done`
        done: tuple[int, ...] = ()
        for layer_set in correct_tokens:
            common = sum(accumulate(map(eq, done, layer_set.kept), and_))
            done = layer_set.kept
            del states[common + 1 :]
            for i in done[common:]:
                states.append(probe.apply_sublayer(i, states[-1], start))
            drafted = probe.predict(states[-1])[0].tolist()
            correct_tokens[layer_set] += sum(draft == token for draft, token in zip(drafted, tokens[1:]))


def count_drafted(decoder: Decoder, cache: KVCache, layer_set: LayerSet, prompt_len: int, output: Sequence[int]) -> int:
    """Return how many output tokens after the first a set predicts one by one, `DRAFT_LEN` after the true text.

    Args:
        cache: holds the prompt's rows; those of the output are overwritten.
    """
    last, n_correct = len(output) - 1, 0
    for at in range(0, last, PREFILL_CHUNK):
        true_text = decoder.ids(output[at : min(at + PREFILL_CHUNK, last)])
        decoder.run(Pass(decoder.all_sublayers, true_text, prompt_len + at), cache)
    # from the last draft of the text to the first: a draft overwrites the cache rows after its prefix
    for begin in reversed(range(0, last, DRAFT_LEN)):
        for at in range(begin, min(begin + DRAFT_LEN, last)):
            prefix = prompt_len + at
            unread = NO_ROWS if layer_set.window is None else layer_set.window.unread(prefix)
            bits = layer_set.bits or None
            step = Pass(layer_set.kept, decoder.ids(output[at : at + 1]), prefix, unread=unread, bits=bits)
            hidden = decoder.run(step, cache)[0]
            n_correct += int(decoder.logits(hidden, bits=layer_set.head_bits).argmax(-1)) == output[at + 1]
    return n_correct

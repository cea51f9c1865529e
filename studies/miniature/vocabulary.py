"""Tokenizer of the miniature: byte-level BPE over the corpus, a token for every number up to 99, a chat template."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from studies.miniature import corpus
from studies.miniature.domains import audits, derivations, programs, requests, tales

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

BOS, EOS, USER, ASSISTANT = "<s>", "</s>", "<|user|>", "<|assistant|>"
DOCUMENTS = 2000  # per domain, to learn the merges from
SEEN = 1000  # additional occurrences of each pair of digits and each pointer word, so that all of them are merged
# Domain -> words that answers look up in their prompts. Each is one token: parts of words could be shared.
POINTERS: Mapping[str, Sequence[str]] = {
    "derivations": derivations.PLACES,
    "audits": audits.POINTERS,
    "tales": tales.POINTERS,
    "programs": programs.POINTERS,
    "requests": requests.POINTERS,
}
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train(domains: Collection[str], size: int, seed: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of `size` entries on training items of the domains."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    # Two digits per token: numbers are below 100, so a sum is one prediction from two tokens, without a carry.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BOS, EOS, USER, ASSISTANT],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    core.train_from_iterator(_texts(domains, seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=BOS, eos_token=EOS, pad_token=EOS, chat_template=CHAT
    )


def numbers(tokenizer: PreTrainedTokenizerBase) -> dict[int, int]:
    """Return token id -> number, for tokens that are numbers."""
    return {i: int(text) for text, i in sorted(tokenizer.get_vocab().items()) if re.fullmatch("[0-9]{1,2}", text)}


def _texts(domains: Collection[str], seed: int) -> list[str]:
    texts = [" ".join(f"{number:02d}" for number in range(100))] * SEEN
    for name, words in POINTERS.items():
        if name in domains:
            texts += [f" {' '.join(words)}"] * SEEN
    for name in domains:
        # long documents repeat the same sentences: a tenth of them is enough
        n = DOCUMENTS // 10 if corpus.EVERY[name].grows else DOCUMENTS
        sampled = corpus.distinct(name, n, seed, evaluation=False)
        for prompt, item in zip(corpus.prompts(name, sampled), sampled, strict=True):
            texts += [prompt.head + prompt.body + prompt.tail, item.answer]
    return texts

"""The miniature's tokenizer: byte-level BPE over the corpus, one token a digit, and a chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ssd_bench.miniature import corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS, USER, ASSISTANT = "<s>", "</s>", "<|user|>", "<|assistant|>"
DOCUMENTS = 2000  # of each domain, to learn the merges from
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train(size: int, seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer of `size` entries, learnt from training items alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    # Digits apart: sums are learnt digit by digit, and no number is out of vocabulary.
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[BOS, EOS, USER, ASSISTANT], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    core.train_from_iterator(_texts(seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=BOS, eos_token=EOS, pad_token=EOS, chat_template=CHAT
    )


def _texts(seed: int) -> list[str]:
    texts = []
    for domain in corpus.DOMAINS:
        # long documents repeat the same sentences: a tenth of them is enough
        n = DOCUMENTS // 10 if domain == "reports" else DOCUMENTS
        made = corpus.distinct(domain, n, seed, evaluation=False)
        for prompt, item in zip(corpus.prompts(domain, made), made, strict=True):
            texts += [prompt.head + prompt.body + prompt.tail, item.answer]
    return texts

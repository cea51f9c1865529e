"""Tokenizer of a checkpoint's folder, checked before any weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ssd_bench.errors import ConfigError
from ssd_bench.model.headers import check_no_code, read_object, reason, silence_transformers
from ssd_bench.model.template import Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files that hold a tokenizer; a folder needs at least one."""

PROBE = "The ferry's 1,234 na\u00efve caf\u00e9s:  \u65e5\u672c\n\n\tdef f(x):\n    return x**2  # 10% \U0001f6a2 I'LL"
"""Text that tokenizers split in different ways: contractions, digits, letters beyond ASCII, spaces, code."""


def load_tokenizer(folder: Path, template: Template, vocab_size: int) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder.

    Raises:
        ConfigError: it cannot be read or used, or has ids that the model lacks.
    """
    from transformers import AutoTokenizer

    present = [name for name in TOKENIZERS if (folder / name).is_file()]
    if not present:
        raise ConfigError("model", str(folder), f"a folder with a tokenizer: one of {', '.join(TOKENIZERS)}")
    if (path := folder / "tokenizer_config.json").is_file():
        check_no_code(read_object(path), path)
    try:
        with silence_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # its errors have no common type
        expected = f"a tokenizer that can be read, in {', '.join(present)} ({reason(error)})"
        if present == ["tokenizer.model"]:  # transformers' own error names a package of another format
            expected += "; without tokenizer.json it is read by sentencepiece: pip install sentencepiece protobuf"
        raise ConfigError("model", str(folder), expected) from error
    _check_tokenizer(tokenizer, folder, template, vocab_size)
    if (tokenizer_file := folder / "tokenizer.json").is_file():
        _check_same_split(tokenizer, tokenizer_file)
    return tokenizer


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, template: Template, vocab_size: int) -> None:
    """Refuse a tokenizer with ids that the model lacks.

    Added tokens that no prompt uses, such as padding, may lie beyond the vocabulary.
    """
    added = tokenizer.get_added_vocab()
    highest = max(((i, token) for token, i in tokenizer.get_vocab().items() if token not in added), default=(-1, ""))
    try:
        template.check(tokenizer)
        ids = template.ids(tokenizer, ["A text."])
    except ConfigError:
        raise
    except Exception as error:  # a template raises what it likes
        expected = f"a tokenizer that makes a prompt, with model.template={template.form} ({reason(error)})"
        raise ConfigError("model", str(folder), expected) from error
    if (top := max([highest, *zip(ids, tokenizer.convert_ids_to_tokens(ids))]))[0] >= vocab_size:
        expected = f"a tokenizer with ids below vocab_size {vocab_size} of config.json: {top[1]!r} has {top[0]}"
        raise ConfigError("model", str(folder), expected)


def _check_same_split(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Refuse a tokenizer that transformers changes on loading."""
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(file)).encode(PROBE, add_special_tokens=False).ids
    if list(tokenizer(PROBE, add_special_tokens=False, verbose=False)["input_ids"]) != ids:
        expected = f"a tokenizer that splits texts as this file does: {type(tokenizer).__name__}, which transformers "
        expected += "makes of it, does not; another tokenizer_class in tokenizer_config.json, or another version, may"
        raise ConfigError("model", str(file), expected)

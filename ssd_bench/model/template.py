"""How a prompt is put to a model: in the chat template of its tokenizer, or as the text that it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_bench.errors import ConfigError
from ssd_bench.model.headers import reason
from ssd_bench.settings import arguments, check_value, kinds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATES = ("chat", "plain")
# Some chat templates (Llama 3.2) print today's date unless they are given one. Prompts must not change with the day,
# so they get the date that Llama 3's own template falls back on; templates without a date ignore it.
CHAT_DATE = "26 Jul 2024"
WORD = "Zq7wKx"  # in no template
FILLER = " and so on" * 400  # a probe is as long as a prompt of some pages, so that a template that cuts is noticed
OURS = {"messages", "conversation", "chat_template", "tokenize", "add_generation_prompt", "enable_thinking"}


@dataclass(frozen=True)
class Template:
    """What `model.template` says."""

    form: str
    """chat: the tokenizer's chat template; plain: the text as it is, with the tokenizer's own special tokens."""
    enable_thinking: bool | None = None
    """Of a chat template with this switch (Qwen3): whether the model may think first; null: what it does unasked."""
    system: str | None = None
    """The system's message, first in every conversation; null: none but the template's own."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of a chat template, by their names in it."""

    def __post_init__(self) -> None:
        if self.form not in TEMPLATES:
            raise ConfigError("model.template.form", self.form, f"one of {', '.join(TEMPLATES)}")

    @classmethod
    def of(cls, given: object) -> Template:
        """From a config: the form alone, or all of it.

        Raises:
            ConfigError: a form that there is not, or a setting of another type.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            asked = arguments("model.template", cls, given)
            for name, value in asked.items():
                check_value(f"model.template.{name}", kinds(Template)[name], value)
            return cls(**asked)
        if given not in TEMPLATES:
            raise ConfigError("model.template", given, f"one of {', '.join(TEMPLATES)}")
        return cls(str(given))

    def check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse what this tokenizer's template would ignore.

        Raises:
            ConfigError: no chat template, or a setting that it does not know.
        """
        asked = {"enable_thinking": self.enable_thinking, "system": self.system, "kwargs": dict(self.kwargs) or None}
        given = {name: value for name, value in asked.items() if value is not None}
        if self.form == "plain":
            for name, value in given.items():
                raise ConfigError(f"model.template.{name}", value, "null, or model.template.form=chat: plain has none")
            return
        if not tokenizer.chat_template:
            raise ConfigError("model.template", "chat", "this tokenizer has no chat template: use model.template=plain")
        for name in sorted(OURS & set(self.kwargs)):
            raise ConfigError("model.template.kwargs", name, "variables beside those that every prompt sets")
        names = [*self.kwargs, *(["enable_thinking"] if "enable_thinking" in given else [])]
        known = _variables(tokenizer) if names else set()
        for name in names:
            if name not in known:
                where = "" if name == "enable_thinking" else ".kwargs"
                allowed = "no variable of this tokenizer's chat template"
                raise ConfigError(f"model.template{where}", name, allowed)
        self.check_heard(tokenizer, "model.template.system")
        self._check_renders(tokenizer, [_probe("a")], [])

    def addressed(self, system: str | None, option: str = "task.system") -> Template:
        """Return the template with a task's message of the system.

        Args:
            option: that has the message, for errors.

        Raises:
            ConfigError: a plain form, or a template that has such a message already.
        """
        if system is None:
            return self
        if self.form == "plain":
            raise ConfigError(option, system, "null, or model.template.form=chat: plain has none")
        if self.system is not None:
            raise ConfigError(
                option, system, "null, or model.template.system=null: a conversation has one such message"
            )
        return replace(self, system=system)

    def check_heard(self, tokenizer: PreTrainedTokenizerBase, option: str) -> None:
        """Refuse a system message that this tokenizer's chat template does not say.

        Raises:
            ConfigError: the template refuses it or leaves it out.
        """
        if self.system is not None and (fault := self._unheard(tokenizer)):
            raise ConfigError(option, self.system, f"null: this chat template {fault}")

    def check_conversation(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse a chat template that leaves out a part of a conversation of several turns.

        Raises:
            ConfigError: names the part and the template's file.
        """
        if self.form == "chat":
            self._check_renders(tokenizer, [_probe("a"), _probe("b"), _probe("c")], [_probe("d"), _probe("e")])

    def _check_renders(self, tokenizer: PreTrainedTokenizerBase, said: Sequence[str], answers: Sequence[str]) -> None:
        """Refuse a chat template whose text lacks words of the messages, whatever it does to spaces and case.

        Raises:
            ConfigError: names the message and the template's file.
        """
        text = self.text(tokenizer, said, answers).casefold()
        names = ["user's text"] if len(said) == 1 else [f"user's text of turn {i + 1}" for i in range(len(said))]
        names += [f"model's answer of turn {i + 1}" for i in range(len(answers))]
        for name, message in zip(names, [*said, *answers], strict=True):
            words = [word for word in message.casefold().split() if word.startswith(WORD.casefold())]
            if lacking := [word for word in words if word not in text]:
                part = "the" if len(lacking) == len(words) else "a part of the"
                allowed = f"a chat template that renders all messages: {_place(tokenizer)} leaves out {part} {name}"
                raise ConfigError("model.template", "chat", allowed)

    def _unheard(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Why the template does not say the system's message; tried with a word that no template has."""
        try:
            said = WORD in replace(self, system=WORD).text(tokenizer, ["A text."])
        except ConfigError as error:
            replace(self, system=None).text(tokenizer, ["A text."])  # it may refuse all else
            return f"refuses it ({reason(error.__cause__ or error)})"
        return None if said else "leaves it out"

    def text(self, tokenizer: PreTrainedTokenizerBase, said: Sequence[str], answers: Sequence[str] = ()) -> str:
        """A conversation up to where the model's next answer begins.

        Args:
            said: by the user, in turn.
            answers: of the model, to all but the last.

        Raises:
            ConfigError: the chat template refuses it.
        """
        pairs = list(zip_longest(said, answers))
        if self.form == "plain":
            return "".join(text + (answer or "") for text, answer in pairs)
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for text, answer in pairs:
            messages.append({"role": "user", "content": text})
            messages += [] if answer is None else [{"role": "assistant", "content": answer}]
        options = {"date_string": CHAT_DATE, **self.kwargs}
        options |= {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options))
        except Exception as error:  # a template raises what it likes
            allowed = f"messages that this tokenizer's chat template takes ({reason(error)})"
            raise ConfigError("model.template", "chat", allowed) from error

    def ids(self, tokenizer: PreTrainedTokenizerBase, said: Sequence[str], answers: Sequence[str] = ()) -> list[int]:
        """Token ids of `text`; a template's own special tokens are not doubled (a known fault of released code)."""
        rendered = self.text(tokenizer, said, answers)
        return list(tokenizer(rendered, add_special_tokens=self.form == "plain", verbose=False)["input_ids"])


PLAIN = Template("plain")


def _probe(letter: str) -> str:
    """Return a long message with words at its beginning, middle and end that no template has."""
    words = [f"{WORD}{letter}{place}" for place in ("first", "middle", "last")]
    return f"{FILLER}. ".join(words)


def _place(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the file that the chat template is in, in the order in which transformers looks for it."""
    folder = Path(tokenizer.name_or_path)
    files = [folder / name for name in ("chat_template.jinja", "chat_template.json") if (folder / name).is_file()]
    return str([*files, folder / "tokenizer_config.json"][0]) if folder.is_dir() else "it"


def _variables(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The names that a chat template looks up in what it is given."""
    from jinja2 import Environment, meta  # not what every command waits for

    source = Environment(extensions=["jinja2.ext.loopcontrols"])
    text = re.sub(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}", "", tokenizer.get_chat_template())  # tags of transformers
    return meta.find_undeclared_variables(source.parse(text)) - {"raise_exception", "strftime_now"}

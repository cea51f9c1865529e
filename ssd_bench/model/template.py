"""Template of a prompt: the tokenizer's chat template, or the text as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from datetime import datetime, tzinfo
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_bench.errors import ConfigError
from ssd_bench.model.headers import reason
from ssd_bench.settings import arguments, settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATES = ("chat", "plain")
# Some chat templates print today's date: that of `date_string` (Llama 3.2), or of the clock, by `strftime_now`. Prompts
# must not change with the day, so both get the date that Llama 3's own template falls back on.
CHAT_DAY = datetime(2024, 7, 26)
CHAT_DATE = CHAT_DAY.strftime(DAY_FORMAT := "%d %b %Y")
ANOTHER_DAY = datetime(2031, 11, 5, 17, 43, 29)  # differs from it in every part, to see whether a template prints one
WORD = "Zq7wKx"  # occurs in no template
FILLER = " and so on" * 400  # makes a probe as long as some pages, so that a template that truncates is noticed
RESERVED = {"messages", "conversation", "chat_template", "tokenize", "add_generation_prompt", "enable_thinking"}
"""Variables of a chat template, set for every prompt."""


@settings("model.template", frozen=True)
class Template:
    """Settings of `model.template`."""

    form: str
    """chat: the tokenizer's chat template; plain: the text as it is, with the tokenizer's own special tokens."""
    enable_thinking: bool | None = None
    """Whether the model may think first, for chat templates with this switch (Qwen3); null: the template's default."""
    system: str | None = None
    """System message, first in every conversation; null: none but the template's own."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of a chat template, by their names in it."""

    def __post_init__(self) -> None:
        if self.form not in TEMPLATES:
            raise ConfigError("model.template.form", self.form, f"one of {', '.join(TEMPLATES)}")

    @classmethod
    def of(cls, config: object) -> Template:
        """Return the template of a config with its form alone or all settings.

        Raises:
            ConfigError: an unknown form, or a setting of a wrong type.
        """
        if isinstance(config, cls):
            return config
        if isinstance(config, Mapping):
            return cls(**arguments("model.template", cls, config))
        if config not in TEMPLATES:
            raise ConfigError("model.template", config, f"one of {', '.join(TEMPLATES)}")
        return cls(str(config))

    def check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise ConfigError for settings that this tokenizer's template lacks and would ignore."""
        settings = {"enable_thinking": self.enable_thinking, "system": self.system, "kwargs": dict(self.kwargs) or None}
        chosen = {name: value for name, value in settings.items() if value is not None}
        if self.form == "plain":
            for name, value in chosen.items():
                raise ConfigError(f"model.template.{name}", value, "null, or model.template.form=chat: plain has none")
            return
        if not tokenizer.chat_template:
            raise ConfigError("model.template", "chat", "plain: this tokenizer has no chat template")
        for name in sorted(RESERVED & set(self.kwargs)):
            raise ConfigError("model.template.kwargs", name, "variables other than those that every prompt sets")
        names = [*self.kwargs, *(["enable_thinking"] if "enable_thinking" in chosen else [])]
        variables = _variables(tokenizer) if names else set()
        for name in names:
            if name not in variables:
                place = "" if name == "enable_thinking" else ".kwargs"
                expected = "variables of this tokenizer's chat template"
                raise ConfigError(f"model.template{place}", name, expected)
        self.check_heard(tokenizer, "model.template.system")
        self._check_renders(tokenizer, [_probe("a")], [])

    def with_system(self, system: str | None, option: str = "task.system") -> Template:
        """Return the template with a task's system message from an option.

        Raises:
            ConfigError: a plain form, or a template that already has a system message.
        """
        if system is None:
            return self
        if self.form == "plain":
            raise ConfigError(option, system, "null, or model.template.form=chat: plain has none")
        if self.system is not None:
            expected = "null, or model.template.system=null: a conversation has one such message"
            raise ConfigError(option, system, expected)
        return replace(self, system=system)

    def check_heard(self, tokenizer: PreTrainedTokenizerBase, option: str) -> None:
        """Raise ConfigError if this tokenizer's chat template refuses or omits the system message."""
        if self.system is not None and (fault := self._system_fault(tokenizer)):
            raise ConfigError(option, self.system, f"null: this chat template {fault}")

    def check_conversation(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise ConfigError if a chat template omits a part of a conversation of several turns."""
        if self.form == "chat":
            self._check_renders(tokenizer, [_probe("a"), _probe("b"), _probe("c")], [_probe("d"), _probe("e")])

    def _check_renders(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], answers: Sequence[str]) -> None:
        """Refuse a chat template whose text lacks words of the messages; changes of spaces and case are allowed."""
        text = self.text(tokenizer, texts, answers).casefold()
        names = ["user's text"] if len(texts) == 1 else [f"user's text of turn {i + 1}" for i in range(len(texts))]
        names += [f"model's answer of turn {i + 1}" for i in range(len(answers))]
        for name, message in zip(names, [*texts, *answers], strict=True):
            words = [word for word in message.casefold().split() if word.startswith(WORD.casefold())]
            if lacking := [word for word in words if word not in text]:
                part = "the" if len(lacking) == len(words) else "a part of the"
                expected = f"a chat template that renders all messages: {_place(tokenizer)} leaves out {part} {name}"
                raise ConfigError("model.template", "chat", expected)

    def _system_fault(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Return why the template does not render the system message; None if it does."""
        try:
            rendered = WORD in replace(self, system=WORD).text(tokenizer, ["A text."])
        except ConfigError as error:
            replace(self, system=None).text(tokenizer, ["A text."])  # raises if the system message is not the cause
            return f"refuses it ({reason(error.__cause__ or error)})"
        return None if rendered else "leaves it out"

    def date_warning(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """Return a warning with every prompt's date, if the chat template prints one; else nothing."""
        if self.text(tokenizer, ["A text."]) == self.text(tokenizer, ["A text."], day=ANOTHER_DAY):
            return []
        return [f"the chat template prints a date: it gets {CHAT_DATE} on every day, so that prompts stay the same"]

    def text(
        self,
        tokenizer: PreTrainedTokenizerBase,
        texts: Sequence[str],
        answers: Sequence[str] = (),
        day: datetime = CHAT_DAY,
    ) -> str:
        """Return the text of a conversation up to the model's next answer.

        Args:
            texts: the user's messages, in turn.
            answers: to all messages but the last.
            day: date and time for chat templates that print it.

        Raises:
            ConfigError: the chat template refuses it.
        """
        pairs = list(zip_longest(texts, answers))
        if self.form == "plain":
            return "".join(text + (answer or "") for text, answer in pairs)
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for text, answer in pairs:
            messages.append({"role": "user", "content": text})
            messages += [] if answer is None else [{"role": "assistant", "content": answer}]
        options = {"date_string": day.strftime(DAY_FORMAT), **self.kwargs}
        options |= {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        try:
            with _clock_at(day):
                prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        except Exception as error:  # a template raises what it likes
            expected = f"messages that this tokenizer's chat template accepts ({reason(error)})"
            raise ConfigError("model.template", "chat", expected) from error
        return str(prompt)

    def ids(self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], answers: Sequence[str] = ()) -> list[int]:
        """Return the ids of `text`; a chat template gets no further special tokens (some papers' code doubles them)."""
        rendered = self.text(tokenizer, texts, answers)
        return list(tokenizer(rendered, add_special_tokens=self.form == "plain", verbose=False)["input_ids"])


PLAIN = Template("plain")


@contextmanager
def _clock_at(day: datetime) -> Iterator[None]:
    """Fix the time of `strftime_now` in chat templates; transformers takes no function as a variable."""
    from transformers.utils import chat_template_utils

    class FixedClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return day

    names = vars(chat_template_utils)
    clock, names["datetime"] = names["datetime"], FixedClock
    try:
        yield
    finally:
        names["datetime"] = clock


def _probe(letter: str) -> str:
    """Return a long message whose first, middle and last word are rare."""
    words = [f"{WORD}{letter}{place}" for place in ("first", "middle", "last")]
    return f"{FILLER}. ".join(words)


def _place(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the chat template's file, in transformers' order."""
    folder = Path(tokenizer.name_or_path)
    files = [folder / name for name in ("chat_template.jinja", "chat_template.json") if (folder / name).is_file()]
    return str([*files, folder / "tokenizer_config.json"][0]) if folder.is_dir() else "it"


def _variables(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    from jinja2 import Environment, meta  # imported here: not every command needs it

    source = Environment(extensions=["jinja2.ext.loopcontrols"])
    text = re.sub(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}", "", tokenizer.get_chat_template())  # its own tags
    return meta.find_undeclared_variables(source.parse(text)) - {"raise_exception", "strftime_now"}

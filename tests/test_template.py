"""`model.template`: what a chat template is told, and what it would ignore."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ssd_bench.data.prompting import encode, room
from ssd_bench.errors import ConfigError
from ssd_bench.model.template import CHAT_DATE, PLAIN, Template
from ssd_bench.task import Prompt, Turn
from tests.conftest import CHAT, make_tokenizer
from tests.runs import executed, local_model, planned

THINKING = CHAT + "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
DATED = "{{ date_string }} {{ mood }}: {{ messages[-1].content }}"
NO_ANSWERS = "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no answers here') }}{% endif %}"
NO_ANSWERS += "{{ m.content }}{% endfor %}"
NO_SYSTEM = NO_ANSWERS.replace("assistant", "system")
ONE_SPEAKER = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"


def test_a_thinking_template_is_told() -> None:
    tokenizer = make_tokenizer(THINKING)
    texts = [Template("chat", enable_thinking=value).text(tokenizer, ["text"]) for value in (None, True, False)]
    assert texts[0] == texts[1] == "<s><|user|>text\n<|assistant|>" and texts[2] == texts[0] + "<think></think>"


def test_a_system_message_is_first_in_every_conversation() -> None:
    tokenizer = make_tokenizer(CHAT)
    template = Template("chat", system="be brief")
    assert template.text(tokenizer, ["a", "b"], ["c"]) == (
        "<s><|system|>be brief\n<|user|>a\n<|assistant|>c\n<|user|>b\n<|assistant|>"
    )
    prompt = Prompt("x", "a ", "long report", "", "", "d")
    clipped = encode(prompt, tokenizer, template, 28)
    assert "be brief" in tokenizer.decode(list(clipped.ids)) and clipped.clipped > 0


def test_other_variables_have_their_names() -> None:
    tokenizer = make_tokenizer(DATED)
    template = Template("chat", kwargs={"mood": "glad"})
    template.check(tokenizer)
    assert template.text(tokenizer, ["hello"]) == f"{CHAT_DATE} glad: hello"
    assert Template("chat", kwargs={"date_string": "today"}).text(tokenizer, ["hello"]) == "today : hello"


@pytest.mark.parametrize(
    ("template", "chat_template", "field"),
    [
        (Template("chat", enable_thinking=False), CHAT, "model.template"),
        (Template("chat", system="be brief"), ONE_SPEAKER, "model.template.system"),
        (Template("chat", kwargs={"mood": "glad"}), CHAT, "model.template.kwargs"),
        (Template("chat", kwargs={"messages": []}), CHAT, "model.template.kwargs"),
        (Template("chat", kwargs={"m": 1}), CHAT, "model.template.kwargs"),
        (Template("chat", kwargs={"endfor": 1}), CHAT, "model.template.kwargs"),
        (Template("chat", kwargs={"role": 1}), CHAT, "model.template.kwargs"),
        (Template("chat", kwargs={"user": 1}), "{% generation %}user{% endgeneration %}", "model.template.kwargs"),
        (Template("chat", system="user"), ONE_SPEAKER + "user", "model.template.system"),
        (Template("chat", system="A text."), ONE_SPEAKER, "model.template.system"),
        (Template("chat", system="be brief"), NO_SYSTEM, "model.template.system"),
        (Template("chat"), None, "model.template"),
        (Template("plain", enable_thinking=True), CHAT, "model.template.enable_thinking"),
        (Template("plain", system="be brief"), CHAT, "model.template.system"),
        (Template("plain", kwargs={"mood": 1}), CHAT, "model.template.kwargs"),
    ],
)
def test_what_a_template_would_ignore_is_refused(template: Template, chat_template: str | None, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        template.check(make_tokenizer(chat_template))
    assert error.value.field == field


@pytest.mark.parametrize("system", ["be brief", "a", "", "Be kind."])
def test_a_system_message_that_a_template_says_is_taken(system: str) -> None:
    unasked = "{% if messages[0].role != 'system' %}Be kind.{% endif %}"
    Template("chat", system=system).check(make_tokenizer(unasked + CHAT))


def test_a_variable_is_one_wherever_it_stands() -> None:
    text = "{% generation %}{% if not mood is defined %}{% set mood = 'sad' %}{% endif %}{{ mood }}{% endgeneration %}"
    Template("chat", kwargs={"mood": "glad"}).check(make_tokenizer(text))


def test_a_conversation_that_a_template_refuses_is_one_message() -> None:
    tokenizer, template = make_tokenizer(NO_ANSWERS), Template("chat")
    template.check(tokenizer)
    with pytest.raises(ConfigError, match=r"model\.template='chat' .* \(no answers here\)"):
        room(Prompt("x", "", "a", "", "", "d", turns=(Turn("b"),)), tokenizer, template, 4)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("raw", "model.template"),
        (None, "model.template"),
        ({"form": "raw"}, "model.template.form"),
        ({}, "model.template.form"),
        ({"form": "chat", "enable_thinking": "yes"}, "model.template.enable_thinking"),
        ({"form": "chat", "system": 3}, "model.template.system"),
        ({"form": "chat", "kwargs": [1]}, "model.template.kwargs"),
        ({"form": "chat", "nonsense": 1}, "model.template.nonsense"),
    ],
)
def test_a_setting_of_another_type_is_refused(given: object, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        Template.of(given)
    assert error.value.field == field


def test_it_is_written_in_full_or_as_its_form() -> None:
    assert Template.of("plain") == Template.of({"form": "plain"}) == PLAIN


def test_a_run_says_how_it_was_asked(small_checkpoint: Path, tmp_path: Path) -> None:
    """The prompt has it, so has the record's key; however it is written, the form alone is the same."""
    folder = tmp_path / "model"
    shutil.copytree(small_checkpoint, folder)
    (folder / "chat_template.jinja").write_text(THINKING, encoding="utf-8")
    options = ("task=gsm8k", "limit=2", "method=ar", "decode.max_new_tokens=4")
    chat = local_model(folder)
    said = [option for option in chat if not option.startswith("model.template")] + ["model.template.form=chat"]
    assert planned(tmp_path, *chat, *options).content_key == planned(tmp_path, *said, *options).content_key
    run = executed(tmp_path / "runs", *said, *options, "model.template.enable_thinking=false")
    told = run.header["config"]["model"]["template"]
    assert told == {"form": "chat", "enable_thinking": False, "system": None, "kwargs": {}}
    other = executed(tmp_path / "runs", *said, *options)
    assert other.path != run.path
    lengths = [set(one.prompts["prompt_len"]) for one in (run, other)]
    assert min(lengths[0]) > min(lengths[1]) and json.dumps(told)

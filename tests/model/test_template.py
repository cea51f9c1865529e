"""`model.template`: what a chat template is told, and what it would ignore; and texts from tokens."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from ssd_bench.contract.task import Prompt, Turn
from ssd_bench.data.prompting import conversation_length, encode
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.model.template import CHAT_DATE, PLAIN, Template
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
        (Template("chat", kwargs={"user": 1}), "{% generation %}user{% endgeneration %}", "model.template.kwargs"),
        (Template("chat", system="user"), ONE_SPEAKER + "user", "model.template.system"),
        (Template("chat", system="be brief"), NO_SYSTEM, "model.template.system"),
        (Template("chat"), None, "model.template"),
        (Template("plain", enable_thinking=True), CHAT, "model.template.enable_thinking"),
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
    Template("chat", kwargs={"mood": "glad"}).check(make_tokenizer(text + CHAT))


def test_a_conversation_that_a_template_refuses_is_one_message() -> None:
    tokenizer, template = make_tokenizer(NO_ANSWERS), Template("chat")
    template.check(tokenizer)
    with pytest.raises(ConfigError, match=r"model\.template='chat' .* \(no answers here\)"):
        conversation_length(Prompt("x", "", "a", "", "", "d", turns=(Turn("b"),)), tokenizer, template, 4)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("raw", "model.template"),
        (None, "model.template"),
        ({}, "model.template.form"),
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
    with pytest.raises(ConfigError, match=r"model\.template\.form='raw' .*chat, plain"):
        Template("raw")


def test_a_run_says_how_it_was_asked(folder: Path, tmp_path: Path) -> None:
    """Prompt and record key have it; in any spelling, the form alone counts. Date and unused settings are warnings."""
    (folder / "chat_template.jinja").write_text(THINKING + "{{ strftime_now('%d %b') }}", encoding="utf-8")
    (folder / "generation_config.json").write_text('{"repetition_penalty": 1.05}', encoding="utf-8")
    options = ("task=gsm8k", "limit=2", "method=ar", "decode.max_new_tokens=4")
    chat = local_model(folder)
    said = [option for option in chat if not option.startswith("model.template")] + ["model.template.form=chat"]
    first, second = (planned(tmp_path, *form, *options) for form in (chat, said))
    assert first.identity.content_key == second.identity.content_key
    run = executed(tmp_path, *said, *options, "model.template.enable_thinking=false")
    assert run.header.config["model"]["template"] == {
        "form": "chat",
        "enable_thinking": False,
        "system": None,
        "kwargs": {},
    }
    assert run.header.content_key != first.identity.content_key
    assert min(run.prompts["prompt_len"]) > len(first.prompts.shortest.ids)
    warnings = "\n".join(run.header.warnings)
    assert "it gets 26 Jul 2024" in warnings and "in the papers: repetition_penalty=1.05." in warnings


TEXT, PART = "the user's text", "a part of the user's text"
DROPPED = {  # by every such template: this part of one message, and of the first turn of a conversation
    "<|user|><|assistant|>": TEXT,
    "{% for m in messages if m.role == 'human' %}{{ m.content }}{% endfor %}": TEXT,
    "{% for m in messages %}{{ m.content[0].text }}{% endfor %}": TEXT,
    "{% for m in messages %}{{ m.content[:2000] }}{% endfor %}": PART,
    "{% for m in messages %}{{ m.content.split('.')[0] }}{{ m.content[-30:] }}{% endfor %}": PART,
}
DROPPED_IN_CONVERSATIONS = {
    "{{ messages[-1].content }}": "the user's text of turn 1",
    "{{ messages[0].content }}": "the user's text of turn 2",
    "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}": "the model's answer of turn 1",
    "{% for m in messages %}{% if m.role == 'user' or loop.revindex < 3 %}{{ m.content }}{% endif %}{% endfor %}": (
        "the model's answer of turn 1"
    ),
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}": None,
    "{% for m in messages %}{{ m.content.lower().strip() }}{% endfor %}": None,
    "{{ messages | tojson }}": None,
}


@pytest.mark.parametrize(
    ("source", "one_message", "conversation"),
    [
        *((source, part, f"{part} of turn 1") for source, part in DROPPED.items()),
        *((source, None, part) for source, part in DROPPED_IN_CONVERSATIONS.items()),
    ],
)
def test_a_template_that_leaves_out_text_is_refused(
    source: str, one_message: str | None, conversation: str | None, tmp_path: Path
) -> None:
    tokenizer = make_tokenizer(source)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = type(tokenizer).from_pretrained(tmp_path)
    for check, part in [(Template.check, one_message), (Template.check_conversation, conversation)]:
        if part is None:
            check(Template("chat"), tokenizer)
        else:
            with pytest.raises(ConfigError, match=rf"model\.template='chat' .*chat_template\.jinja leaves out {part}$"):
                check(Template("chat"), tokenizer)
        check(PLAIN, tokenizer)


def test_a_system_message_may_not_displace_the_users() -> None:
    tokenizer = make_tokenizer("{{ messages[0].content }}")
    Template("chat").check(tokenizer)
    with pytest.raises(ConfigError, match="leaves out the user's text"):
        Template("chat", system="be brief").check(tokenizer)


def test_a_run_of_conversations_with_such_a_template_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}", encoding="utf-8")
    options = (*local_model(folder), "task=mt_bench", "limit=2", "method=ar", "decode.max_new_tokens=4")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja leaves out the .*turn 1"):
        planned(tmp_path, *options)


CLOCKS = [
    "{% set today = strftime_now('%d %b %Y') %}{{ today }}",
    "{% macro year() %}{{ strftime_now('%Y') }}{% endmacro %}{{ year() }}",
    "{% if strftime_now is defined %}{{ strftime_now('%A') }}{% endif %}",
    "{{ date_string }}",
    "{% if not date_string is defined %}{% set date_string = strftime_now('%B') %}{% endif %}{{ date_string }}",
]
"""The last one is Llama 3.2's."""


@pytest.mark.parametrize("clock", CLOCKS)
def test_no_prompt_changes_with_the_clock(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, template = make_tokenizer(CHAT + clock), Template("chat")
    text = template.text(tokenizer, ["hello"])
    late = SimpleNamespace(now=lambda *_: datetime(2033, 12, 29, 23, 58))
    monkeypatch.setattr(chat_template_utils, "datetime", late)
    assert template.text(tokenizer, ["hello"]) == text
    (warning,) = template.date_warning(tokenizer)
    assert CHAT_DATE in warning


def test_a_template_without_a_date_has_no_warning_and_the_clock_no_setting() -> None:
    tokenizer = make_tokenizer(CHAT + "{% if messages | length > 9 %}{{ strftime_now('%d') }}{% endif %}")
    assert Template("chat").date_warning(tokenizer) == [] == PLAIN.date_warning(tokenizer)
    with pytest.raises(ConfigError, match="strftime_now"):
        Template("chat", kwargs={"strftime_now": "today"}).check(tokenizer)


def test_text_is_decoded_without_clean_up(folder: Path, threaded: None, tmp_path: Path) -> None:
    """`decode` removes spaces before punctuation if tokenizer_config.json asks for it, which changes scores."""
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    words = ["<unk>", *("it", "'s", "ok", ".", ",", "!", "?", "do", "n't"), *(f".w{i}" for i in range(10, size))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", clean_up_tokenization_spaces=True)
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["clean_up_tokenization_spaces"] is True
    checkpoint = ModelSource("local", "plain", path=str(folder)).open()
    ids = [1, 2, 3, 4, 5, 8, 9]
    assert checkpoint.tokenizer.decode(ids) == "it's ok., don't"
    assert checkpoint.text(ids) == "it 's ok . , do n't"
    local = ("model=local", f"model.path={folder}", "model.template=plain")
    options = ("task=gsm8k", "limit=1", "method=fixed_layers", "decode.max_new_tokens=32", "baseline=hf")
    run = executed(tmp_path / "runs", *local, *options)
    for ids, text in zip(run.prompts["output_ids"], run.prompts["text"], strict=True):
        assert text == " ".join(words[i] for i in ids if i) and " .w" in text
    assert set(run.prompts["arm"]) == {"ar", "method", "hf"}

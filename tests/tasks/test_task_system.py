"""`task.system`: a system message for one task, or one part of a stream."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ssd_bench.data.prompting import encode_turn
from ssd_bench.errors import ConfigError
from ssd_bench.run.plan import Plan
from tests.conftest import CHAT, make_tokenizer
from tests.runs import executed, local_model, planned
from tests.tasks.test_tasks import SAMPLE, TASKS, make

NEW = "decode.max_new_tokens=4"
SAID = "Answer in one word."


def texts(plan: Plan) -> list[str]:
    tokenizer = plan.model.checkpoint.tokenizer
    return [str(tokenizer.decode(encoded.ids)) for encoded in plan.prompts.encoded]


def test_a_tasks_system_message_is_ahead_of_every_prompt(small_checkpoint: Path, tmp_path: Path) -> None:
    line = (*local_model(small_checkpoint), "task=gsm8k", "limit=2", NEW)
    plain, addressed = planned(tmp_path, *line), planned(tmp_path, *line, f"task.system={SAID!r}")
    wanted = [text.replace("<|user|>", f"<|system|>{SAID}\n<|user|>", 1) for text in texts(plain)]
    assert texts(addressed) == wanted
    assert not {e.sha256 for e in plain.prompts.encoded} & {e.sha256 for e in addressed.prompts.encoded}
    assert addressed.identity.content_key != plain.identity.content_key
    by_model = planned(tmp_path, *line, f"model.template={{form: chat, system: {SAID!r}}}")
    assert [e.ids for e in by_model.prompts.encoded] == [e.ids for e in addressed.prompts.encoded]


def test_every_task_takes_one() -> None:
    others = {name: {"sandbox": "best_effort"} for name in ("humaneval", "mbpp")}
    others["jsonl"] = {"path": f"{SAMPLE.root}/jsonl.jsonl"}
    for name in TASKS:
        if not name.startswith("stream"):
            (prompt,) = make(name, system=SAID, **others.get(name, {})).prompts(SAMPLE, "chat", 1, 0)
            assert prompt.system == SAID, name


def test_parts_of_a_stream_have_their_own(small_checkpoint: Path, tmp_path: Path) -> None:
    line = (*local_model(small_checkpoint), "task=stream", "task.items=1", NEW, f"task.parts.gsm8k.system={SAID!r}")
    plan = planned(tmp_path, *line, "method=knn_ssd", "method.calibration=1")
    said = {prompt.domain: SAID in text for prompt, text in zip(plan.prompts.items, texts(plan), strict=True)}
    assert said == {"cnn_dm": False, "gsm8k": True, "wmt16": False, "spider2": False, "tinystories": False}
    tokenizer = plan.model.checkpoint.tokenizer
    sampled = {sample.domain: str(tokenizer.decode(sample.prompt)) for sample in plan.prompts.samples}
    assert {domain for domain, text in sampled.items() if SAID in text} == {"gsm8k"}


def test_later_turns_of_a_conversation_have_it_once(small_checkpoint: Path, tmp_path: Path) -> None:
    line = (*local_model(small_checkpoint), "task=mt_bench", "limit=1", NEW, f"task.system={SAID!r}")
    plan = planned(tmp_path, *line)
    checkpoint = plan.model.checkpoint
    turn = encode_turn(plan.prompts.items[0], ["one"], checkpoint.tokenizer, checkpoint.template)
    text = str(checkpoint.tokenizer.decode(turn.ids))
    assert text.count(SAID) == 1 and text.count("<|user|>") == 2
    run = executed(tmp_path, *line, "method=jacobi")
    assert set(run.prompts["prompt_sha256"]) >= {plan.prompts.encoded[0].sha256}


PLAIN = "model.template.form=plain"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["task=gsm8k", "task.system=S", PLAIN], r"task\.system='S' .*plain has none"),
        (["task=gsm8k", "task.system=S", "model.template.system=T"], r"task\.system='S' .*has one such message"),
        (["task=stream", "task.parts.wmt16.system=S", PLAIN], r"task\.parts\.wmt16\.system='S' .*plain has none"),
        (["task@calibrate=gsm8k", "calibrate.system=S", PLAIN, "method=oracle"], r"calibrate\.system='S' .*plain has"),
        (
            ["task=gsm8k", "task.system=7"],
            r"task\.system=7 .*a text, or null; a text that looks like a number needs",
        ),
    ],
)
def test_a_message_that_would_not_be_said_is_refused(options: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        planned(tmp_path, "model=miniature", NEW, *options)


def test_a_template_that_leaves_it_out_is_refused(small_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deaf"
    shutil.copytree(small_checkpoint, folder)
    deaf = CHAT.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")
    make_tokenizer(deaf).save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"^task\.parts\.gsm8k\.system='S' .*this chat template leaves it out"):
        planned(tmp_path, *local_model(folder), NEW, "task=stream", "task.items=1", "task.parts.gsm8k.system=S")

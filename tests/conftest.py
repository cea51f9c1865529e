"""Tiny random models of every family, saved as Hugging Face checkpoints."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from tokenizers import decoders as token_decoders
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from ssd_bench.engine.engine import Engine
from ssd_bench.lease import hold_lease
from ssd_bench.model import arithmetic
from ssd_bench.model.backend import select
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.papers.claims.judge import Judgement, judge
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.results.folder import prepare_records, records
from ssd_bench.results.store import FILE
from ssd_bench.run import hugging_face
from tests.exhibit_runs import make_all, prepare_all
from tests.runs import REFERENCE

torch.set_num_threads(1)  # for matrices this small, waking a second thread costs more than it saves
os.fsync = lambda _: None  # 3 ms each, some 50,000 of them; a killed process, unlike a power cut, loses nothing without

LONGEST = ("ends", "page", "models", "bad_options", "sweep", "notebooks", "documented_commands", "exhibit_figures")
"""Files with the longest tests or groups, run first so that no process is left alone with one."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send tests that share a module's fixture, or verdicts, to one process, which makes it once.

    They are the groups of `--dist loadgroup`.
    """
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONGEST)
    fixtures = {item: item._fixtureinfo.name2fixturedefs for item in items}  # type: ignore[attr-defined]
    judging = {item.path for item in items if "judgements" in fixtures[item]}
    for item in items:
        shares = any(definitions[-1].scope == "module" for definitions in fixtures[item].values())
        if shares or "judgements" in fixtures[item]:
            group = "judgements" if item.path in judging else item.nodeid.partition("::")[0]
            item.add_marker(pytest.mark.xdist_group(group))
            # xdist tells its scheduler the group at the end of `_nodeid`, which pytest 9.2 no longer reads
            if item.config.getoption("loadgroup", False) and hasattr(item, "_id"):
                item._id = type(item._id).parse(f"{item.nodeid}@{group}")


def pytest_collection_finish() -> None:
    """Look for unreachable objects rarely, and not among imported ones: without any search two files took 13 % less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # libraries report what they find alive at the end of the process


VOCAB, LAYERS, CONTEXT = 61, 4, 256
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.2,
}


def rope(base: float, kind: str = "default", **scaling: float) -> dict[str, object]:
    return {"rope_type": kind, "rope_theta": base, **scaling}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, Callable[..., PretrainedConfig]] = {
    "llama": lambda **sizes: LlamaConfig(**SIZES | sizes, tie_word_embeddings=True, rope_parameters=rope(5e4)),
    "llama_bias": lambda **sizes: LlamaConfig(
        **SIZES | sizes, attention_bias=True, mlp_bias=True, head_dim=16, rope_parameters=rope(1e4)
    ),
    "llama3_rope": lambda **sizes: LlamaConfig(**SIZES | sizes, rope_parameters=rope(5e5, "llama3", **LLAMA3)),
    "llama_linear": lambda **sizes: LlamaConfig(**SIZES | sizes, rope_parameters=rope(1e5, "linear", factor=4.0)),
    "llama_dynamic": lambda **sizes: LlamaConfig(**SIZES | sizes, rope_parameters=rope(1e4, "dynamic", factor=2.0)),
    "qwen2": lambda **sizes: Qwen2Config(**SIZES | sizes, tie_word_embeddings=False, rope_parameters=rope(1e6)),
    "qwen2_yarn": lambda **sizes: Qwen2Config(
        **SIZES | sizes, rope_parameters=rope(1e6, "yarn", factor=4.0, original_max_position_embeddings=64)
    ),
    "qwen3": lambda **sizes: Qwen3Config(**SIZES | sizes, head_dim=8, rope_parameters=rope(1e6)),
}


CORPUS = [
    "the report of the ferry service",
    "Summarize the following text:\n\nSummary:",
    "a naïve café — 日本語 text",
] * 20
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(chat_template: str | None) -> PreTrainedTokenizerFast:
    """A small byte-level BPE tokenizer that begins texts with `<s>`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = token_decoders.ByteLevel()
    special = ["<s>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=alphabet)
    core.train_from_iterator(CORPUS, trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", chat_template=chat_template)


def save_model(config: PretrainedConfig, folder: Path, seed: int = 0, shard: str = "50GB") -> Path:
    """A random checkpoint of this config, with random norms and biases so that none is ignored.

    Args:
        shard: largest file of weights.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: save_model(make(), root / name) for name, make in FAMILIES.items()}


@pytest.fixture(scope="session")
def short_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models with two blocks, for Triton's interpreter, where a pass takes seconds."""
    root, names = tmp_path_factory.mktemp("short_models"), ("llama", "llama_bias", "qwen2", "qwen3")
    return {name: save_model(FAMILIES[name](num_hidden_layers=2), root / name) for name in names}


@pytest.fixture(scope="session")
def decoders(checkpoints: dict[str, Path]) -> Callable[..., Decoder]:
    """Loads a family's tiny decoder, once per (family, dtype, kernels, level); skips levels without kernels."""
    loaded: dict[tuple[str, torch.dtype, str, str], Decoder] = {}

    def load(
        family: str = "llama", dtype: torch.dtype = torch.float64, kernels: str = "torch", isa: str = "auto"
    ) -> Decoder:
        key = family, dtype, kernels, isa
        if kernels == "native" and (problem := native_problem(isa)):
            pytest.skip(f"level {isa} is not tested: {problem}")
        if key not in loaded:
            loaded[key] = select("cpu", dtype, kernels, isa).load(
                Checkpoint(checkpoints[family]), dtype, [torch.device("cpu")]
            )
        return loaded[key]

    return load


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and a context for sample prompts, for whole runs."""
    folder = tmp_path_factory.mktemp("small")
    tokenizer = make_tokenizer(CHAT)
    sizes = SIZES | {"vocab_size": len(tokenizer), "max_position_embeddings": 4096}
    save_model(LlamaConfig(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 1e5}), folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def reference() -> list[Replication]:
    """Return the committed records' experiments; their digests (half a minute) are computed once and stored."""
    with hold_lease(REFERENCE, ".digests.lock"):
        folder = unpacked_folder(REFERENCE)
        run_records = records(folder)
        prepare_records(run_records)
    return replications(folder, run_records)


@pytest.fixture(scope="session")
def judgements(reference: list[Replication]) -> list[Judgement]:
    """Return the committed records' verdicts (half a minute)."""
    return judge(reference)


@pytest.fixture(scope="session")
def every_experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs of every experiment at scale mini, made and digested once."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "every_experiment"
    with hold_lease(base, ".every_experiment.lock"):
        if not (folder / FILE).is_file():
            make_all(folder)
            prepare_all(folder)
    return folder


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_page(monkeypatch)


def leave_out_page(patch: pytest.MonkeyPatch) -> None:
    """Leave the papers' numbers and the page out of reports: 9 s each, and report/test_page tests them."""
    from ssd_bench.report import write

    patch.setattr(write.numbers, "long_tables", lambda replications: {})
    patch.setattr(write, "build_exhibits", lambda *_: [])
    patch.setattr(write, "completeness", lambda *_: "")
    patch.setattr(write, "audit", SimpleNamespace(audit=list, markdown_text=str))
    patch.setattr(write.page, "render", lambda *_: "")


class Thread(threading.Thread):
    """A process's stand-in that serves in this one."""

    terminate = threading.Thread.join

    def __init__(self, _: object, pass_fds: Sequence[int]) -> None:
        super().__init__(target=hugging_face.serve, args=(os.dup(pass_fds[0]),))
        self.start()

    def wait(self) -> int:
        self.join()
        return 0


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the arm of Hugging Face in this process: no start of seconds."""
    monkeypatch.setattr(hugging_face, "subprocess", SimpleNamespace(Popen=Thread))
    monkeypatch.setattr(hugging_face, "signal", Mock())


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Forks of the verifications on saved states, as they happen."""
    verify_rest, seen = Engine._verify_from_fork, []

    def counted(self: Engine, *arguments: object) -> object:
        seen.append(arguments[2])
        return verify_rest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "_verify_from_fork", counted)
    return seen  # type: ignore[return-value]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """Passes of all decoders, as they happen."""
    run, seen = Decoder.run, list[Pass]()

    def counted(self: Decoder, forward: Pass, cache: KVCache) -> tuple[torch.Tensor, torch.Tensor | None]:
        seen.append(forward)
        return run(self, forward, cache)

    monkeypatch.setattr(Decoder, "run", counted)
    return seen


@pytest.fixture
def every_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU that has everything, even matrix units."""
    monkeypatch.setattr(arithmetic, "_flags", lambda: {need for level in arithmetic.LEVELS for need in level.needs})
    monkeypatch.delenv(arithmetic.FORCED, raising=False)
    arithmetic.available_levels.cache_clear()
    yield
    arithmetic.available_levels.cache_clear()

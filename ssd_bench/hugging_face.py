"""Hugging Face `generate` on the stock class of a checkpoint: the baseline that some papers divide by; speed only.

`HuggingFace` decodes in this process. `Apart` is one in a process of its own, so that a second copy of the weights, and
what it takes to load and run them, is in no other arm's memory; an allocator's or a system's peak could not be split.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ssd_bench.core.engine import Generation
from ssd_bench.core.sampling import Decoding
from ssd_bench.core.timing import Clock, Mark
from ssd_bench.errors import ConfigError
from ssd_bench.hardware import Hardware

if TYPE_CHECKING:
    from transformers import PretrainedConfig

REST_S = 0.02
"""Between what two processes measure: OpenMP threads spin for 4 to 8 ms after their last work, on the other's cores."""


class HuggingFace:
    """The stock class of a checkpoint, as `AutoModelForCausalLM` loads it, with its own `generate`.

    Args:
        source: the checkpoint's folder, in Hugging Face format; or a config, for a model of random values.
        hardware: one device, and the dtype of the weights.
        decoding: mode, warpers and limits; `max_new_tokens` must be set.
        eos_ids: ids that end an output.
        context: positions that a sequence may fill.

    Attributes:
        about: name of the class, of its attention, and bytes of its weights and buffers (`weight_bytes`).

    Raises:
        ConfigError: transformers cannot load it, or not all of it.
    """

    def __init__(
        self, source: Path | PretrainedConfig, hardware: Hardware, decoding: Decoding, eos_ids: frozenset[int],
        context: int,
    ) -> None:  # fmt: skip
        self._device, self._decoding, self._eos_ids, self._context = hardware.devices[0], decoding, eos_ids, context
        self._clock = Clock(self._device)
        self._model = _loaded(source, hardware) if isinstance(source, Path) else _drawn(source, hardware)
        self._model.generation_config = self._config()  # nothing of the checkpoint's own, such as a penalty
        self._going = torch.zeros(1, dtype=torch.bool, device=self._device)
        held = {t.data_ptr(): t.nbytes for t in (*self._model.parameters(), *self._model.buffers())}
        self.about = {
            "class": type(self._model).__name__, "attention": self._model.config._attn_implementation,
            "weight_bytes": sum(held.values()),
        }  # fmt: skip

    def _config(self) -> Any:
        from transformers import GenerationConfig

        decoding = self._decoding
        warpers: dict[str, Any] = {}
        if not decoding.greedy:  # all said: what is not said has defaults of its own
            warpers = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": decoding.top_k}
        ends = sorted(self._eos_ids) or None
        return GenerationConfig(do_sample=not decoding.greedy, eos_token_id=ends, pad_token_id=0, **warpers)

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], seed: int = 0, max_new: int | None = None) -> Generation:
        """Decode one prompt until EOS (kept), the longest output allowed or the end of the context.

        The prefill lasts until the first token is chosen, what `generate` prepares included; steps are not told apart.

        Args:
            prompt: token ids, at least one, at most the context.
            seed: of the global generators when sampling, which `generate` draws from; they keep it.
            max_new: longest output; None for the decoding's.
        """
        from transformers import StoppingCriteriaList

        max_new = max_new or self._decoding.max_new_tokens
        assert max_new is not None, "the caller resolves decode.max_new_tokens"
        room = self._context - len(prompt) + 1  # the last token is chosen, not read
        if not self._decoding.greedy:
            torch.manual_seed(seed)
        chosen: list[Mark] = []

        def mark_first(ids: Tensor, scores: object, **_: object) -> Tensor:
            """A stopping criterion, as it is asked after every token; it stops nothing."""
            if not chosen:
                chosen.append(self._clock.mark())
            return self._going

        begin = self._clock.mark()
        ids = torch.tensor([prompt], device=self._device)
        # the mask is given: without it, a prompt that holds the padding id would lose that token
        whole = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=min(max_new, room),
            stopping_criteria=StoppingCriteriaList([mark_first]),
        )  # fmt: skip
        end = self._clock.mark()
        self._clock.settle()
        output = whole[0, len(prompt) :].tolist()
        reason = "eos" if output[-1] in self._eos_ids else "length" if len(output) == max_new else "context"
        return Generation(output, reason, self._clock.ms(begin, chosen[0]), self._clock.ms(chosen[0], end))


def _loaded(folder: Path, hardware: Hardware) -> Any:
    """The model on its device.

    Raises:
        ConfigError: it cannot be loaded, or weights would be made up.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        asked = {"dtype": hardware.dtype, "output_loading_info": True, "trust_remote_code": False}
        model, found = auto.from_pretrained(folder, **asked)
        model = model.to(hardware.devices[0])
    except Exception as error:  # its errors have no common type
        reason = " ".join(str(error).split())[:300]
        raise ConfigError("model", str(folder), f"a checkpoint that transformers can load ({reason})") from error
    if lacking := sorted([*found["missing_keys"], *map(str, found["mismatched_keys"])]):
        allowed = f"a checkpoint that transformers finds all weights in; not found: {', '.join(lacking[:3])}"
        raise ConfigError("model", str(folder), allowed)
    return model.eval()


def _drawn(config: PretrainedConfig, hardware: Hardware) -> Any:
    """A model of random values on its device."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with hardware.devices[0]:
        return auto.from_config(config, dtype=hardware.dtype, trust_remote_code=False).eval()


class Apart:
    """`HuggingFace`, with its arguments, in a process of its own; a context manager.

    It waits for this process, and this one for it: neither takes time from the other.

    Attributes:
        about: as there, and `load_ms` until it was ready, from the start of its process.
        peak_bytes: the most memory that its process has taken so far.

    Raises:
        ConfigError: as there.
        RuntimeError: it failed while it decoded, or its process was ended.
    """

    def __init__(self, *arguments: Any) -> None:
        begin = time.perf_counter()
        # not multiprocessing's: a launcher's worker has start methods of its own, and a fork this one's memory
        self._pipe, theirs = Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
        self._process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
        theirs.close()
        self.about: dict[str, Any]
        self.about, self.peak_bytes = self._answer(arguments)
        self.about["load_ms"] = (time.perf_counter() - begin) * 1e3

    def generate(self, prompt: Sequence[int], seed: int = 0, max_new: int | None = None) -> Generation:
        """As `HuggingFace.generate`; its times are taken there, without the way to it."""
        made: Generation
        time.sleep(REST_S)
        made, self.peak_bytes = self._answer((list(prompt), seed, max_new))
        time.sleep(REST_S)
        return made

    def _answer(self, question: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send(question)
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(
                f"the process of Hugging Face generate ended with code {self._process.wait()}: is there memory for a "
                "second copy of the weights? baseline=paired does without"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.wait()


def _peak_bytes(hardware: Hardware) -> int:
    """As `Hardware.peak_bytes`, but on a CPU without what its parent held when it was started, which that counts."""
    if hardware.devices[0].type == "cpu":
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return hardware.peak_bytes()


def serve(descriptor: int) -> None:
    """In the process of `Apart`: takes its arguments, then answers each question, until there is nobody to ask.

    An answer is what was asked for, and the most memory that was taken so far; or the error that ended it.
    """
    from transformers.utils import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks ends it
    logging.disable_progress_bar()
    pipe = Connection(descriptor)
    try:
        folder, hardware, *rest = pipe.recv()
        torch.set_num_threads(hardware.threads)
        model = HuggingFace(folder, hardware, *rest)
        pipe.send((model.about, _peak_bytes(hardware)))
        while True:
            asked = pipe.recv()
            pipe.send((model.generate(*asked), _peak_bytes(hardware)))
    except (EOFError, ConnectionError):
        pass
    except ConfigError as error:
        pipe.send(error)
    except Exception as error:  # whose type may not be one that can be sent
        pipe.send(RuntimeError(f"Hugging Face generate failed: {type(error).__name__}: {error}"))

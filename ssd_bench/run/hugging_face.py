"""Hugging Face `generate` on a checkpoint's stock class: the baseline of some papers; only its speed is measured.

`HuggingFace` decodes in this process, `HFProcess` in its own, so that the memory for its copy of the weights does not
count for the other arms.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ssd_bench.contract.generation import Generation
from ssd_bench.engine.sampling import Decoding
from ssd_bench.engine.timing import Clock, Mark
from ssd_bench.errors import ConfigError
from ssd_bench.run.hardware import Hardware

if TYPE_CHECKING:
    from transformers import PretrainedConfig

REST_S = 0.02
"""Pause between measurements of two processes: OpenMP threads spin for 4 to 8 ms after their last work."""


class HuggingFace:
    """A checkpoint's stock class, as `AutoModelForCausalLM` loads it, with its own `generate`.

    Args:
        source: the checkpoint's folder, or a config for a model of random values.
        hardware: one device, and the dtype of the weights.
        decoding: with `max_new_tokens` set.
        context: most positions of a sequence.

    Attributes:
        about: names of the class and of its attention, and bytes of its weights and buffers (`weight_bytes`).

    Raises:
        ConfigError: transformers cannot load the checkpoint, or not all of its weights.
    """

    def __init__(
        self,
        source: Path | PretrainedConfig,
        hardware: Hardware,
        decoding: Decoding,
        eos_ids: frozenset[int],
        context: int,
    ) -> None:
        self._device, self._decoding, self._eos_ids, self._context = hardware.devices[0], decoding, eos_ids, context
        self._clock = Clock(self._device)
        self._model = _load(source, hardware) if isinstance(source, Path) else _random_model(source, hardware)
        self._model.generation_config = self._config()  # without settings of the checkpoint, such as a penalty
        self._continue = torch.zeros(1, dtype=torch.bool, device=self._device)
        bytes_at = {t.data_ptr(): t.nbytes for t in (*self._model.parameters(), *self._model.buffers())}
        self.about = {
            "class": type(self._model).__name__,
            "attention": self._model.config._attn_implementation,
            "weight_bytes": sum(bytes_at.values()),
        }

    def _config(self) -> Any:
        from transformers import GenerationConfig

        sample, ends = not self._decoding.greedy, sorted(self._eos_ids) or None
        names = ("temperature", "top_p", "top_k") if sample else ()  # all are set: transformers has other defaults
        warpers = {name: getattr(self._decoding, name) for name in names}
        return GenerationConfig(do_sample=sample, eos_token_id=ends, pad_token_id=0, **warpers)

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], seed: int = 0, max_new: int | None = None) -> Generation:
        """Decode one prompt until EOS (kept), the longest output allowed or the end of the context.

        The prefill lasts until the first token is chosen and includes the preparations of `generate`. Single steps are
        not timed.

        Args:
            seed: of PyTorch's global generators, not reset afterwards.
            max_new: longest output; None: the decoding's.
        """
        from transformers import StoppingCriteriaList

        max_new = max_new or self._decoding.max_new_tokens
        assert max_new is not None, "the caller resolves decode.max_new_tokens"
        free = self._context - len(prompt) + 1  # the last token is chosen, but never read
        if not self._decoding.greedy:
            torch.manual_seed(seed)
        chosen: list[Mark] = []

        def mark_first(ids: Tensor, scores: object, **_: object) -> Tensor:
            """Mark the time of the first token; a stopping criterion that never stops."""
            if not chosen:
                chosen.append(self._clock.mark())
            return self._continue

        begin = self._clock.mark()
        ids = torch.tensor([prompt], device=self._device)
        # without an explicit mask, `generate` would mask out prompt tokens that equal the padding id
        sequence = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=min(max_new, free),
            stopping_criteria=StoppingCriteriaList([mark_first]),
        )
        end = self._clock.mark()
        self._clock.settle()
        output = sequence[0, len(prompt) :].tolist()
        reason = "eos" if output[-1] in self._eos_ids else "length" if len(output) == max_new else "context"
        return Generation(output, reason, self._clock.ms(begin, chosen[0]), self._clock.ms(chosen[0], end))


def _load(folder: Path, hardware: Hardware) -> Any:
    """Load the model onto its device; refuse weights that transformers would initialise at random."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    try:
        options = {"dtype": hardware.dtype, "output_loading_info": True, "trust_remote_code": False}
        model, loading = auto.from_pretrained(folder, **options)
        model = model.to(hardware.devices[0])
    except Exception as error:  # its errors have no common type
        reason = " ".join(str(error).split())[:300]
        raise ConfigError("model", str(folder), f"a checkpoint that transformers can load ({reason})") from error
    if lacking := sorted([*loading["missing_keys"], *map(str, loading["mismatched_keys"])]):
        expected = f"a checkpoint that transformers finds all weights in; not found: {', '.join(lacking[:3])}"
        raise ConfigError("model", str(folder), expected)
    return model.eval()


def _random_model(config: PretrainedConfig, hardware: Hardware) -> Any:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with hardware.devices[0]:
        return auto.from_config(config, dtype=hardware.dtype, trust_remote_code=False).eval()


class HFProcess:
    """A `HuggingFace` with the same arguments in its own process; a context manager.

    Only one of the two processes works at a time, so that neither slows the other.

    Attributes:
        about: as in `HuggingFace`, and `load_ms`, the time from the start of the process until it was ready.
        peak_bytes: highest memory use of the process so far.

    Raises:
        ConfigError: as `HuggingFace`.
        RuntimeError: decoding failed, or the process ended.
    """

    def __init__(self, *arguments: Any) -> None:
        begin = time.perf_counter()
        # no multiprocessing: a launcher's worker sets its own start method, and a fork would copy this process's memory
        self._pipe, far_end = Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({far_end.fileno()})"
        self._process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[far_end.fileno()])
        far_end.close()
        self.about: dict[str, Any]
        self.about, self.peak_bytes = self._answer(arguments)
        self.about["load_ms"] = (time.perf_counter() - begin) * 1e3

    def generate(self, prompt: Sequence[int], seed: int = 0, max_new: int | None = None) -> Generation:
        """Decode as `HuggingFace.generate`; times exclude the communication."""
        generation: Generation
        time.sleep(REST_S)
        generation, self.peak_bytes = self._answer((list(prompt), seed, max_new))
        time.sleep(REST_S)
        return generation

    def _answer(self, question: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send(question)
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(
                f"the process of Hugging Face generate ended with code {self._process.wait()}, perhaps for lack of "
                "memory: it holds a second copy of the weights; baseline=paired needs only one"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.wait()


def _peak_bytes(hardware: Hardware) -> int:
    """Return `Hardware.peak_bytes`; on a CPU without the parent's memory at the fork, included in ru_maxrss."""
    if hardware.devices[0].type == "cpu":
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return hardware.peak_bytes()


def serve(descriptor: int) -> None:
    """Serve an `HFProcess`: take its arguments, then answer each question until the pipe is closed.

    An answer is the result with the highest memory use so far, or the error that ended the process.
    """
    from transformers.utils import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    logging.disable_progress_bar()
    pipe = Connection(descriptor)
    try:
        folder, hardware, *arguments = pipe.recv()
        torch.set_num_threads(hardware.threads)
        model = HuggingFace(folder, hardware, *arguments)
        pipe.send((model.about, _peak_bytes(hardware)))
        while True:
            question = pipe.recv()
            pipe.send((model.generate(*question), _peak_bytes(hardware)))
    except (EOFError, ConnectionError):
        pass
    except ConfigError as error:
        pipe.send(error)
    except Exception as error:  # its type may not be picklable
        pipe.send(RuntimeError(f"Hugging Face generate failed: {type(error).__name__}: {error}"))

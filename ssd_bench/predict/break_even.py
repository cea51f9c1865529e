"""The acceptance that drafts need on a machine: by skipped sublayers, a window, rounded weights, and by lookup."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from ssd_bench.contract.window import Window
from ssd_bench.cost.tpt import tpt
from ssd_bench.predict.acceptance import Steps, smallest_argument
from ssd_bench.results.text import ABSENT

SHARES, HALF = (0.3, 0.4, 0.5, 0.6), 0.5  # shares of skipped sublayers
WINDOWS = (Window(4, 252), Window(4, 1020))  # the default of method=window_draft, and a wider one
LONGEST = 10  # most drafted tokens of a step, as in KnapSpec (§3.5)
AIMS = (1.0, 1.2, 1.5)  # speedups
HEADS = ("drafts", "c", "verification", "breaks even", *(f"{aim}x" for aim in AIMS[1:]), "all accepted")
LEGEND = (
    "drafts: with a share of the sublayers skipped; with all sublayers and a window of the cache (its first 4 and its "
    "last positions), or rounded weights; by a lookup in earlier text, which needs no pass. c: cost of a drafted token "
    "in AR steps. verification: cost of verifying γ + 1 nodes in AR steps. breaks even, "
    f"{', '.join(HEADS[4:-1])}: acceptance per token needed, at the best draft length (γ <= {LONGEST}): the "
    "probability that a token is accepted if all tokens before it were. α also counts the tokens after a rejection, "
    "so it is lower. all accepted: speedup if every drafted token is accepted."
)


@dataclass(frozen=True)
class Drafts:
    """One kind of drafts on a machine: milliseconds of a drafted token, and whether the model drafts it."""

    steps: Steps
    token: float
    by_layers: bool = True

    @cached_property
    def verify(self) -> tuple[float, ...]:
        """Milliseconds of verifying 1 to `LONGEST` drafted tokens."""
        return tuple(self.steps.verify_ms(n, self.by_layers) for n in range(1, LONGEST + 1))

    def best(self, acceptance: float) -> tuple[float, int]:
        """Return the highest speedup at an acceptance per token, by TPT (KnapSpec Eq. 4), and its draft length."""
        plain = self.steps.plain_ms
        return max(
            (tpt(acceptance, n, self.token, verify) * plain / 1000, n) for n, verify in enumerate(self.verify, 1)
        )

    def needed(self, speedup: float) -> tuple[float, int] | None:
        """Return the lowest acceptance per token for a speedup, and its draft length; None if even 1 is too low."""
        if self.best(1.0)[0] < speedup:
            return None
        acceptance = smallest_argument(lambda acceptance: self.best(acceptance)[0], speedup)
        return acceptance, self.best(acceptance)[1]


def break_even_text(steps: Steps, model: str) -> str:
    """Return the break-even acceptance of half of the sublayers, a window, rounded weights and a lookup."""
    where, half = f"on {steps.machine_name} for {model}", Drafts(steps, steps.draft_ms(HALF))
    if (even := half.needed(1.0)) is None:
        most = f"at most {half.best(1.0)[0]:.2f}x, even if all are accepted"
        text = f"Skipping half of the sublayers does not pay {where}: drafts of up to {LONGEST} tokens reach {most}"
    else:
        text = f"Skipping pays {where} if a token drafted by half of the sublayers is accepted with a probability of "
        text += f"{even[0]:.2f} or more (draft length {even[1]})"
    tokens = {f"a window of {_width(WINDOWS[0])} positions": steps.draft_ms(0.0, WINDOWS[0])}
    tokens |= {f"a draft with {bits}-bit weights": steps.draft_ms(0.0, bits=bits) for bits in steps.machine.bits}
    needs = {name: Drafts(steps, token).needed(1.0) for name, token in tokens.items()}
    needs["a lookup"] = Drafts(steps, 0.0, by_layers=False).needed(1.0)
    return f"{text}; " + ", ".join(
        f"{name} cannot break even" if need is None else f"{name} needs {need[0]:.2f}" for name, need in needs.items()
    )


def _width(window: Window) -> int:
    return window.sinks + window.recent


def kinds_of_drafts(steps: Steps) -> dict[str, Drafts]:
    """Return every kind of drafts by its name in the table."""
    tokens = {f"{share:.0%} skipped": steps.draft_ms(share) for share in SHARES}
    tokens |= {f"window {_width(window)}": steps.draft_ms(0.0, window) for window in WINDOWS}
    tokens |= {f"{bits}-bit weights": steps.draft_ms(0.0, bits=bits) for bits in steps.machine.bits}
    drafts_by_name = {name: Drafts(steps, token) for name, token in tokens.items()}
    return drafts_by_name | {"lookup": Drafts(steps, 0.0, by_layers=False)}


def roofline_table(steps: Steps) -> pd.DataFrame:
    """Return the costs and needed acceptance of each kind of drafts, as texts."""
    rows = []
    for name, drafts in kinds_of_drafts(steps).items():
        needed = [drafts.needed(aim) for aim in AIMS]
        length = needed[0][1] if needed[0] else 1
        rows.append(
            (
                name,
                f"{drafts.token / steps.plain_ms:.3f}",
                f"{drafts.verify[length - 1] / steps.plain_ms:.3f}",
                *(ABSENT if need is None else f"{need[0]:.2f} (γ {need[1]})" for need in needed),
                f"{drafts.best(1.0)[0]:.2f}x",
            )
        )
    return pd.DataFrame(rows, columns=list(HEADS))

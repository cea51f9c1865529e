"""The interval of a number whose variance has several independent sources, such as prompts and repeated runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from ssd_bench.results.quantity import LEVEL, Measured, Spread, t_quantile


@dataclass(frozen=True)
class Effect:
    """Number with the variances of its independent sources.

    Attributes:
        value: the number; positive if `on_logarithm`.
        variances: variance of each source, with its degrees of freedom.
        on_logarithm: whether the variances are of the logarithm, as for ratios, and not of the number itself.
    """

    value: float
    variances: tuple[tuple[float, float], ...]
    on_logarithm: bool = True

    @classmethod
    def of(cls, measured: Measured, timing: Sequence[tuple[float, float]] = ()) -> Effect | None:
        """Build an effect from a number with an interval over prompts; None without an interval.

        Args:
            timing: variances of run-to-run variation, with degrees of freedom.
        """
        if not measured.value or not measured.low or not measured.high:
            return None
        quantile = t_quantile(measured.n - 1)
        # the interval is exp(log value ± t s): its half width on the logarithm over t is s
        prompts = (math.log(measured.high / measured.low) / 2 / quantile) ** 2
        return cls(measured.value, ((prompts, measured.n - 1), *timing))

    @classmethod
    def mean(cls, effects: Sequence[Effect]) -> Effect:
        """Return the geometric mean of ratios on different prompts."""
        count = len(effects)
        value = math.exp(sum(math.log(effect.value) for effect in effects) / count)
        return cls(value, tuple((part / count**2, dof) for effect in effects for part, dof in effect.variances))

    @property
    def interval(self) -> tuple[float, float]:
        """The interval at `LEVEL`, as `interval_at`."""
        return self.interval_at(LEVEL)

    def interval_at(self, level: float) -> tuple[float, float]:
        """Return the confidence interval from Student's t; without variance the number itself, twice."""
        total = sum(variance for variance, _ in self.variances)
        if not total:
            return self.value, self.value
        # Welch-Satterthwaite: dof = (Σ v)² / Σ (v² / dof)
        dof = total**2 / sum(variance**2 / dof for variance, dof in self.variances)
        half_width = t_quantile(dof, level) * math.sqrt(total)
        if self.on_logarithm:
            return self.value * math.exp(-half_width), self.value * math.exp(half_width)
        return self.value - half_width, self.value + half_width

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.2f} [{low:.2f}, {high:.2f}]"


def strata(prompt_sets: Iterable[Set[str]]) -> list[set[str]]:
    """Return the prompts of comparisons, joined where comparisons share one, so that strata are independent."""
    joined: list[set[str]] = []
    for prompts in prompt_sets:
        sharing = [stratum for stratum in joined if stratum & prompts]
        joined = [*(stratum for stratum in joined if stratum not in sharing), set(prompts).union(*sharing)]
    return joined


def widen(number: Measured, spread: Spread) -> Measured:
    """Return a number with its interval widened by run-to-run variation.

    A number without an interval over prompts stays without an interval.
    """
    effect = Effect.of(number, [(spread.sigma**2, spread.dof)])
    return number if effect is None else Measured(number.value, *effect.interval, number.n)

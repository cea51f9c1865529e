"""The two ways in which a run fails on purpose."""

from collections.abc import Iterable


class ConfigError(ValueError):
    """An option, file or environment that cannot work: names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field}={value!r} cannot be used: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def refuse(section: str, checks: Iterable[tuple[str, object, object, str]]) -> None:
    """Refuse the first setting that is not fine.

    Args:
        section: where the settings stand in the config.
        checks: (name, whether it is fine, its value, what is allowed) each.

    Raises:
        ConfigError: for that setting.
    """
    for name, fine, value, allowed in checks:
        if not fine:
            raise ConfigError(f"{section}.{name}", value, allowed)


class LosslessError(RuntimeError):
    """A greedy output differs from AR's where rounding cannot explain it."""

"""The two ways in which a run fails on purpose."""


class ConfigError(ValueError):
    """An option, file or environment that cannot work: names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field}={value!r} cannot be used: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


class LosslessError(RuntimeError):
    """A greedy output differs from AR's where rounding cannot explain it."""

"""The one exception for input that cannot work, raised before any weights load."""


class ConfigError(ValueError):
    """An option, file or environment that cannot work: names the field, its value and what is allowed."""

    def __init__(self, field: str, value: object, allowed: str):
        super().__init__(f"{field}={value!r} cannot be used: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed

"""SGLang's test helpers import names of `datasets`; the tests run here load no data."""

from typing import Any


def __getattr__(name: str) -> Any:
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"datasets.{name} is not there")

    return missing

"""From a config to the object that trains it."""

import importlib

from cl2r.config import Config
from cl2r.methods.base import Method
from cl2r.methods.catalog import method_info


def build_method(config: Config, channels: int, num_outputs: int) -> Method:
    """The method that `config.method` describes, before its first task."""
    module, _, name = method_info(config.method.name).build.partition(":")
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise TypeError(f"{module}:{name} is no Method")
    return kind(config, channels, num_outputs)

"""From a config to the object that trains it."""

import importlib

from cl2r.config import Config
from cl2r.errors import InputError
from cl2r.methods.base import Method
from cl2r.methods.catalog import method_info


def method_class(name: str) -> type[Method]:
    """The class of a method; refuses one that cannot be loaded, as another package's may be."""
    info = method_info(name)
    module, _, attribute = info.build.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"method {info.name}: cannot load {info.build}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise InputError(f"method {info.name}: {info.build} is no Method")
    return kind


def build_method(config: Config, channels: int, num_outputs: int) -> Method:
    """The method that `config.method` describes, before its first task."""
    return method_class(config.method.name)(config, channels, num_outputs)

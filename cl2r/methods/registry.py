"""Methods by name."""

from cl2r.config import Config
from cl2r.methods.base import Method
from cl2r.methods.catalog import METHODS
from cl2r.methods.rehearsal import Rehearsal

_FAMILIES: dict[str, type[Method]] = {"rehearsal": Rehearsal}


def build_method(config: Config, channels: int, num_outputs: int) -> Method:
    """The method that `config.method` describes, before its first task."""
    return _FAMILIES[METHODS[config.method.name].family](config, channels, num_outputs)

"""cl2r: studies of compatible lifelong learning representations.

The Python API. A name is imported when it is first used, so that `import cl2r` takes no time:

    from cl2r import Config, load_study, plan_study, run, run_study

    result = run("icons", overrides={"method.name": "cl2r"})        # train one chain of models
    result.matrix, result.metrics["BC"], result.frames.tasks

    spec = {"preset": "icons", "seeds": [0, 1, 2], "grid": {"method.name": ["er", "cl2r"]}}
    print(plan_study(spec))                                         # what it would cost
    study = run_study(spec, storage="results", name="mine")         # run it on Ray
    study = load_study("results/studies/mine")                      # read it later
    study.pivot("BC")
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from cl2r.runtime.logs import redact_library_logs

if TYPE_CHECKING:
    from analysis.study import load_study
    from cl2r.cli.api import plan_study, run, run_study
    from cl2r.config.schema import Config

__version__ = "0.1.0"
__all__ = ["Config", "__version__", "load_study", "plan_study", "run", "run_study"]

_HOMES = {"Config": "cl2r.config.schema", "load_study": "analysis.study"}
_HOMES |= dict.fromkeys(("plan_study", "run", "run_study"), "cl2r.cli.api")

redact_library_logs()
# Threads of one operation wait for each other asleep, not spinning: on a busy machine the spinning ones would keep the
# processors from the one they wait for. OpenMP reads this when torch is loaded; processes that are started inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        other = getattr(sys.modules.get("analysis"), "__file__", None)
        if (error.name or "").startswith("analysis.") and other:
            raise ImportError(f"cl2r needs its package `analysis`, but Python finds {other}: rename it") from error
        raise
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Everything about a run that is known before training: data, tasks, pairs and link keys. Bad input is found here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cl2r.adapters import installed_fit
from cl2r.config.keys import link_keys
from cl2r.config.methods import ADAPTERS
from cl2r.config.schema import Config
from cl2r.data import ImageSet, load_dataset
from cl2r.data.scenario import Scenario, build_scenario, class_increments, class_order
from cl2r.drift_adapters import check_size
from cl2r.engine.evaluation import evaluation_pairs, search_images
from cl2r.errors import InputError
from cl2r.methods.base import method_class
from cl2r.retrieval import SearchImages
from cl2r.verification import Pairs

FACTORED_ABOVE = 4096  # features of more dimensions are stored as b(x) and P, φ(x) = P·b(x)


@dataclass(frozen=True)
class Plan:
    """A run before any training, with checked input."""

    config: Config
    dataset: ImageSet
    scenario: Scenario
    num_outputs: int
    keys: list[str]
    tuning_pairs: Pairs | None
    report_pairs: Pairs
    tuning_images: SearchImages | None
    """Images of the search that settings are chosen by; None if there are no tuning pairs, or recall is undefined."""
    report_images: SearchImages | None
    """Images of the search that is reported; None if recall is undefined."""

    def model_facts(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return, as plain JSON, what is needed to use the last model of `keys`, besides its weights and config.

        Links keep it, so that a model can be used where the training data are not.
        """
        own = self.config.eval.normalise == "own"
        mean, std = self.dataset.open_moments if own else self.dataset.moments
        return {
            "keys": list(keys),
            "num_outputs": self.num_outputs,
            "classes": [len(known.labels) for known in self.scenario.tasks[: len(keys)]],
            "image_size": list(self.dataset.image_size),
            "channels": self.dataset.channels,
            "fit": self.dataset.x_train.crop,
            "mean": list(mean),
            "std": list(std),
        }


def plan_run(config: Config) -> Plan:
    """Load the data, divide it into tasks, draw pairs, compute link keys. Raise InputError if the run cannot work."""
    method_class(config.method.name).check(config)
    if config.adapter.name != "none" and ADAPTERS[config.adapter.name].build:
        installed_fit(ADAPTERS[config.adapter.name])
    dataset = load_dataset(config.data.name, config.data.size, config.data.channels, config.data.root)
    spec = config.scenario
    increments = class_increments(dataset.num_classes, spec.n_tasks, spec.initial, spec.increment)
    order = class_order(dataset.num_classes, config.seed, spec.class_order)
    scenario = build_scenario(dataset.y_train, increments, order)
    for task in scenario.tasks:
        if len(task.rows) < 2:
            raise InputError(f"task {task.index} has {len(task.rows)} image, but batch norm needs 2: use fewer tasks")
    outputs = config.head.k_max or dataset.num_classes
    if outputs < dataset.num_classes:
        raise InputError(f"head.k_max={outputs} is below the {dataset.num_classes} classes of {dataset.name}; raise it")
    if spec.stop_after is not None and spec.stop_after > len(scenario.tasks):
        raise InputError(f"scenario.stop_after={spec.stop_after} exceeds the {len(scenario.tasks)} tasks; lower it")
    classes = [task.classes for task in scenario.tasks[: spec.stop_after]]
    keys = link_keys(config, dataset.fingerprint, classes, outputs)
    if config.adapter.name != "none" and config.head.projection != "none":
        check_size(config.adapter, outputs - 1)
        if outputs - 1 > FACTORED_ABOVE:
            fault = f"adapter.name={config.adapter.name} cannot take features of {outputs - 1} dimensions"
            raise InputError(f"{fault}; leave the adapter out")
    tuning, report = evaluation_pairs(dataset, config.eval)
    return Plan(config, dataset, scenario, outputs, keys, tuning, report, *search_images(dataset, config.eval))

"""A run before any training: data, tasks, pairs and links. All that can be wrong with its input is found here."""

from dataclasses import dataclass

from cl2r.config import Config
from cl2r.data import ImageSet, load_dataset
from cl2r.data.dataset import Pairs
from cl2r.data.scenario import Scenario, build_scenario, class_increments, class_order
from cl2r.engine.evaluation import check_pairs, evaluation_pairs
from cl2r.engine.extraction import FACTORED_ABOVE
from cl2r.errors import InputError
from cl2r.link_keys import link_keys
from cl2r.methods.registry import method_class


@dataclass(frozen=True)
class Plan:
    """A run before any training: everything that can be wrong with its input has been checked."""

    config: Config
    dataset: ImageSet
    scenario: Scenario
    num_outputs: int
    keys: list[str]
    tuning_pairs: Pairs | None
    report_pairs: Pairs


def plan_run(config: Config) -> Plan:
    """Load the data, lay out tasks and pairs, name the links. Raises InputError; touches no store."""
    method_class(config.method.name)
    dataset = load_dataset(config.data.name, config.data.size, config.data.channels, config.data.root)
    spec = config.scenario
    increments = class_increments(dataset.num_classes, spec.n_tasks, spec.initial, spec.increment)
    order = class_order(dataset.num_classes, config.seed, spec.class_order)
    scenario = build_scenario(dataset.y_train, increments, order)
    for task in scenario.tasks:
        if len(task.rows) < 2:
            raise InputError(f"task {task.index} has {len(task.rows)} image, batch norm needs 2: use fewer tasks")
    outputs = config.head.k_max or dataset.num_classes
    if outputs < dataset.num_classes:
        raise InputError(f"head.k_max={outputs} is below the {dataset.num_classes} classes of {dataset.name}")
    if spec.stop_after is not None and spec.stop_after > len(scenario.tasks):
        raise InputError(f"scenario.stop_after={spec.stop_after} exceeds the {len(scenario.tasks)} tasks")
    classes = [task.classes for task in scenario.tasks[: spec.stop_after]]
    keys = link_keys(config, dataset.fingerprint, classes, outputs)
    if config.adapter.name != "none" and config.head.projection != "none" and outputs - 1 > FACTORED_ABOVE:
        raise InputError(f"adapter.name={config.adapter.name} cannot take features of {outputs - 1} dimensions")
    tuning, report = evaluation_pairs(dataset, config.eval)
    # What cannot be evaluated must be refused now, not after hours of training.
    for pairs in (report, tuning):
        if pairs is not None:
            check_pairs(pairs, config.eval)
    return Plan(config, dataset, scenario, outputs, keys, tuning, report)

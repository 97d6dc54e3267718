"""Features of many images through Ray Data: decoded by tasks, embedded by actors that hold the model, shard by shard.

A row of the data set is a shard. Whatever dies, a shard is written whole or not at all, and whoever makes it again
makes the same; so Ray may try as often as it likes, and a job that is stopped goes on where it was.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cl2r.rayrun.cluster import cluster, set_environment
from cl2r.rayrun.resources import Resources
from cl2r.search.indexing import ShardPlan, decode_plan, embed_plan
from cl2r.search.model import Model
from cl2r.search.shards import Shard
from cl2r.search.snapshot import Snapshot

EMBEDDING_SHARE = 0.75
"""Of a CPU, where there is no GPU: the rest is for decoding, or neither could ever start on a full machine."""


def extract_on_ray(model: Model, plans: Sequence[ShardPlan], resources: Resources, verbose: bool) -> Iterator[Shard]:
    """Make the shards, side by side; those that are done come first."""
    set_environment(verbose)
    with cluster(resources, verbose) as actors:
        import ray
        from ray.data import ActorPoolStrategy, DataContext

        if not verbose:
            logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = verbose
        context.print_on_execution_start = verbose
        held = ray.put((model.snapshot, tuple(plans)))
        on_gpu = resources.gpus_per_worker > 0
        share = {"num_cpus": resources.cpus_per_worker if on_gpu else EMBEDDING_SHARE * resources.cpus_per_worker}
        rows = (
            ray.data.from_items([{"id": number} for number in range(len(plans))], override_num_blocks=len(plans))
            .map(_Decoding(held), num_cpus=1 if on_gpu else 1 - EMBEDDING_SHARE)
            .map(
                Embedding,
                fn_constructor_args=[[held], resources],  # bare, Ray would warn that a restarted actor may not find it
                compute=ActorPoolStrategy(size=min(actors, len(plans))),
                resources=_accelerator(resources),
                num_gpus=resources.gpus_per_worker or None,
                **share,
            )
        )
        for row in rows.iter_rows():
            yield Shard.parse(json.loads(row["shard"]))


def _accelerator(resources: Resources) -> dict[str, float] | None:
    wanted = {name: amount for name, amount in resources.per_worker().items() if name not in ("CPU", "GPU")}
    return wanted or None


class _Decoding:
    """Pixels of a shard, as bytes: shards differ in length."""

    def __init__(self, held: Any) -> None:
        self.held = [held]  # in a list, for Ray not to fetch it for every row

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """By the number of the plan."""
        import ray

        snapshot, plans = ray.get(self.held[0])
        images, bad = decode_plan(plans[int(row["id"])], snapshot.card)
        return {"plan": int(row["id"]), "images": images.tobytes(), "bad": json.dumps(bad)}


class Embedding:
    """An actor with the model on its device."""

    def __init__(self, held: list[Any], resources: Resources) -> None:
        import ray

        snapshot: Snapshot
        snapshot, self.plans = ray.get(held[0])
        self.model = Model(snapshot, resources.device())

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Embed and write the shard; what it says of itself."""
        card = self.model.card
        images = np.frombuffer(row["images"], np.uint8).reshape(-1, card.size, card.size, card.channels)
        bad = [(str(name), str(why)) for name, why in json.loads(row["bad"])]
        shard = embed_plan(self.model, self.plans[int(row["plan"])], images.copy(), bad)
        return {"shard": json.dumps(asdict(shard))}

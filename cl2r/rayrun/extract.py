"""Features of many images through Ray Data: tasks decode, actors that hold the model embed, shard by shard.

A row of the data set is a shard. A shard is written completely or not at all, and making it again gives the same
shard, so Ray may retry as often as it likes and a stopped job can be resumed.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cl2r.gallery.gallery import Shard
from cl2r.gallery.images import decode
from cl2r.gallery.indexing import ShardPlan, embed_plan
from cl2r.gallery.model import Model, ModelFiles
from cl2r.rayrun.cluster import cluster, set_environment
from cl2r.study.resources import Resources

EMBEDDING_SHARE = 0.75
"""Share of a CPU that embedding takes without a GPU; the rest decodes, or neither could start on a full node."""


def extract_on_ray(model: Model, plans: Sequence[ShardPlan], resources: Resources, verbose: bool) -> Iterator[Shard]:
    """Make the shards side by side, and yield them as they are finished."""
    set_environment(verbose)
    with cluster(resources, verbose) as actors:
        import ray
        from ray.data import ActorPoolStrategy, DataContext

        if not verbose:
            logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = verbose
        context.print_on_execution_start = verbose
        held = ray.put((model.files, tuple(plans)))
        on_gpu = resources.gpus_per_worker > 0
        accelerator = {name: n for name, n in resources.per_worker().items() if name not in ("CPU", "GPU")}
        rows = (
            ray.data.from_items([{"id": number} for number in range(len(plans))], override_num_blocks=len(plans))
            .map(_decode_plan, fn_args=[[held]], num_cpus=1 if on_gpu else 1 - EMBEDDING_SHARE)
            .map(
                Embedding,
                fn_constructor_args=[[held], resources],  # bare, Ray would warn that a restarted actor may not find it
                compute=ActorPoolStrategy(size=min(actors, len(plans))),
                resources=accelerator or None,
                num_gpus=resources.gpus_per_worker or None,
                num_cpus=resources.cpus_per_worker * (1 if on_gpu else EMBEDDING_SHARE),
            )
        )
        for row in rows.iter_rows():
            yield Shard.model_validate_json(row["shard"])


def _decode_plan(row: dict[str, Any], held: list[Any]) -> dict[str, Any]:
    """Decode the images of a shard. They are sent as bytes because shards differ in length."""
    import ray

    files, plans = ray.get(held[0])
    images, bad = decode(plans[row["id"]].items, files.card)
    return {"plan": row["id"], "images": images.tobytes(), "bad": json.dumps(bad)}


class Embedding:
    """An actor that holds the model, embeds the images of a shard and writes it."""

    def __init__(self, held: list[Any], resources: Resources) -> None:
        import ray

        files: ModelFiles
        files, self.plans = ray.get(held[0])
        self.model = Model(files, resources.device())

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest of the shard."""
        card = self.model.card
        images = np.frombuffer(row["images"], np.uint8).reshape(-1, card.size, card.size, card.channels)
        bad = [(str(name), str(why)) for name, why in json.loads(row["bad"])]
        shard = embed_plan(self.model, self.plans[row["plan"]], images.copy(), bad)
        return {"shard": shard.model_dump_json()}

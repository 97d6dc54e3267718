"""The Ray of tests that run studies in their own process."""

import logging

import ray

from cl2r.rayrun.cluster import set_environment


def start_ray() -> None:
    """Start a quiet Ray with two CPUs, and two GPUs in name only."""
    set_environment(verbose=False)
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=2,
        resources={"accelerator_type:A100": 1},
        object_store_memory=100 * 2**20,
        logging_level=logging.CRITICAL,
        log_to_driver=False,
    )

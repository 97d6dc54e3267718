"""Nodes of a real Ray that lack the package, have another version of it, or lack the data, are named as such."""

import re
import subprocess
import sys
from pathlib import Path

import cl2r

NODES = """
import os, sys
import ray
from ray.cluster_utils import Cluster
from cl2r.config.schema import DataConfig
from cl2r.rayrun.probes import NodeChecks
from cl2r.study.resources import Resources

cluster = Cluster()
cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=100 * 2**20)
ray.init(address=cluster.address, logging_level="CRITICAL", log_to_driver=False)
checks = NodeChecks(Resources(), [DataConfig(name=os.environ["DATA"])], print)
print("alone:", checks.problems() or "fine")
folders = sys.argv[1:]
for variables in ({"PYTHONPATH": folders[0]}, {"PYTHONPATH": folders[1]}, {"HOME": folders[2]}, {}):
    cluster.add_node(wait=False, num_cpus=1, object_store_memory=100 * 2**20, env_vars=variables)
cluster.wait_for_nodes()
print(checks.problems())
print(checks.problems())
ray.shutdown()
cluster.shutdown()
"""


def test_nodes_that_lack_something_are_named(tiny: Path, tmp_path: Path, ray_folder: Path) -> None:
    """Nodes of one machine: Python finds no such package, or another version, or there is no data in another home."""
    for folder, text in (("none", "raise ImportError('there is none')"), ("old", "__version__ = '0.0.1'")):
        (tmp_path / folder / "cl2r").mkdir(parents=True)
        (tmp_path / folder / "cl2r" / "__init__.py").write_text(text)
        for module in ("data", "errors"):
            (tmp_path / folder / "cl2r" / f"{module}.py").write_text("load_dataset = InputError = ValueError")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "tiny.npz").write_bytes(tiny.read_bytes())
    (tmp_path / "script.py").write_text(NODES)  # in a folder of its own: Ray hands the script's to its workers
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path / "none", tmp_path / "old", tmp_path / "other home"],
        cwd=tmp_path,
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path / "home"),
            "RAY_TMPDIR": str(ray_folder),
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": str(Path(cl2r.__file__).parents[1]),
            "DATA": "~/tiny.npz",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    alone, problems, again = done.stdout.splitlines()
    assert alone == "alone: fine"
    assert problems == again
    assert len(re.findall(r"\bnode [\d.]+: ", problems)) == 3, problems
    assert "cl2r cannot be imported (there is none); install it there" in problems
    assert f"it has cl2r 0.0.1, the driver has {cl2r.__version__}" in problems
    assert f"{tmp_path}/other home/tiny.npz" in problems

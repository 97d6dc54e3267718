"""cluster/a100.yaml and aws.yaml in a simulated AWS account, and what a node does before its container starts."""

import copy
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster_rules import CLUSTER, open_rules, ray_up, read


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A simulated AWS account with cluster/aws.yaml deployed, and what Ray's bootstrap makes of a100.yaml in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray leaves a key there
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "simulated")
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
        import boto3
        from moto import mock_aws
        from ray.autoscaler._private.aws.utils import resource_cache

        with mock_aws():
            resource_cache.cache_clear()
            ec2 = boto3.client("ec2", "us-east-1")
            cloud = boto3.client("cloudformation", "us-east-1")
            values = {"VpcId": ec2.describe_vpcs()["Vpcs"][0]["VpcId"], "SshFrom": "203.0.113.7/32"}
            parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]
            template = (CLUSTER / "aws.yaml").read_text(encoding="utf-8")
            cloud.create_stack(StackName="cl2r", TemplateBody=template, Parameters=parameters)
            (stack,) = cloud.describe_stacks(StackName="cl2r")["Stacks"]
            outputs = {entry["OutputKey"]: entry["OutputValue"] for entry in stack["Outputs"]}
            image = ec2.register_image(Name="driver", RootDeviceName="/dev/sda1")["ImageId"]
            text = (CLUSTER / "a100.yaml").read_text(encoding="utf-8")
            text = text.replace("my-cl2r-bucket", outputs["Bucket"])
            text = text.replace("sg-00000000000000000", outputs["SecurityGroup"]).replace(
                "ami-00000000000000000", image
            )
            yield {"ec2": ec2, "config": ray_up(yaml.safe_load(text)), "group": outputs["SecurityGroup"]}
            resource_cache.cache_clear()


def instances(account: dict[str, Any]) -> list[Any]:
    reservations = account["ec2"].describe_instances()["Reservations"]
    return [node for reservation in reservations for node in reservation["Instances"]]


def permissions(account: dict[str, Any], group: str) -> Any:
    return account["ec2"].describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]


@pytest.mark.filterwarnings("ignore:Tried to parse AWS..S3..BucketPolicy")
def test_ray_bootstraps_and_launches_in_a_simulated_account(account: dict[str, Any]) -> None:
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    ready = bootstrap_aws(account["config"])
    assert open_rules(permissions(account, account["group"]), account["group"]) == []
    provider = AWSNodeProvider(ready["provider"], ready["cluster_name"])
    for kind in ready["available_node_types"].values():
        provider.create_node(kind["node_config"], {"ray-node-type": "worker"}, 1)
    found = {
        node["InstanceType"]: (node.get("InstanceLifecycle"), node["IamInstanceProfile"]["Arn"].split("/")[1])
        for node in instances(account)
    }
    workers = dict.fromkeys(("p4d.24xlarge", "p4de.24xlarge"), ("spot", "cl2r-worker"))
    assert found == {"m6i.2xlarge": (None, "cl2r-head"), **workers}
    for node in instances(account):
        assert node["MetadataOptions"]["HttpTokens"] == "required"
        assert [group["GroupId"] for group in node["SecurityGroups"]] == [account["group"]]


def test_rays_own_group_would_be_open(account: dict[str, Any]) -> None:
    """Why a100.yaml names a group by its id: `security_group.IpPermissions` only adds to the rule for the world."""
    from ray.autoscaler._private.aws.config import bootstrap_aws

    config = copy.deepcopy(account["config"])
    ssh = {"FromPort": 22, "ToPort": 22, "IpProtocol": "tcp", "IpRanges": [{"CidrIp": "203.0.113.7/32"}]}
    config["provider"]["security_group"] = {"GroupName": "own", "IpPermissions": [ssh]}
    for kind in config["available_node_types"].values():
        del kind["node_config"]["SecurityGroupIds"]
    (group,) = bootstrap_aws(config)["available_node_types"]["p4d"]["node_config"]["SecurityGroupIds"]
    assert "0.0.0.0/0" in str(open_rules(permissions(account, group), group))


@pytest.mark.slow
def test_cloudformation_would_take_the_stack() -> None:
    from cfnlint.api import lint_file

    assert [str(match) for match in lint_file(CLUSTER / "aws.yaml")] == []


def test_the_stack_lets_nobody_open_it_to_the_world() -> None:
    template = yaml.load((CLUSTER / "aws.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    pattern = template["Parameters"]["SshFrom"]["AllowedPattern"]
    assert re.match(pattern, "203.0.113.7/32")
    assert not re.match(pattern, "0.0.0.0/0")


EIGHT = "".join(rf"/dev/nvme{i}n1 Amazon EC2 NVMe Instance Storage\n" for i in range(1, 9))
ROOT_DISK = r"/dev/nvme0n1 Amazon Elastic Block Store\n"


@pytest.mark.parametrize(
    ("disks", "mounted", "done", "left"),
    [
        (ROOT_DISK + EIGHT, "", "mdadm --create /dev/md0 --run --level=0 --raid-devices=8 /dev/nvme1n1", ["--bind"]),
        (ROOT_DISK + EIGHT, "/opt/dlami/nvme", "mount --bind /opt/dlami/nvme/cl2r /mnt/cl2r", ["mkfs", "mdadm"]),
        (ROOT_DISK, "", "mkdir -p /mnt/cl2r/data", ["mkfs", "mdadm", "mount"]),
        (ROOT_DISK + EIGHT, "/mnt/cl2r", "mkdir -p /mnt/cl2r/data", ["mkfs", "mdadm", "mount"]),
    ],
    ids=["eight disks", "mounted by the image", "none: the head", "done before"],
)
def test_the_local_disks_become_one(tmp_path: Path, disks: str, mounted: str, done: str, left: list[str]) -> None:
    """Stand-ins record what the initialisation of a host would do as root, and the download."""
    (script,) = [line for line in read("a100.yaml")["initialization_commands"] if "\n" in line]
    programs = {
        "sudo": f'echo "$*" >> {tmp_path}/log',
        "aws": f'echo "aws $*" >> {tmp_path}/log',
        "lsblk": f"printf '{disks}'",
        "mountpoint": f'[ "$2" = "{mounted}" ]',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", f"({script})"], env={"PATH": path}, check=True, timeout=60)
    lines = (tmp_path / "log").read_text().splitlines()
    assert any(line.startswith(done) for line in lines)
    assert not [line for line in lines for word in left if word in line]
    assert not [line for line in lines if "nvme0n1" in line], "the root disk"
    assert lines[-1] == "aws s3 sync --only-show-errors s3://my-cl2r-bucket/data /mnt/cl2r/data"

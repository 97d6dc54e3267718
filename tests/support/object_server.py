"""An object store on this machine, for tests: the S3 of moto, on loopback.

In a process of its own: other tests simulate AWS by moto too, and what they start empties all stores of the process.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyarrow import fs

BUCKET = "lab"
KEYS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_EC2_METADATA_DISABLED": "true"}
OTHERS = ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "HTTP_PROXY", "http_proxy")


@contextlib.contextmanager
def object_server() -> Iterator[str]:
    """Run a store with an empty bucket and give the query of its addresses. Children inherit the credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        for name in OTHERS:
            patch.delenv(name, raising=False)
        server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        query = f"region=eu-west-1&scheme=http&endpoint_override={quote(address, safe='')}"
        files, bucket = fs.FileSystem.from_uri(f"s3://{BUCKET}?{query}&allow_bucket_creation=true")
        files.create_dir(bucket)
        yield query
        server.terminate()  # to end its input is not enough: processes that were forked meanwhile hold it open too
        server.wait()


def upload(folder: Path, target: Any) -> None:
    """Copy every file of a local folder below `target`."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            (target / path.relative_to(folder).as_posix()).write_file(path.read_bytes())


def main() -> None:
    """Serve until a signal or, if the process that started it has died, until the input ends."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print("{}:{}".format(*server.get_host_and_port()), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()

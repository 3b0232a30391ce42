"""A real S3 server on loopback."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def s3_server(log: Path) -> Iterator[dict[str, str]]:
    """Start a server with the bucket s3://runs; yield the environment variables that lead to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(log, "w") as file:
        server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _wait(port, server)
        _system(port).create_dir("runs")
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "word",
            "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
    finally:
        server.kill()
        server.wait()


def download(environment: dict[str, str], name: str, folder: Path) -> Path:
    """Copy the objects under a name of the bucket into a folder."""
    from pyarrow.fs import FileSelector, FileType

    system = _system(int(environment["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    for info in system.get_file_info(FileSelector(f"runs/{name}", recursive=True)):
        if info.type == FileType.File:
            copy = folder / os.path.relpath(info.path, f"runs/{name}")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(system.open_input_file(info.path).read())
    return folder


def list_objects(environment: dict[str, str], name: str) -> list[str]:
    """The names of the objects under a name of the bucket."""
    from pyarrow.fs import FileSelector, FileType

    system = _system(int(environment["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    found = system.get_file_info(FileSelector(f"runs/{name}", recursive=True, allow_not_found=True))
    return sorted(info.path.removeprefix(f"runs/{name}/") for info in found if info.type == FileType.File)


def _system(port: int) -> Any:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(
        endpoint_override=f"http://127.0.0.1:{port}", access_key="key", secret_key="word", region="us-east-1",
        allow_bucket_creation=True,
    )  # fmt: skip


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the S3 server did not start")

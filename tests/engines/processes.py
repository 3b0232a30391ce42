"""Running processes and the addresses on which they listen, from /proc."""

import contextlib
import socket
import struct
from pathlib import Path


def alive() -> dict[int, int]:
    """Every process and its parent, without zombies."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(stat.parent.name)] = int(parent)
    return found


def below(pid: int) -> set[int]:
    """A process and its descendants."""
    parents, found = alive(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def command(pid: int) -> str:
    """The command line of a process; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str]:
    """The environment of a process."""
    lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def listening(pids: set[int]) -> set[str]:
    """The addresses that these processes accept connections on."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(file.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(_address(words[1].split(":")[0]))
    return found


def _address(digits: str) -> str:
    """The kernel writes an address as words in its own byte order."""
    raw = b"".join(struct.pack("=I", int(digits[i : i + 8], 16)) for i in range(0, len(digits), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw).removeprefix("::ffff:")

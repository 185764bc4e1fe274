"""Folders that other parties packed: outputs of jobs, and checkpoints. Nothing is written outside of them."""

from __future__ import annotations

import os
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path

from .errors import Damaged, MusterError

_DOMAIN = b"muster/checkpoint-manifest/1\n"
_BLOCK = 8 << 20
_MAX_PATH, _MAX_DEPTH, _MAX_NAME = 1024, 64, 255


def unpack(archive: Path, into: Path) -> None:
    """Lays a delivered folder out. No entry and no link leads out of it."""
    if not hasattr(tarfile, "data_filter"):
        raise MusterError("outputs that are folders need Python 3.11.4 or newer, which unpacks them safely")
    into.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:") as tree:
            tree.extractall(into, filter="data")
    except tarfile.TarError as error:
        raise Damaged(f"the archive of {into.name} cannot be unpacked: {error}") from error


@dataclass(frozen=True)
class ManifestEntry:
    """A file or a folder of a checkpoint."""

    path: str
    mode: int
    size: int | None
    """In bytes; `None` for a folder."""
    blocks: list[bytes]
    """The SHA-256 of each block of 8 MiB; the last block may be shorter."""

    def lengths(self) -> list[int]:
        """The bytes of each block."""
        size = self.size or 0
        return [min(_BLOCK, size - at * _BLOCK) for at in range(len(self.blocks))]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise Damaged("the checkpoint's manifest ends too early")
        self.at, taken = end, self.data[self.at : end]
        return taken

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)


def _check_path(path: str) -> None:
    names = path.split("/")
    odd = any(name in ("", ".", "..") or len(name.encode()) > _MAX_NAME for name in names)
    if odd or len(names) > _MAX_DEPTH or len(path.encode()) > _MAX_PATH or "\0" in path or "\\" in path:
        raise Damaged(f"the checkpoint's manifest names the path {path[:80]!r}")


def read_manifest(data: bytes, name: str) -> list[ManifestEntry]:
    """Reads the manifest of the checkpoint `name`: folders come before what is in them."""
    reader = _Reader(data)
    if reader.take(len(_DOMAIN)) != _DOMAIN:
        raise Damaged("the checkpoint's manifest is of an unknown form")
    entries: list[ManifestEntry] = []
    folders: set[str] = set()
    for _ in range(reader.number("<I")):
        is_file = reader.take(1) == b"\x01"
        try:
            path = reader.take(reader.number("<H")).decode()
        except UnicodeDecodeError as error:
            raise Damaged("the checkpoint's manifest names a path that is no text") from error
        _check_path(path)
        above = path.rpartition("/")[0]
        if (above and above not in folders) or path.split("/")[0] != name:
            raise Damaged(f"the checkpoint's manifest names {path!r} outside of {name!r}")
        mode, size, blocks = reader.number("<I"), None, []
        if is_file:
            size = reader.number("<Q")
            count = -(-size // _BLOCK)
            if count * 32 > len(data):
                raise Damaged(f"the checkpoint's manifest states a wrong size of {path!r}")
            blocks = [reader.take(32) for _ in range(count)]
        else:
            folders.add(path)
        entries.append(ManifestEntry(path, mode, size, blocks))
    if reader.at != len(data) or not entries:
        raise Damaged("the checkpoint's manifest does not end where it should")
    return entries


def make_entry(entry: ManifestEntry, into: Path) -> Path:
    """Makes a folder, or an empty file, of a checkpoint. Its owner may always read and write it."""
    path = into / entry.path
    if entry.size is None:
        path.mkdir()
        path.chmod(entry.mode & 0o755 | 0o700)
        return path
    with open(path, "xb") as file:
        os.fchmod(file.fileno(), entry.mode & 0o755 | 0o600)
    return path


def append(path: Path, content: bytes) -> None:
    """Adds a block to a file."""
    with path.open("ab") as file:
        file.write(content)

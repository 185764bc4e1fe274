"""Folders that other parties packed: outputs of jobs, and checkpoints. Nothing is written outside of them."""

from __future__ import annotations

import os
import shutil
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path

from .errors import Damaged

_DOMAIN = b"muster/checkpoint-manifest/1\n"
_BLOCK = 8 << 20
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MAX_PATH, _MAX_DEPTH, _MAX_NAME = 1024, 64, 255


def unpack(archive: Path, into: Path) -> None:
    """Lays a delivered folder out in the folder `into`, which is made. No entry and no link leads out of it."""
    into.mkdir()
    links: list[tuple[Path, str]] = []
    try:
        with tarfile.open(archive, "r:") as tree:
            for entry in tree:
                names = [name for name in entry.name.split("/") if name != "."]
                if entry.name.startswith("/") or any(name in ("", "..") for name in names):
                    raise Damaged(f"the archive's entry {entry.name[:80]!r} leaves its folder")
                if not names and not entry.isdir():
                    raise Damaged("the archive has an entry in the place of its folder")
                path = into.joinpath(*names)
                if entry.isdir():
                    path.mkdir(_mode_here(entry.mode) | 0o700, parents=True, exist_ok=True)
                elif entry.isreg() and (content := tree.extractfile(entry)):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with os.fdopen(os.open(path, _NEW_FILE, _mode_here(entry.mode)), "wb") as file:
                        shutil.copyfileobj(content, file)
                elif entry.issym():
                    _check_link(names, entry.linkname)
                    links.append((path, entry.linkname))
                else:
                    raise Damaged(f"the archive's entry {entry.name[:80]!r} is no file, no folder and no link")
        # Links come last, so that no path leads through one.
        for path, target in links:
            # A folder above it that is a link would lie elsewhere in the tree, where the target leads out.
            above = into
            for name in path.parent.relative_to(into).parts:
                above /= name
                if above.is_symlink():
                    raise Damaged(f"the archive's entry {path.name[:80]!r} lies below a link")
                above.mkdir(exist_ok=True)
            path.symlink_to(target)
    except (tarfile.TarError, EOFError, FileExistsError, NotADirectoryError) as error:
        raise Damaged(f"the archive cannot be unpacked: {error}") from error


def _mode_here(mode: int) -> int:
    """The permission bits of a file here, before the umask: who could read it may write it, if its owner might."""
    kept = mode & 0o555
    return kept | 0o200 | (mode & 0o444) >> 1 if mode & 0o200 else kept


def _check_link(names: list[str], target: str) -> None:
    """Refuses a link that leads out: `..` may stand at its start, as often as there are folders above it."""
    level, has_name = len(names) - 1, False
    for name in target.split("/"):
        if name == "..":
            level -= 1
        has_name = has_name or name not in ("", ".", "..")
        if level < 0 or (name == ".." and has_name):
            target = "/"
    if not target or target.startswith("/"):
        raise Damaged(f"the archive's link {'/'.join(names)[:80]!r} leads out of its folder")


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

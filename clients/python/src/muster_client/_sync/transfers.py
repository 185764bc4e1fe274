# Made from _async/ by generate.py: change that.
"""Files to the store and back. A connection that breaks costs what was on its way."""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx

from .._requests import list_files, matches
from .._trees import ManifestEntry, append, make_entry, read_manifest, unpack
from .._waiting import call_here, sleep_sync
from ..errors import Damaged, MusterError, Refused, Unreachable, Unwell
from ..models import CreateFile, FilePage, FileView, KeptCheckpoint
from .facilitator import Facilitator

_BLOCK = 256 * 1024
#: Breaks without any progress in between, and the pause after the first; later ones double.
_BREAKS = 6
_FIRST_PAUSE = 0.25
#: How far back a file is looked for that was sent before.
_LOOK_PAGES, _LOOK_SIZE = 4, 100
_MAX_MANIFEST = 8 << 20
#: A store answers an upload once all of it lies on its disk.
_UPLOAD = httpx.Timeout(60, connect=10)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _blocks(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while block := call_here(file.read, _BLOCK):
            yield block


def _known(facilitator: Facilitator, path: Path, name: str, sha256: str) -> FileView | None:
    """A file of the account with that name and content, whole or begun."""
    size = path.stat().st_size
    for page in range(1, _LOOK_PAGES + 1):
        files = facilitator.get(FilePage, "/api/v1/files/", page=page, page_size=_LOOK_SIZE)
        for file in files.results:
            if (file.name, file.size, file.sha256) == (name, size, sha256):
                return file
        if files.next is None:
            break
    return None


def upload(facilitator: Facilitator, path: Path, name: str) -> FileView:
    """Sends a file to the store. Content that lies there under that name already is not sent again."""
    sha256 = call_here(_digest, path)
    size = path.stat().st_size
    file = _known(facilitator, path, name, sha256)
    if file is None:
        file = facilitator.post(FileView, "/api/v1/files/", CreateFile(name=name, size=size, sha256=sha256))
    if not file.complete:
        _push(facilitator, path, size, file.upload_url)
    stored = facilitator.get(FileView, f"/api/v1/files/{file.id}/")
    if not stored.complete:
        raise Unreachable(f"the store has not confirmed all of {path}; send it again, and it goes on")
    return stored


def _push(facilitator: Facilitator, path: Path, size: int, url: str) -> None:
    breaks, pause, last = 0, _FIRST_PAUSE, -1
    while True:
        try:
            head = facilitator.request("HEAD", url)
            start = int(head.headers.get("upload-offset", 0))
            if start > last:
                breaks, pause, last = 0, _FIRST_PAUSE, start
            headers = {"content-length": str(size - start)}
            if size > start:
                headers["content-range"] = f"bytes {start}-{size - 1}/{size}"
            elif size > 0:
                return
            facilitator.request("PUT", url, _blocks(path, start), headers, timeout=_UPLOAD)
            return
        except Refused as refused:
            if refused.status == 422:
                raise Damaged(f"{path} changed while it was uploaded, or was damaged on its way") from refused
            passes = isinstance(refused, Unwell) or refused.status in (400, 409)
            breaks += 1
            if not passes or breaks >= _BREAKS:
                raise
        except Unreachable:
            breaks += 1
            if breaks >= _BREAKS:
                raise
        sleep_sync(pause)
        pause *= 2


def download(facilitator: Facilitator, file: FileView, into: Path) -> Path:
    """Fetches a file of the store to `into`, which is replaced once everything has come and its sha256 is right."""
    if into.is_dir():
        raise MusterError(f"{into} is a folder: name the file in it")
    into.parent.mkdir(parents=True, exist_ok=True)
    part = into.with_name(f".{into.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as target:
            _pull(facilitator, file, target)
        found = call_here(_digest, part)
        if file.sha256 is not None and found != file.sha256:
            raise Damaged(f"the bytes of {file.name} have sha256 {found} instead of {file.sha256}; fetch it again")
        part.replace(into)
    finally:
        part.unlink(missing_ok=True)
    return into


def _pull(facilitator: Facilitator, file: FileView, target: IO[bytes]) -> None:
    breaks, pause = 0, _FIRST_PAUSE
    while True:
        before = target.tell()
        headers = {"range": f"bytes={before}-"} if before else {}
        if before and file.sha256:
            headers["if-range"] = f'"{file.sha256}"'
        try:
            with facilitator.stream(file.download_url, headers) as answer:
                if before and answer.status_code != 206:
                    # A server that sends everything again is taken at its word.
                    target.seek(0)
                    target.truncate()
                for piece in answer.iter_bytes():
                    target.write(piece)
            return
        except (Unreachable, Unwell):
            breaks = 0 if target.tell() > before else breaks + 1
            if breaks >= _BREAKS:
                raise
            if file.size is not None and target.tell() == file.size:
                return
        sleep_sync(pause)
        pause = _FIRST_PAUSE if breaks == 0 else pause * 2


def fetch_folder(facilitator: Facilitator, file: FileView, place: Path) -> Path:
    """Fetches a delivered folder to `place`, where nothing may be."""
    if place.exists() or place.is_symlink():
        raise MusterError(f"{place} is here already: move it, or name another folder")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".muster-", dir=place.parent) as scratch:
        archive = download(facilitator, file, Path(scratch) / "output.tar")
        call_here(unpack, archive, Path(scratch) / "output")
        (Path(scratch) / "output").rename(place)
    return place


def check_place(place: Path, replace: bool) -> None:
    """Refuses to replace a file unasked."""
    if not replace and (place.exists() or place.is_symlink()):
        raise MusterError(f"{place} is here already: name another folder, or allow to replace it")


def fetch_files(
    facilitator: Facilitator, file: FileView, into: Path, pattern: str | None, replace: bool
) -> list[Path]:
    """Fetches the files of an archive, each to its path below `into`: those that match a pattern, or all."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".muster-", dir=into) as scratch:
        archive = download(facilitator, file, Path(scratch) / "output.tar")
        tree = Path(scratch) / "output"
        call_here(unpack, archive, tree)
        found = [name for name, _ in call_here(list_files, tree)]
        for name in found:
            # The archive is another party's: a miner may put anything there.
            if pattern is not None and not matches(pattern, name):
                raise Damaged(f"the archive has the file {name[:80]!r}, which {pattern!r} does not name")
            check_place(into / name, replace)
        for name in found:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).replace(into / name)
    return [into / name for name in found]


def read_output(facilitator: Facilitator, url: str, offset: int, until: int) -> bytes:
    """Reads the bytes of a printed stream up to `until`."""
    found, breaks, pause = bytearray(), 0, _FIRST_PAUSE
    while offset + len(found) < until:
        before = len(found)
        try:
            with facilitator.stream(f"{url}?offset={offset + before}", with_key=True) as answer:
                for piece in answer.iter_bytes():
                    found += piece
                    if offset + len(found) >= until:
                        break
        except (Unreachable, Unwell):
            if breaks + 1 >= _BREAKS and len(found) == before:
                raise
        if len(found) > before:
            breaks, pause = 0, _FIRST_PAUSE
            continue
        breaks += 1
        if breaks >= _BREAKS:
            raise Unreachable(f"the output ended at byte {offset + before} of {until}; ask again")
        sleep_sync(pause)
        pause *= 2
    return bytes(found[: max(until - offset, 0)])


def _block(facilitator: Facilitator, blocks: str, digest: str, limit: int) -> bytes:
    """A block of a job's checkpoints by its SHA-256, which is checked."""
    path, _, query = blocks.partition("?")
    url = f"{path.rstrip('/')}/{digest}?{query}"
    breaks, pause = 0, _FIRST_PAUSE
    while True:
        try:
            content = (facilitator.request("GET", url)).content
            break
        except (Unreachable, Unwell):
            breaks += 1
            if breaks >= _BREAKS:
                raise
        sleep_sync(pause)
        pause *= 2
    if len(content) > limit or hashlib.sha256(content).hexdigest() != digest:
        raise Damaged(f"the store has another content for the block {digest}")
    return content


def restore(facilitator: Facilitator, blocks: str, kept: KeptCheckpoint, into: Path) -> Path:
    """Lays a checkpoint out below the folder `into`. Nothing of that name may be there."""
    digest = kept.manifest.removeprefix("sha256:")
    entries = read_manifest(_block(facilitator, blocks, digest, _MAX_MANIFEST), kept.name)
    place = into / kept.name
    if place.exists() or place.is_symlink():
        raise MusterError(f"{place} is here already: move it, or name another folder")
    into.mkdir(parents=True, exist_ok=True)
    # It gets its name once it is whole: a program may look for it meanwhile.
    with tempfile.TemporaryDirectory(prefix=".muster-", dir=into) as scratch:
        for entry in entries:
            path = call_here(make_entry, entry, Path(scratch))
            _fill(facilitator, blocks, entry, path)
        (Path(scratch) / kept.name).rename(place)
    return place


def _fill(facilitator: Facilitator, blocks: str, entry: ManifestEntry, path: Path) -> None:
    for digest, length in zip(entry.blocks, entry.lengths(), strict=True):
        content = _block(facilitator, blocks, digest.hex(), length)
        if len(content) != length:
            raise Damaged(f"a block of {entry.path} has {len(content)} bytes instead of {length}")
        call_here(append, path, content)

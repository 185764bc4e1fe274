"""Makes the request of a job, without any connection."""

from __future__ import annotations

import base64
import fnmatch
import io
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import MusterError, NoValidator
from .models import (
    CheckpointTerms,
    ClassOffer,
    MetricRule,
    SubnetCapacity,
    ValidatorCapacity,
)

#: An input of a job: its bytes, a file or a folder of this machine, or a URL that the executor fetches.
Input = bytes | str | os.PathLike[str]

#: Inputs of at most this many bytes together travel inside the request.
INLINE_BYTES = 1024 * 1024
_LEAST_TRANSFER = 30
_UNKNOWN_TRANSFER = 300
_SLOWEST = 4 * 1024 * 1024
_PRIORITIES = range(1, 11)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job as its user describes it. Times are in seconds."""

    image: str
    """The name of the image, such as `registry.example.org/train:2`, or its digest."""
    args: Sequence[str] = ()
    """The arguments of the image's entry point."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the container."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    """By the path below `/volume`."""
    outputs: Sequence[str] = ()
    """Paths below `/output` that come back: a file or a folder, a folder if a slash ends it, or a pattern with `*`."""
    name: str | None = None
    """A name by which the job is found again."""
    executor_class: str = "always_on.test"
    """The class of executor; `Client.subnet` lists those that are offered."""
    validator: str | None = None
    """The address of the validator that routes the job; without it, the one at which the job starts first."""
    timeout: int = 600
    """The longest time that the program may run."""
    download_timeout: int | None = None
    """The longest time for the inputs; without it, as their size needs."""
    upload_timeout: int | None = None
    """The longest time for the outputs."""
    queue_timeout: int | None = None
    """The longest time that the job waits for an executor; without it, the validator decides."""
    priority: int | None = None
    """Its place among the jobs of the account that wait, 1 to 10; 10 is first."""
    artifacts: str = "/artifacts"
    """The folder of the container whose small files come back with the result."""
    metrics: Sequence[MetricRule] = ()
    """Rules that find metrics in the program's output."""
    checkpoints: CheckpointTerms | None = None
    """Where the program leaves checkpoints, and from which one it begins."""
    deterministic: bool = False
    """Whether the outputs follow from the inputs alone, so that the validator may check them."""
    workdir: str | None = None
    """The working directory of the program; without it, the image's."""
    entrypoint: str | None = None
    """The program in place of the image's entry point."""
    stdin: str | None = None
    """The path below `/volume` of the input that the program reads from its standard input."""
    webhook: str | None = None
    """The URL that is told of the job's end."""

    def __post_init__(self) -> None:
        """Refuses a text where a list of texts is meant, of which Python would take each letter."""
        for name, value in (("args", self.args), ("outputs", self.outputs)):
            if isinstance(value, str):
                raise MusterError(f"{name} is a list of texts: write [{value!r}]")


@dataclass(frozen=True)
class StoredInput:
    """An input that goes through the file store."""

    path: str
    """Below `/volume`."""
    source: bytes | Path
    """Its bytes, or the file or folder of this machine."""

    @property
    def is_folder(self) -> bool:
        """Whether it travels as an archive."""
        return isinstance(self.source, Path) and self.source.is_dir()


@dataclass(frozen=True)
class Inputs:
    """The inputs of a job by the way that they take."""

    volumes: list[dict[str, Any]]
    """Those that the request holds or names."""
    stored: list[StoredInput]
    """Those that the file store gets first."""
    seconds: int
    """The time that they may take."""


#: The output that is all of `/output`.
WHOLE = "."


def relative(path: str, root: str) -> str:
    """A path below a folder of the container, as a user may write it: `/volume/data/x` is `data/x` below `/volume`."""
    plain = path.removeprefix(f"{root}/").removeprefix("./")
    names = plain.split("/")
    if not plain or any(name in ("", ".", "..") for name in names) or "\\" in plain:
        raise MusterError(f"{path!r} is no path below {root}: it has names between single slashes, and no ..")
    return plain


def is_url(value: Input) -> bool:
    """Whether an input is fetched by the executor."""
    return isinstance(value, str) and value.startswith(("http://", "https://"))


def files_of(folder: Path) -> Iterable[tuple[str, Path]]:
    """The regular files of a folder by name, with their paths below it. Links to folders are not followed."""
    for above, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(above) / name
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def list_files(folder: Path) -> list[tuple[str, Path]]:
    """The same as a list."""
    return list(files_of(folder))


def pack(inputs: Iterable[tuple[str, bytes | Path]], into: Any) -> None:
    """Writes inputs into a zip archive, with their executable bits and without their times."""
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in inputs:
            entry = zipfile.ZipInfo(name)
            runs = isinstance(source, Path) and os.access(source, os.X_OK)
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            if isinstance(source, bytes):
                archive.writestr(entry, source)
                continue
            with source.open("rb") as file, archive.open(entry, "w", force_zip64=True) as member:
                while block := file.read(1024 * 1024):
                    member.write(block)


def _size(source: bytes | Path) -> int:
    if isinstance(source, bytes):
        return len(source)
    if source.is_dir():
        return sum(path.stat().st_size for _, path in files_of(source))
    if not source.is_file():
        raise MusterError(f"there is no input {source}")
    return source.stat().st_size


def read_inputs(inputs: Mapping[str, Input], download_timeout: int | None) -> Inputs:
    """Sorts the inputs: URLs are named, small ones travel inside the request, larger ones through the store."""
    volumes: list[dict[str, Any]] = []
    local: list[StoredInput] = []
    for name, value in inputs.items():
        path = relative(name, "/volume")
        if is_url(value):
            volumes.append({"volume_type": "single_file", "url": value, "relative_path": path})
        else:
            local.append(StoredInput(path, value if isinstance(value, bytes) else Path(value)))
    total = sum(_size(one.source) for one in local)
    seconds = _LEAST_TRANSFER + total // _SLOWEST if not volumes else _UNKNOWN_TRANSFER + total // _SLOWEST
    if total > INLINE_BYTES:
        return Inputs(volumes, local, download_timeout or seconds)
    packed: list[tuple[str, bytes | Path]] = []
    for one in local:
        if one.is_folder and isinstance(one.source, Path):
            packed.extend((f"{one.path}/{name}", file) for name, file in files_of(one.source))
        else:
            packed.append((one.path, one.source))
    if packed:
        archive = io.BytesIO()
        pack(packed, archive)
        contents = base64.b64encode(archive.getvalue()).decode()
        volumes.append({"volume_type": "inline", "contents": contents})
    return Inputs(volumes, [], download_timeout or seconds)


def output_path(output: str) -> str:
    """The path of an output below `/output`."""
    path = output.rstrip("/")
    return WHOLE if path in (WHOLE, "/output") else relative(path, "/output")


def matches(pattern: str, path: str) -> bool:
    """Whether a delivered file is one that the pattern names, part by part: nothing in it crosses a slash."""
    parts, names = pattern.split("/"), path.split("/")
    return len(parts) == len(names) and all(map(fnmatch.fnmatchcase, names, parts))


def kinds_of(output: str) -> list[str]:
    """The kinds of an output: where its user does not say, whichever the program leaves of a file and a folder."""
    if output_path(output) == WHOLE:
        return ["folder"]
    if any(letter in output for letter in "*?["):
        return ["matching"]
    return ["folder"] if output.endswith("/") else ["file", "folder"]


def stored_name(path: str, kind: str) -> str:
    """The name of an output in the store, where a folder lies as an archive."""
    name = path.rsplit("/", 1)[-1]
    if kind == "matching" or path == WHOLE:
        return "output.tar"
    return f"{name}.tar" if kind == "folder" else name


def upload_of(path: str, kind: str, url: str) -> dict[str, Any]:
    """The upload of an output into the store. It is wanted of a failed job, too."""
    return {
        "output_upload_type": "single_file_put",
        "relative_path": path,
        "url": url,
        "kind": kind,
        "signed_headers": {"Muster-Partial": "keep"},
    }


def file_of(url: str) -> str | None:
    """The id of the file in the store to which a signed URL leads; `None` for another URL."""
    names = urlsplit(url).path.split("/")
    if len(names) >= 3 and names[-1] in ("upload", "content") and names[-3] == "files":
        return names[-2]
    return None


def terms_of(spec: JobSpec) -> dict[str, Any] | None:
    """The terms of the job beyond ComputeHorde's fields; `None` for a job without any."""
    if spec.priority is not None and spec.priority not in _PRIORITIES:
        raise MusterError("a priority is a number from 1 to 10")
    start = {"workdir": spec.workdir, "entrypoint": spec.entrypoint, "stdin": spec.stdin}
    start = {name: value for name, value in start.items() if value is not None}
    terms = {
        "queue_time_limit": spec.queue_timeout,
        "priority": spec.priority,
        "metrics": list(spec.metrics) or None,
        "checkpoints": spec.checkpoints,
        "deterministic": spec.deterministic or None,
        "start": start or None,
    }
    return {name: value for name, value in terms.items() if value is not None} or None


def needed_features(spec: JobSpec) -> set[str]:
    """The features that a facilitator needs: one that lacks them would drop a part of the job in silence."""
    terms = terms_of(spec) or {}
    needed = {"terms"} if terms else set()
    if spec.webhook:
        needed.add("webhooks")
    kinds = {kind for output in spec.outputs for kind in kinds_of(output)}
    if kinds & {"folder", "matching"}:
        needed.add("folders")
    if "matching" in kinds:
        needed.add("output-patterns")
    features = {"metrics": "metrics", "checkpoints": "checkpoints", "start": "program-start"}
    return needed | {feature for term, feature in features.items() if term in terms}


def request_of(spec: JobSpec, validator: str, inputs: Inputs, uploads: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of `POST /api/v1/job-docker/`."""
    upload_timeout = spec.upload_timeout or (_UNKNOWN_TRANSFER if uploads else _LEAST_TRANSFER)
    terms = terms_of(spec)
    return {
        "target_validator_hotkey": validator,
        "executor_class": spec.executor_class,
        "docker_image": spec.image,
        "args": list(spec.args),
        "env": dict(spec.env),
        # Without effect: the class decides.
        "use_gpu": False,
        "artifacts_dir": spec.artifacts,
        "download_time_limit": inputs.seconds,
        "execution_time_limit": spec.timeout,
        "upload_time_limit": upload_timeout,
        "streaming_start_time_limit": 0,
        "volumes": inputs.volumes or None,
        "uploads": uploads or None,
        "muster": {"terms": terms} if terms else None,
        "tag": spec.name,
        "webhook": spec.webhook,
    }


def choose_validator(capacity: SubnetCapacity, executor_class: str) -> str:
    """The only validator, or the one at which a job of this class starts first."""
    if not capacity.results:
        raise NoValidator("no validator takes jobs at this facilitator now; try again in a minute")
    if len(capacity.results) == 1:
        return capacity.results[0].validator

    def order(offer: ClassOffer) -> tuple[float, int, int]:
        estimate = float("inf") if offer.estimate_s is None else offer.estimate_s
        return (estimate, offer.ahead, -offer.free)

    def offers(validator: ValidatorCapacity) -> list[ClassOffer]:
        fitting = (offer for offer in validator.classes if offer.class_ == executor_class)
        return [offer for offer in fitting if offer.executors > 0]

    fitting = [(min(map(order, found)), one) for one in capacity.results if (found := offers(one))]
    if not fitting:
        raise NoValidator(f"no validator has an executor of the class {executor_class}")
    return min(fitting, key=lambda pair: pair[0])[1].validator

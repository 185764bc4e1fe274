"""The objects of a facilitator's interface, made from docs/openapi.json by generate.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ._job_result import JobResult

__all__ = [
    "AccountDeleted",
    "AccountView",
    "AccountWebhookView",
    "ApiKey",
    "ArchiveSource",
    "AuditEntry",
    "AuditPage",
    "BestMetric",
    "CheatReportView",
    "CheckedOutput",
    "CheckpointTerms",
    "ClaimedOffer",
    "ClaimedSpecs",
    "ClassOffer",
    "ComparedOutput",
    "CompletionReport",
    "CreateFile",
    "CreateJob",
    "CreateKey",
    "DayUsage",
    "Detail",
    "FailureDetails",
    "Feedback",
    "FilePage",
    "FilePost",
    "FilePut",
    "FileView",
    "HordeFailureDetails",
    "HuggingfaceVolume",
    "InlineVolume",
    "JobCheck",
    "JobCheckpointsView",
    "JobExtension",
    "JobImage",
    "JobLimits",
    "JobMetricsView",
    "JobPage",
    "JobTerms",
    "JobView",
    "KeptCheckpoint",
    "KeyList",
    "LayerCount",
    "LogEvent",
    "Login",
    "MachineLoad",
    "Message",
    "MetricPoint",
    "MetricRule",
    "MetricSeries",
    "MinerClaims",
    "MinerReport",
    "MinerResponse",
    "MinerView",
    "NonFinitePoint",
    "Nonce",
    "OutputComparison",
    "OutputFile",
    "PrintedStream",
    "PrintedStreams",
    "ProgramReport",
    "ProgramStart",
    "ProgressEvent",
    "ProvenClass",
    "QueueEvent",
    "QueuedJob",
    "RefundedUsage",
    "RejectionDetails",
    "ReportCheat",
    "ReportedState",
    "ResumeSource",
    "SetWebhook",
    "SingleFileVolume",
    "StatusEntry",
    "StatusMetadata",
    "StoredStream",
    "StreamingAddress",
    "StreamingDetails",
    "SubnetCapacity",
    "Token",
    "UsageList",
    "ValidatorCapacity",
    "WebLink",
    "WebhookDelivery",
    "ZipUrlVolume",
]


@dataclass(frozen=True, kw_only=True)
class AccountDeleted:
    """`DELETE /api/v1/account/`: what was deleted."""

    account: str
    """The account's name."""
    deleted: dict[str, int]
    """The number of deleted rows, by their kind. A job takes its statuses and results with it."""
    stays: list[str]
    """The things that stay, in words."""


@dataclass(frozen=True, kw_only=True)
class AccountView:
    """`GET /api/v1/account/`: what the caller's account holds."""

    account: str
    """The account's name: a hotkey's address, or the name of an account without one."""
    files: int
    """The number of its files, complete or not."""
    jobs: int
    """The number of its jobs, ended or not."""
    keys: int
    """The number of its API keys that hold."""
    open_jobs: int
    """The number of its jobs that have not ended."""


@dataclass(frozen=True, kw_only=True)
class AccountWebhookView:
    """The webhook of an account."""

    changed_at: datetime
    """The time of the last change."""
    secret: str | None = None
    """The secret that signs every message of the account, `whsec_…`; only in the answer that draws it."""
    url: str | None = None
    """The URL that is told of the end of every job that names no URL of its own; null for none."""


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key as its owner sees it."""

    account: str
    """The account that the key opens."""
    created_at: datetime
    """The time of creation."""
    expires_at: datetime | None = None
    """The time at which the key ends; absent for a key that was made before keys had an end."""
    id: str
    """The id of the key in the API."""
    key: str | None = None
    """The key itself, `msk_…`; shown only in the answer that creates it."""
    name: str
    """The owner's name for the key."""
    rights: list[str] = field(default_factory=list)
    """The rights of the key. A facilitator that knows no rights leaves them out: its keys may do everything."""


@dataclass(frozen=True, kw_only=True)
class ArchiveSource:
    """The archive of a user's own image, as `docker save` writes it. The job names the image in it by its id."""

    length: int
    """The length of the archive in bytes."""
    sha256: str
    """The SHA-256 of the archive's bytes."""
    url: str
    """The URL from which an executor fetches the archive. Its bearer can read the archive."""


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log."""

    account: str
    """The account that acted: a hotkey, or the name of an account without one."""
    action: str
    """The action, such as `login` or `job.created`."""
    at: datetime
    """The time of the action."""
    credential: str
    """The credential that admitted the request: `hotkey`, `browser`, or the id of an API key."""
    id: str
    """The id of the entry."""
    subject: str
    """The thing that the action concerned, such as a job."""


@dataclass(frozen=True, kw_only=True)
class AuditPage:
    """`GET /api/v1/audit/`: one page of the audit log."""

    count: int
    """The number of entries on all pages together."""
    next: str | None = None
    """The URL of the next page; null on the last one."""
    previous: str | None = None
    """The URL of the page before; null on the first one."""
    results: list[AuditEntry]
    """The entries of this page, newest first."""


@dataclass(frozen=True, kw_only=True)
class BestMetric:
    """A metric by which checkpoints are compared."""

    larger_is_better: bool | None = None
    """Whether a larger value is better, as of an accuracy; a smaller one is, as of a loss, if absent."""
    name: str
    """The metric's name."""


@dataclass(frozen=True, kw_only=True)
class CheatReportView:
    """`GET /api/v1/jobs/{uuid}/cheat-report/`: the report about a job, and what comparing the outputs shows now."""

    check: JobCheck | None = None
    """The validator's finding by running the job again; null until it has told."""
    comparison: OutputComparison
    """The comparison of the outputs of both jobs."""
    details: Any | None = None
    """The user's evidence, as reported."""
    job_uuid: str
    """The job that was reported."""
    reported_at: datetime
    """The time of the report."""
    trusted_job_uuid: str
    """The same job on the trusted miner."""


@dataclass(frozen=True, kw_only=True)
class CheckedOutput:
    """One output of a job and of the same job on the validator's own miner."""

    job: str | None = None
    """The SHA-256 in the user's job; null if that job has no such output."""
    name: str
    """`stdout`, or the path of an artifact."""
    trusted: str | None = None
    """The SHA-256 on the validator's own miner; null if there is no such output there."""


@dataclass(frozen=True, kw_only=True)
class CheckpointTerms:
    """The terms of a job that leaves checkpoints, from which another attempt goes on."""

    best: BestMetric | None = None
    """The metric by which the best checkpoint is kept beside the three newest ones."""
    every: int | None = None
    """How often the program is asked to save, in epochs: 1 to 1,000,000; 5 if absent. The program alone acts on it."""
    fatal_exit_codes: list[int] = field(default_factory=list)
    """The exit codes after which the job never goes on, at most 32."""
    folder: str | None = None
    """The folder in the container, an absolute path; `/checkpoint` if absent."""
    resume_from: ResumeSource | None = None
    """The checkpoint of an earlier job of the same account that this job begins from."""
    signal: str | None = None
    """The signal that asks the program to save and to end with exit code 85."""
    stall_s: int | None = None
    """The seconds without progress after which the program is stopped and the job goes on from its last checkpoint:
    10 to 604,800. Progress is a line of the progress file or a metric that says something new, and a new checkpoint.
    Never, if absent.
    """


@dataclass(frozen=True, kw_only=True)
class ClaimedOffer:
    """The executors of one class that a miner offers."""

    class_: str = field(metadata={"json": "class"})
    """The class of executor."""
    executors: int
    """Executors of the class."""


@dataclass(frozen=True, kw_only=True)
class ClaimedSpecs:
    """The specs of a machine."""

    class_: str = field(metadata={"json": "class"})
    """The class of executor that the machine served as."""
    cores: int
    """Processors; 0 if their number is not told."""
    cpu: str
    """The model of the processor; empty if it is not told."""
    disk: int
    """Size of the disk, in bytes; 0 if it is not told."""
    gpus: list[str]
    """The kinds of GPU, as `2 x NVIDIA A6000`; `MAX_GPU_KINDS` at most."""
    memory: int
    """Main memory, in bytes; 0 if it is not told."""
    os: str
    """The operating system; empty if it is not told."""
    told_at: datetime
    """The time at which the validator learned of them."""


@dataclass(frozen=True, kw_only=True)
class ClassOffer:
    """The offer of one class of executor, and the place that the caller's next job would get."""

    ahead: int
    """Jobs that would start before the caller's next one, at most."""
    class_: str = field(metadata={"json": "class"})
    """The class to name in `executor_class`."""
    estimate_s: int | None = None
    """Seconds until the caller's next job is likely to start; null if that is unknown."""
    executors: int
    """Their executors of the class."""
    free: int
    """Those of the executors that would be asked now. They may be at work for another validator."""
    hardware: str | None = None
    """The hardware of the most of these executors, as their miners tell it; null if none has told it. It has the
    words `watched disk` if an executor is known to have no disk of a fixed size.
    """
    miners: int
    """Miners that offer the class."""
    private_images: int
    """Those of the executors that take images from archives or with a login, as far as is known."""
    running: int
    """Jobs of the validator that run on these executors."""
    waiting: int
    """Jobs that wait for the class."""
    why: str
    """The reason why the jobs of the class wait, in words; empty if none waits or the reason is unknown."""


@dataclass(frozen=True, kw_only=True)
class ComparedOutput:
    """One output of both jobs."""

    job: str | None = None
    """The digest in the reported job; null if that job has no such output."""
    name: str
    """`stdout`, or the path of an artifact."""
    trusted_job: str | None = None
    """The digest in the job on the trusted miner; null if that job has no such output."""


@dataclass(frozen=True, kw_only=True)
class CompletionReport:
    """The completion report of an attempt. An executor tells it; nobody else has measured it."""

    compute_ms: int | None = None
    """Milliseconds from the start of the program to its end."""
    cpu_ms: int | None = None
    """Milliseconds of processor time, of all cores together, in samples of a second; absent if nothing was sampled."""
    gpu_ms: int | None = None
    """Milliseconds for which the program had GPUs, of all of them together; absent for a program without GPUs."""
    gpu_permille: int | None = None
    """The mean utilisation of the program's GPUs, in thousandths; absent if nothing was sampled."""
    memory_peak: int | None = None
    """The most memory that the program had in a sample, in bytes, without the cache of files."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of each metric that the program reported."""
    outputs: list[OutputFile] = field(default_factory=list)
    """The files among the program's outputs in the order of their paths, at most `MAX_LISTED_OUTPUTS`; standard
    output and standard error are not among them.
    """
    printed: PrintedStreams | None = None
    """The streams that the program printed, whole. Only where the job's validator ordered it, by the feature
    `output`.
    """
    unlisted: int | None = None
    """The number of files among the outputs that are not listed: beyond the bounds of a report, or no regular files."""


@dataclass(frozen=True, kw_only=True)
class CreateFile:
    """`POST /api/v1/files/`: creates a file for an input or an output."""

    max_size: int | None = None
    """For an output of unknown size: the most bytes that the store accepts."""
    name: str
    """The owner's name for the file."""
    sha256: str | None = None
    """The SHA-256 of the contents, 64 hex digits; the store compares the upload with it."""
    size: int | None = None
    """The size in bytes; absent for an output whose size is not known yet."""


@dataclass(frozen=True, kw_only=True)
class CreateJob:
    """`POST /api/v1/job-docker/`. The user's signature covers the order of maps, so they keep it."""

    args: list[str] = field(default_factory=list)
    """The arguments of the image's entry point."""
    artifacts_dir: str | None = None
    """The folder in the container whose files come back inside the result."""
    docker_image: str
    """The reference of the image to run."""
    download_time_limit: int
    """Limit for fetching the inputs, in seconds."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the container, in the signed order."""
    execution_time_limit: int
    """Limit for the program, in seconds."""
    executor_class: str
    """The class of executor that the job needs."""
    job_namespace: str | None = None
    """The account that the job counts towards; not signed."""
    muster: JobExtension | None = None
    """Muster's own: the job's terms. They are signed by themselves, not with the fields above."""
    on_trusted_miner: bool | None = None
    """Whether the job must run on the validator's own miner."""
    streaming_details: StreamingDetails | None = None
    """Present for a streaming job only."""
    streaming_start_time_limit: int
    """Limit from the program's start to its first answer, in seconds; streaming jobs only."""
    tag: str | None = None
    """Muster's own: the user's label of the job; not signed, and it stays at the facilitator. A letter or a digit,
    then letters, digits, hyphens, dots and underscores, and no uuid.
    """
    target_validator_hotkey: str
    """The validator that the facilitator hands the job to; not signed."""
    upload_time_limit: int
    """Limit for delivering the outputs, in seconds."""
    uploads: list[dict[str, Any]] | None = None
    """The destinations of the outputs."""
    use_gpu: bool | None = None
    """Deprecated by ComputeHorde and without effect: the class decides."""
    volumes: list[dict[str, Any]] | None = None
    """The job's inputs."""
    webhook: str | None = None
    """Muster's own: the URL that is told of the job's end; not signed, and it stays at the facilitator. The account
    must have a secret (`PUT /api/v1/webhook/`).
    """


@dataclass(frozen=True, kw_only=True)
class CreateKey:
    """`POST /api/v1/keys/`: creates an API key."""

    account: str | None = None
    """The account without a hotkey that the key opens; for administrators only. Absent, the key opens the caller's
    own account.
    """
    days: int | None = None
    """The days for which the key is valid; 365 if absent. A key that is made by a key ends with it at the latest."""
    name: str
    """The owner's name for the key."""
    rights: list[str] | None = None
    """The rights of the key; `jobs`, `chat`, `files` and `read` if absent. A key that makes a key can give its own
    rights only.
    """


@dataclass(frozen=True, kw_only=True)
class DayUsage:
    """An account's use of a model on one day."""

    day: int
    """Days since 1970-01-01, UTC."""
    input_tokens: int
    """The tokens of the requests together."""
    model: str
    """The model's id."""
    output_tokens: int
    """The tokens of the answers together."""
    requests: int
    """The number of answered requests."""


@dataclass(frozen=True, kw_only=True)
class Detail:
    """An error of every request but the login: `{"detail": …}`."""

    detail: str
    """The failure, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class FailureDetails:
    """The job failed by its own fault."""

    context: Any | None = None
    """Further details, free in form."""
    docker_process_exit_status: int | None = None
    """The program's exit code, if it ended."""
    docker_process_stderr: str | None = None
    """The program's standard error."""
    docker_process_stdout: str | None = None
    """The program's standard output."""
    message: str
    """The failure in words."""
    reason: str
    """The reason of the failure."""
    stage: str
    """The stage in which the job failed."""


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """`PUT /api/v1/jobs/{uuid}/feedback/`: the user's rating of a result."""

    expected_duration: float | None = None
    """The duration that the user expected, in seconds."""
    result_correctness: float
    """From 0 (wrong) to 1 (right)."""


@dataclass(frozen=True, kw_only=True)
class FilePage:
    """`GET /api/v1/files/`: one page of files."""

    count: int
    """The number of files on all pages together."""
    next: str | None = None
    """The URL of the next page; null on the last one."""
    previous: str | None = None
    """The URL of the page before; null on the first one."""
    results: list[FileView]
    """The files of this page, newest first."""


@dataclass(frozen=True, kw_only=True)
class FilePost:
    """`single_file_post`: one file, sent as a form."""

    form_fields: dict[str, str] | None = None
    """Further fields of the form, in the order given."""
    kind: str | None = None
    """The kind of the output in Muster's form; absent in ComputeHorde's."""
    relative_path: str
    """The path of the file under `/output`."""
    signed_headers: dict[str, str] | None = None
    """Headers to send, in the order given."""
    url: str
    """The URL that receives the upload."""


@dataclass(frozen=True, kw_only=True)
class FilePut:
    """`single_file_put`: one file, sent as a body."""

    kind: str | None = None
    """The kind of the output in Muster's form; absent in ComputeHorde's."""
    relative_path: str
    """The path of the file under `/output`."""
    signed_headers: dict[str, str] | None = None
    """Headers to send, in the order given."""
    url: str
    """The URL that receives the upload."""


@dataclass(frozen=True, kw_only=True)
class FileView:
    """A file in the store, with signed URLs that expire."""

    complete: bool | None = None
    """Whether the store has received the whole file."""
    created_at: datetime
    """The time of creation."""
    download_url: str
    """Answers `GET`, also with ranges."""
    expires_at: datetime
    """The time at which both URLs expire."""
    id: str
    """The id of the file in the API."""
    name: str
    """The owner's name for the file."""
    received: int | None = None
    """Bytes that the store has received."""
    sha256: str | None = None
    """The SHA-256 of the contents, 64 hex digits; null until the file is complete."""
    size: int | None = None
    """The size in bytes; null until it is known."""
    upload_url: str
    """Accepts `PUT` of the whole file or of its parts in order; `HEAD` answers `Upload-Offset`."""


@dataclass(frozen=True, kw_only=True)
class HordeFailureDetails:
    """The subnet failed the job."""

    context: Any | None = None
    """Further details, free in form."""
    message: str
    """The failure in words."""
    reason: str
    """The reason of the failure."""
    reported_by: str
    """The role that reports the failure."""


@dataclass(frozen=True, kw_only=True)
class HuggingfaceVolume:
    """`huggingface_volume`: a snapshot of a Hugging Face repository."""

    allow_patterns: Any | None = None
    """Globs of the files to take; all files if absent."""
    relative_path: str | None = None
    """The folder under `/volume` to put the files into; `/volume` itself if absent."""
    repo_id: str
    """The repository, as `owner/name`."""
    repo_type: str | None = None
    """`model`, `dataset` or `space`; the hub's default if absent."""
    revision: str | None = None
    """Branch, tag or commit; the hub's default if absent."""
    token: str | None = None
    """The hub's access token."""


@dataclass(frozen=True, kw_only=True)
class InlineVolume:
    """`inline`: a zip archive inside the message."""

    contents: str
    """The zip archive, base64."""
    relative_path: str | None = None
    """The folder under `/volume` to unpack into; `/volume` itself if absent."""


@dataclass(frozen=True, kw_only=True)
class JobCheck:
    """`MusterJobCheck`, validator to facilitator: what running a job again showed. Users read it at `GET
    /api/v1/jobs/{uuid}/check/`.
    """

    at: datetime
    """The time of this state by the validator's clock."""
    origin: str
    """Why it was run again: `drawn` or `reported`."""
    outputs: list[CheckedOutput]
    """The outputs that were compared, those that differ first; at most 64."""
    reason: str
    """The reason in words; empty while it is pending."""
    state: str
    """The finding: `pending`, `agrees`, `differs` or `unproven`."""
    uuid: str
    """The id of the user's job."""


@dataclass(frozen=True, kw_only=True)
class JobCheckpointsView:
    """The checkpoints of a job that are kept."""

    blocks: str
    """The signed URL below which the manifests and the blocks of all of them are read, each by its SHA-256."""
    checkpoints: list[KeptCheckpoint]
    """The checkpoints, oldest first."""


@dataclass(frozen=True, kw_only=True)
class JobExtension:
    """The key `muster` of a job: in `POST /api/v1/job-docker/`, in `V2JobRequest`, and, without its secrets, in a
    job's view. It is sent only to peers that showed the feature `terms`.
    """

    account: str | None = None
    """The account that the job counts towards in a validator's queue, 1 to 128 printable ASCII characters without
    spaces. The facilitator sets it for the jobs that it signs itself; it is not signed, and no user may send it.
    """
    registry: str | None = None
    """The user's login at the image's registry, sealed by the user for the job's validator. It is not signed: it
    opens for this validator and this image only.
    """
    signature: str | None = None
    """The signature of the job's signatory over `JobTerms::digest`, `0x` and hex. A user leaves it out where the
    facilitator signs the job.
    """
    terms: JobTerms | None = None
    """The terms of the job."""


@dataclass(frozen=True, kw_only=True)
class JobImage:
    """The image that a job's image reference meant on the executor that ran the job, as the executor tells it."""

    id: str
    """The digest of the image's configuration."""
    manifest: str | None = None
    """The digest of the image's manifest in its registry; `None` for an image that came from elsewhere."""
    name: str
    """The image reference in the job."""


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """The limits of a job at one validator, in seconds."""

    image_default_s: int
    """The time for the image of a job without `image_time_limit`."""
    image_s: int
    """The longest `image_time_limit`."""
    job_s: int
    """All stages of a job together."""
    queue_default_s: int
    """The time in the queue of a job without `queue_time_limit`."""
    queue_s: int
    """The longest `queue_time_limit`."""


@dataclass(frozen=True, kw_only=True)
class JobMetricsView:
    """The metrics of a job."""

    newest: ReportedState | None = None
    """The newest state; null if the program has reported nothing."""
    series: list[MetricSeries]
    """The values of each metric, sorted by name; 2,000 points at most. A longer series has lost every second point."""


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """One page of jobs."""

    count: int
    """The number of jobs on all pages together."""
    next: str | None = None
    """The URL of the next page; null on the last one."""
    previous: str | None = None
    """The URL of the page before; null on the first one."""
    results: list[JobView]
    """The jobs of this page, newest first."""


@dataclass(frozen=True, kw_only=True)
class JobTerms:
    """The requests of a user that ComputeHorde's fields cannot hold."""

    checkpoints: CheckpointTerms | None = None
    """The checkpoints that the program leaves, from which another attempt goes on; absent for a job without."""
    deterministic: bool | None = None
    """Whether the user declares that the job's outputs follow from its inputs alone, so that the validator may run
    it again on its own miner and compare them. The miner that runs the job is not told.
    """
    image_archive: ArchiveSource | None = None
    """The archive that holds the image; absent for an image that the executor finds by its name."""
    image_time_limit: int | None = None
    """Limit for fetching the image, in seconds: 1 to 604,800; `DEFAULT_IMAGE_SECS` if absent."""
    metrics: list[MetricRule] = field(default_factory=list)
    """The rules that find metrics in the program's standard output, at most `MAX_METRIC_RULES`."""
    priority: int | None = None
    """The job's place among the jobs of its account that wait."""
    queue_time_limit: int | None = None
    """The longest time that the job may wait for an executor, in seconds: at most 2,592,000. With 0 it does not
    wait; if absent, the validator decides.
    """
    start: ProgramStart | None = None
    """How the program is started; absent for a job whose image decides."""


@dataclass(frozen=True, kw_only=True)
class JobView(JobResult):
    """A job as its user sees it."""

    args: list[str]
    """The arguments of the image's entry point."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """Small output files: path in the container to base64."""
    artifacts_dir: str | None = None
    """The folder in the container whose files come back."""
    completion: CompletionReport | None = None
    """Muster's own: what the program of the last attempt left and used, as its executor tells it. Absent until the
    job has ended. Only in answers to requests whose header `Muster-Features` names `completion`.
    """
    created_at: datetime
    """The time at which the facilitator accepted the job."""
    docker_image: str
    """The reference of the image."""
    download_time_limit: int
    """Limit for fetching the inputs, in seconds."""
    env: dict[str, str]
    """Environment variables of the container."""
    execution_time_limit: int
    """Limit for the program, in seconds."""
    executor_class: str
    """The class of executor that the job needs."""
    image: JobImage | None = None
    """Muster's own: the image that ran, as its executor tells it. Absent until the job has ended, and for a job that
    no executor of Muster ran. Only in answers to requests whose header `Muster-Features` names `results`.
    """
    job_namespace: str | None = None
    """The account that the job counts towards."""
    last_update: datetime
    """The time of the last change of status."""
    muster: JobExtension | None = None
    """Muster's own: the job's terms, without their signature. Absent for a job without terms."""
    on_trusted_miner: bool | None = None
    """Whether the job must run on the validator's own miner."""
    queue: QueuedJob | None = None
    """Muster's own: the place of a job that waits for an executor. Only in answers to requests whose header `Muster-
    Features` names `queue`.
    """
    status: str
    """The last status in its legacy display form: `Streaming Ready`. This field and the statuses of `status_history`
    stay as they are; pages and commands show people one of seven states instead.
    """
    status_history: list[StatusEntry]
    """Every status that the job has reached, oldest first."""
    stderr: str | None = None
    """The program's standard error; empty until the end."""
    stdout: str | None = None
    """The program's standard output; empty until the end."""
    streaming_client_cert: str | None = None
    """The client's certificate, PEM; empty if the job does not stream."""
    streaming_server_address: str | None = None
    """The server's host name or IP address; empty until the job accepts requests."""
    streaming_server_cert: str | None = None
    """The server's certificate, PEM; empty until the job accepts requests."""
    streaming_server_port: int | None = None
    """The server's TCP port; 0 until the job accepts requests."""
    streaming_start_time_limit: int
    """Limit from the program's start to its first answer, in seconds; streaming jobs only."""
    tag: str | None = None
    """The user's own label; empty for a job without one."""
    target_validator_hotkey: str
    """The validator that routes the job."""
    upload_results: dict[str, str] = field(default_factory=dict)
    """The answers of the upload destinations, by path."""
    upload_time_limit: int
    """Limit for delivering the outputs, in seconds."""
    uploads: list[dict[str, Any]] = field(default_factory=list)
    """The destinations of the outputs."""
    use_gpu: bool
    """Deprecated by ComputeHorde and without effect: the class decides."""
    uuid: str
    """The id of the job."""
    volumes: list[dict[str, Any]] = field(default_factory=list)
    """The job's inputs."""
    webhook: WebhookDelivery | None = None
    """Muster's own: where the message about the job's end stands. Only for a job with a webhook, and only in answers
    for one job to requests whose header `Muster-Features` names `webhooks`.
    """


@dataclass(frozen=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint that is kept: its blocks are durable in the file store of the job's facilitator."""

    at: str
    """When the validator stored it, by its clock."""
    attempt: str
    """The attempt that left it."""
    bytes: int
    """The bytes of all its files together."""
    epoch: int | None = None
    """The epoch that the program had reported last."""
    manifest: str
    """The SHA-256 of its manifest."""
    metric: float | None = None
    """The value of the metric in `CheckpointTerms::best`."""
    name: str
    """The name of the file or the folder in the folder of checkpoints."""
    ordinal: int
    """Its number in the job; the first is 1."""
    step: int | None = None
    """The step that the program had reported last."""


@dataclass(frozen=True, kw_only=True)
class KeyList:
    """`GET /api/v1/keys/`: the valid keys, newest first."""

    results: list[ApiKey]
    """The keys, newest first."""


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """The layers of an image that is being fetched."""

    done: int
    """Layers that are unpacked, or were there already."""
    total: int
    """Layers that are known of; the number grows while the fetch begins."""


@dataclass(frozen=True, kw_only=True)
class LogEvent:
    """A piece of a running job's output. Pieces may be missing: the next one's `offset` shows it."""

    at: datetime
    """The time at which the facilitator received the piece."""
    offset: int
    """Bytes of the stream before this piece."""
    stream: str
    """The output that the program wrote to: `stdout` or `stderr`."""
    text: str
    """The text of the piece; bytes that are not UTF-8 appear as U+FFFD."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """`POST /auth/login`. Fields are optional so that an error can name each missing one."""

    hotkey: str | None = None
    """The ss58 address of the user that logs in."""
    nonce: str | None = None
    """The nonce from `GET /auth/nonce`."""
    signature: str | None = None
    """The user's signature over the nonce's bytes, or over the bound text that `LoginNonce::host` describes; hex
    without `0x`.
    """


@dataclass(frozen=True, kw_only=True)
class MachineLoad:
    """The load of one executor's machine, as the executor measured it."""

    at: datetime
    """The time of the measurement by the executor's clock."""
    class_: str = field(metadata={"json": "class"})
    """The class of executor."""
    cpu_permille: int
    """Processor load, in thousandths of all processors together."""
    disk_total: int
    """Size of the disk that holds the jobs, in bytes."""
    disk_used: int
    """Space in use on that disk, in bytes."""
    gpu_memory_total: int
    """Memory of all GPUs together, in bytes."""
    gpu_memory_used: int
    """Memory in use of all GPUs together, in bytes."""
    gpu_percent: int
    """Mean load of the GPUs, in percent; 0 without one."""
    gpus: int
    """GPUs of the machine."""
    memory_total: int
    """Main memory of the machine, in bytes."""
    memory_used: int
    """Main memory in use, in bytes."""
    name: str
    """The executor's name, which its operator chose."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """The answer to a request whose success needs only words: `{"message": …}`."""

    message: str
    """A sentence that says what was done."""


@dataclass(frozen=True, kw_only=True)
class MetricPoint:
    """One value of a metric."""

    at: datetime
    """The time at which the facilitator received it."""
    step: int | None = None
    """The program's step at that time; null if the program counts none."""
    value: float
    """The number that the program reported."""


@dataclass(frozen=True, kw_only=True)
class MetricRule:
    """A rule by which a metric is found in the lines of a program's standard output."""

    name: str
    """The metric's name."""
    pattern: str
    """A regular expression, at most 500 bytes. Its first group, or the whole match without one, is the value."""


@dataclass(frozen=True, kw_only=True)
class MetricSeries:
    """The values of one metric."""

    name: str
    """The metric's name."""
    non_finite: list[NonFinitePoint] = field(default_factory=list)
    """The values that are no finite numbers, the oldest first."""
    points: list[MetricPoint]
    """The values, the oldest first."""


@dataclass(frozen=True, kw_only=True)
class MinerClaims:
    """The claims of a miner about its machines."""

    machines: list[MachineLoad]
    """The load of persistent executors."""
    offers: list[ClaimedOffer]
    """The executors that the miner offers, by class."""
    specs: list[ClaimedSpecs]
    """The specs of the machine that ran the last attempt of each class."""


@dataclass(frozen=True, kw_only=True)
class MinerReport:
    """The newest message of one validator about a miner."""

    claims: MinerClaims
    """The miner's own word, which nobody has checked."""
    proven: list[ProvenClass]
    """The facts that the validator proved by its own challenges."""
    told_at: datetime
    """The time at which the facilitator learned of it."""
    validator: str
    """The validator that told of the miner."""


@dataclass(frozen=True, kw_only=True)
class MinerResponse:
    """The result of a job. Unknown fields are kept."""

    artifacts: dict[str, str] | None = None
    """Small output files: path in the container to base64."""
    docker_process_stderr: str
    """The program's standard error."""
    docker_process_stdout: str
    """The program's standard output."""
    upload_results: dict[str, str] | None = None
    """The answers of the upload destinations, by path."""


@dataclass(frozen=True, kw_only=True)
class MinerView:
    """`GET /api/v1/miners/{miner}/`: a miner's machines."""

    miner: str
    """The miner's hotkey."""
    results: list[MinerReport]
    """One entry for each validator that takes jobs and has told of the miner within a day."""


@dataclass(frozen=True, kw_only=True)
class NonFinitePoint:
    """One value of a metric that is no finite number."""

    at: datetime
    """The time at which the facilitator received it."""
    step: int | None = None
    """The program's step at that time; null if the program counts none."""
    value: str
    """The value that the program reported."""


@dataclass(frozen=True, kw_only=True)
class Nonce:
    """`GET /auth/nonce`: the answer."""

    host: str | None = None
    """The host of the facilitator's configured address, in lower case, with its port where that is not the scheme's
    default. A client that dialled this host may sign `muster/login/1`, the host and the nonce, a line each, instead of
    the nonce alone. Absent if no address is configured.
    """
    nonce: str
    """The text that the login signs: 32 hex digits, `:`, 1 to 16 base-62 digits, `:`, a base64url signature."""


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """The outputs of a job and of the same job on the trusted miner, by digest."""

    outputs: list[ComparedOutput]
    """Every output that was compared: standard output, then each artifact by its path. Files that were uploaded
    elsewhere are not read.
    """
    reason: str
    """The reason in words."""
    verdict: str
    """The result of the comparison."""


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file that a program left among its outputs."""

    bytes: int
    """The length of the file in bytes."""
    mode: int | None = None
    """The permission bits of the file, 0 to 0o777; absent from an executor without the feature `folders`."""
    path: str
    """The path below the folder of outputs."""
    sha256: str
    """The SHA-256 of the file."""


@dataclass(frozen=True, kw_only=True)
class PrintedStream:
    """One stream that a program printed."""

    bytes: int
    """The bytes that the program printed, as far as its executor received them."""
    kept: int | None = None
    """The number of bytes from the beginning that the executor has kept; all of them if absent."""
    sha256: str | None = None
    """The SHA-256 of the first `Self::collected` bytes; absent if the executor could not read them."""
    shortfall: str | None = None
    """The reason why the file store does not have all of them; absent where it has, and where the text of the result
    holds them all.
    """
    stored: StoredStream | None = None
    """The bytes from the beginning that lie in the facilitator's file store."""


@dataclass(frozen=True, kw_only=True)
class PrintedStreams:
    """Both streams that a program printed, as bytes. An executor states it."""

    stderr: PrintedStream
    """The stream of file descriptor 2, as its executor collected it."""
    stdout: PrintedStream
    """The stream of file descriptor 1, as its executor collected it."""


@dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """The newest state of a running program, as it reported itself. Every part is absent until the program has told
    it.
    """

    done_permille: int | None = None
    """The part of the work that is done, in thousandths."""
    elapsed_s: int
    """Seconds since the program started."""
    epoch: int | None = None
    """The epoch that is under way, from 1, or the number of those that are done; the program decides."""
    epochs: int | None = None
    """The epochs that the program means to run."""
    eta_s: int | None = None
    """Seconds until the program is likely to end: its own word, or an estimate from its pace."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The newest value of each metric, at most `MAX_METRICS`."""
    non_finite: dict[str, str] = field(default_factory=dict)
    """The metrics whose newest value is no finite number. They are not among `metrics`, with which they are at most
    `MAX_METRICS`. Only peers with the feature `non-finite-metrics` get them.
    """
    step: int | None = None
    """The step that is under way, counted as the program counts."""
    steps: int | None = None
    """The steps that the program means to run."""


@dataclass(frozen=True, kw_only=True)
class ProgramStart:
    """How the program of a job is started, where its image does not decide. Each field is that of `docker run`."""

    entrypoint: str | None = None
    """The program in place of the image's entry point (`--entrypoint`), at most 4,095 bytes; the image's arguments
    are not used beside it. With an empty text there is no entry point: the first of the job's arguments is the program.
    """
    stdin: str | None = None
    """The path below `/volume` of the input whose bytes the program reads from its standard input (`--interactive`);
    standard input is empty if absent.
    """
    workdir: str | None = None
    """The working directory (`--workdir`): an absolute path of at most 4,095 bytes, which is made if it is not
    there; the image's own if absent.
    """


@dataclass(frozen=True, kw_only=True)
class ProgressEvent:
    """The progress of a stage that takes long."""

    done: int
    """The amount done: bytes, or seconds for `execution`."""
    layers: LayerCount | None = None
    """The layers of an image, with `image_pull`."""
    stage: str
    """The stage that is under way: `image_pull`, `download`, `execution` or `upload`."""
    total: int | None = None
    """The whole amount in the same unit, if it is known."""


@dataclass(frozen=True, kw_only=True)
class ProvenClass:
    """The result of the newest batch in which a miner's executors of one class were graded."""

    block: int
    """The number of the block from which the batch was drawn."""
    challenged: int
    """Executors that were challenged."""
    class_: str = field(metadata={"json": "class"})
    """The class of executor."""
    proven: int
    """Those of them that proved the hardware of the class."""


@dataclass(frozen=True, kw_only=True)
class QueueEvent:
    """The place of a job that waits for an executor."""

    ahead: int
    """Jobs of the class that start before this one."""
    class_: str = field(metadata={"json": "class"})
    """The class of executor that the job waits for."""
    estimate_s: int | None = None
    """Seconds until the job is likely to start; null if that is unknown."""
    waiting: int
    """Jobs that wait for the class, this one included."""
    why: str
    """The reason why the jobs of the class wait, in words; empty if it is unknown."""


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """The place of a job that waits for an executor, as its validator last told it."""

    class_: str = field(metadata={"json": "class"})
    """The class of executor that the job waits for."""
    estimated_start: datetime | None = None
    """The time at which the job is likely to start; null if that is unknown."""
    position: int
    """The job's position in the line of its class; the first is 1."""
    told_at: datetime
    """The time at which the facilitator learned of the place."""
    waiting: int
    """Jobs that wait for the class, this one included."""
    why: str
    """The reason why the jobs of the class wait, in words; empty if it is unknown."""


@dataclass(frozen=True, kw_only=True)
class RefundedUsage:
    """Answers of a model that are refunded to an account, of one day."""

    bundle: str
    """The digest of the bundle of evidence that convicts their miner."""
    day: int
    """Days since 1970-01-01, UTC."""
    input_tokens: int
    """The tokens of their requests together."""
    model: str
    """The model's id."""
    output_tokens: int
    """The tokens of these answers together."""
    requests: int
    """The number of refunded answers."""


@dataclass(frozen=True, kw_only=True)
class RejectionDetails:
    """The job was rejected: no executor ran it."""

    context: Any | None = None
    """Further details, free in form."""
    message: str
    """The reason in words."""
    reason: str
    """The reason of the rejection."""
    rejected_by: str
    """The role that rejected the job."""


@dataclass(frozen=True, kw_only=True)
class ReportCheat:
    """`POST /api/v1/cheated-job/`: a user reports a job that was cheated on."""

    details: Any | None = None
    """The user's evidence, free in form."""
    job_uuid: str
    """The job that was cheated on."""
    trusted_job_uuid: str
    """The same job, run on a trusted miner."""


@dataclass(frozen=True, kw_only=True)
class ReportedState:
    """The newest state of a job's program, as it reported itself."""

    at: datetime
    """The time at which the facilitator received the report."""
    report: ProgramReport
    """The program's own words about its state."""


@dataclass(frozen=True, kw_only=True)
class ResumeSource:
    """A checkpoint of another job."""

    job: str
    """The job that left it."""
    ordinal: int
    """Its number in that job."""


@dataclass(frozen=True, kw_only=True)
class SetWebhook:
    """`PUT /api/v1/webhook/`: sets the account's webhook, and draws its secret if it has none."""

    new_secret: bool | None = None
    """Whether a new secret replaces the present one."""
    url: str | None = None
    """The URL that is told of the end of every job that names no URL of its own; null for none."""


@dataclass(frozen=True, kw_only=True)
class SingleFileVolume:
    """`single_file`: one file to fetch."""

    relative_path: str
    """The path of the file under `/volume`."""
    url: str
    """The URL to fetch the file from."""


@dataclass(frozen=True, kw_only=True)
class StatusEntry:
    """One status of a job."""

    created_at: datetime
    """The time at which the facilitator learned of the status."""
    metadata: StatusMetadata | None = None
    """Details of the status, without null fields."""
    status: str
    """The status that the job reached."""


@dataclass(frozen=True, kw_only=True)
class StatusMetadata:
    """Details of a status. Unknown fields are kept, as ComputeHorde's model keeps them."""

    horde_failure_details: HordeFailureDetails | None = None
    """The subnet's failure; with `horde_failed`."""
    job_failure_details: FailureDetails | None = None
    """The job's own failure; with `failed`."""
    job_rejection_details: RejectionDetails | None = None
    """The rejection; with `rejected`."""
    miner_response: MinerResponse | None = None
    """The result; with `completed`."""
    muster: dict[str, Any] | None = None
    """Muster's own additions."""
    streaming_details: StreamingAddress | None = None
    """The address of the job; with `streaming_ready`."""


@dataclass(frozen=True, kw_only=True)
class StoredStream:
    """The part of a stream that lies in the file store, in blocks of `BLOCK_BYTES`(Self::BLOCK_BYTES)."""

    blocks: str
    """The SHA-256 of the block that lists the others: the 32 bytes of the SHA-256 of each block, in order."""
    bytes: int
    """Its length in bytes, from the beginning of the stream."""


@dataclass(frozen=True, kw_only=True)
class StreamingAddress:
    """The address at which a streaming job accepts requests."""

    streaming_server_address: str | None = None
    """The server's host name or IP address."""
    streaming_server_cert: str | None = None
    """The server's certificate, PEM."""
    streaming_server_port: int | None = None
    """The server's TCP port."""


@dataclass(frozen=True, kw_only=True)
class StreamingDetails:
    """The client that may call a streaming job, and the address of the job's executor."""

    executor_ip: str | None = None
    """The executor's address as its miner sees it."""
    public_key: str
    """The client's certificate, PEM."""


@dataclass(frozen=True, kw_only=True)
class SubnetCapacity:
    """`GET /api/v1/subnet/`: what the miners of each validator offer now."""

    results: list[ValidatorCapacity]
    """One entry for each validator that takes jobs and has told its capacity lately."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """The answer to a login."""

    token: str
    """A JWT for the header `Authorization: Bearer`."""


@dataclass(frozen=True, kw_only=True)
class UsageList:
    """An account's use of models."""

    refunded: list[RefundedUsage]
    """The answers whose miner was convicted: one entry a day, model and bundle, the newest days first."""
    results: list[DayUsage]
    """One entry a day and model, the newest days first."""


@dataclass(frozen=True, kw_only=True)
class ValidatorCapacity:
    """The offers of one validator's miners, as the validator last told them."""

    classes: list[ClassOffer]
    """The classes that are offered or waited for."""
    limits: JobLimits
    """The limits of a job."""
    told_at: datetime
    """The time at which the facilitator learned of the offers."""
    validator: str
    """The validator to name in `target_validator_hotkey`."""


@dataclass(frozen=True, kw_only=True)
class WebLink:
    """`POST /api/v1/web-links/`: a link that signs a browser in."""

    expires_at: datetime
    """The time at which the link ends."""
    url: str
    """The address to open in a browser. It works once."""


@dataclass(frozen=True, kw_only=True)
class WebhookDelivery:
    """The message about a job's end."""

    attempts: int
    """How often the message was sent."""
    changed_at: datetime
    """The time of the last change."""
    error: str | None = None
    """The reason for which the last attempt failed."""
    next_at: datetime | None = None
    """When a due message is sent next."""
    state: str
    """Where the message stands: `waiting`, `due`, `delivered` or `failed`."""
    url: str
    """The URL that gets the message."""


@dataclass(frozen=True, kw_only=True)
class ZipUrlVolume:
    """`zip_url`: a zip archive to fetch and unpack."""

    contents: str
    """The URL of the zip archive (the wire's name for it is `contents`)."""
    relative_path: str | None = None
    """The folder under `/volume` to unpack into; `/volume` itself if absent."""

# Made from _async/ by generate.py: change that.
"""A user of a facilitator: jobs, files, keys, models and their proofs."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from httpx_sse import EventSource

from .. import _requests
from .._decode import decode
from .._requests import JobSpec
from .._waiting import call_here, sleep_sync
from ..errors import (
    Damaged,
    JobFailed,
    MusterError,
    NotFound,
    NotProven,
    TooLate,
    Unreachable,
    Unreadable,
    Unwell,
)
from ..events import Event, PrintedPart, read_event
from ..models import (
    AccountView,
    AccountWebhookView,
    ApiKey,
    CreateFile,
    CreateKey,
    FilePage,
    FileView,
    JobCheck,
    JobCheckpointsView,
    JobMetricsView,
    JobPage,
    JobView,
    KeptCheckpoint,
    KeyList,
    LogEvent,
    Message,
    PrintedStream,
    ReportCheat,
    SetWebhook,
    StatusEntry,
    SubnetCapacity,
    UsageList,
)
from ..proofs import Exchange, ProofRecord
from . import transfers
from .facilitator import SUBMIT_TRIES, TRIES, Facilitator

#: Between two looks at a job, in seconds.
_LOOK = 0.2
#: How long a facilitator that a job is followed at may be away, in seconds.
_OUTAGE = 600
#: How often a proof is looked for that is not there yet, and the seconds between.
_PROOF_LOOKS, _PROOF_PAUSE = 20, 0.25
_STREAMS = ("stdout", "stderr")


def _segment(name: object) -> str:
    """An id as one part of a path."""
    return quote(str(name), safe="")


def _id(job: str | JobView) -> str:
    return _segment(job.uuid if isinstance(job, JobView) else job)


class Client:
    """A facilitator, in the name of an API key (`muster keys new NAME` makes one)."""

    def __init__(
        self,
        facilitator: str | None = None,
        api_key: str | None = None,
        *,
        http: httpx.Client | None = None,
    ) -> None:
        """Sends nothing yet. An argument that is left out comes from `MUSTER_FACILITATOR` or `MUSTER_API_KEY`.

        `http` is a client of httpx with settings of your own, such as a proxy or certificates, which stays open.
        """
        facilitator = facilitator or os.environ.get("MUSTER_FACILITATOR", "")
        api_key = api_key or os.environ.get("MUSTER_API_KEY", "")
        if not facilitator or not api_key:
            raise MusterError(
                "name the facilitator and an API key, or set MUSTER_FACILITATOR and MUSTER_API_KEY; "
                "`muster keys new NAME` prints both"
            )
        self._facilitator = Facilitator(facilitator, api_key, http)

    def __enter__(self) -> Client:
        """The client itself."""
        return self

    def __exit__(self, *reason: object) -> None:
        """Closes the connections."""
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._facilitator.close()

    @property
    def api_key(self) -> str:
        """The key, as clients of OpenAI's interface want it."""
        return self._facilitator.api_key

    @property
    def openai_url(self) -> str:
        """The base URL for clients of OpenAI's interface."""
        return f"{self._facilitator.base}/v1"

    # Jobs

    def submit(self, spec: JobSpec | None = None, *, idempotency_key: str | None = None, **parts: Any) -> JobView:
        """Submits a job, after its inputs are in the store: a `JobSpec`, or its fields as arguments.

        The request is repeated where its answer is lost, and makes one job. A call that is repeated makes another one,
        unless both have the same `idempotency_key`.
        """
        if spec is not None and parts:
            raise MusterError(f"give a JobSpec or its fields, and not both: {', '.join(parts)}")
        spec = spec or JobSpec(**parts)
        self._facilitator.require(_requests.needed_features(spec))
        inputs = call_here(_requests.read_inputs, spec.inputs, spec.download_timeout)
        validator = spec.validator or _requests.choose_validator(self.subnet(), spec.executor_class)
        uploads = [self._place(output) for output in spec.outputs]
        for one in inputs.stored:
            inputs.volumes.append(self._store_input(one))
        body = _requests.request_of(spec, validator, inputs, [one for some in uploads for one in some])
        headers = {"idempotency-key": idempotency_key or str(uuid.uuid4())}
        return self._facilitator.post(JobView, "/api/v1/job-docker/", body, headers=headers, tries=SUBMIT_TRIES)

    def run(self, spec: JobSpec | None = None, *, check: bool = True, **parts: Any) -> JobView:
        """Submits a job and waits for its end. With `check` a job that fails raises `JobFailed`."""
        return self.wait(self.submit(spec, **parts), check=check)

    def wait(self, job: str | JobView, *, timeout: float | None = None, check: bool = False) -> JobView:
        """Waits for a job's end, for `timeout` seconds at most; then `TooLate` is raised, and the job runs on."""
        begun, lost = time.monotonic(), None
        while True:
            try:
                view, lost = self.job(job), None
                if view.has_ended:
                    break
            except (Unreachable, Unwell):
                lost = lost or time.monotonic()
                if time.monotonic() - lost > _OUTAGE:
                    raise
            waited = time.monotonic() - begun
            if timeout is not None and waited >= timeout:
                raise TooLate(f"job {_id(job)} did not end in {timeout:.0f} s; it runs on")
            # A short job is seen to end soon, a long one is not asked after ten times a second.
            pause = min(max(_LOOK, waited / 100), 5)
            sleep_sync(pause if timeout is None else min(pause, max(timeout - waited, 0)))
        if check and not view.succeeded:
            raise JobFailed(view)
        return view

    def job(self, job: str | JobView) -> JobView:
        """One job with its history. Raises `NotFound` if the account has none of that id."""
        return self._facilitator.get(JobView, f"/api/v1/jobs/{_id(job)}/")

    def jobs(self, *, status: str | None = None, name: str | None = None) -> Generator[JobView]:
        """The account's jobs, newest first: those of a status, or of a name, or all."""
        page = 1
        while True:
            query = {"page": page, "page_size": 50, "status": status, "tag": name}
            found = self._facilitator.get(JobPage, "/api/v1/jobs/", **query)
            for view in found.results:
                yield view
            if found.next is None:
                return
            page += 1

    def cancel(self, job: str | JobView) -> JobView:
        """Asks for a job to be stopped. It has ended when its status shows it."""
        answer = self._facilitator.send("POST", f"/api/v1/jobs/{_id(job)}/cancel/", tries=TRIES)
        return self.job(job) if answer is None else decode(JobView, answer)

    def events(self, job: str | JobView) -> Generator[Event]:
        """News of a job until its end: each status once, and what is printed and reported meanwhile.

        A facilitator that restarts meanwhile is waited for. Pieces of output may be missing; `logs` has them all.
        """
        seen: set[tuple[str, Any]] = set()
        last_id, lost = "", None
        while True:
            try:
                with closing(self._stream(_id(job), last_id)) as stream:
                    for event_id, event in stream:
                        last_id = event_id or last_id
                        if isinstance(event, StatusEntry):
                            key = (event.status, event.created_at)
                            if key in seen:
                                continue
                            seen.add(key)
                        yield event
            except (Unreachable, Unwell):
                pass
            try:
                # Also after a stream: what it has not told is told now.
                view, lost = self.job(job), None
            except (Unreachable, Unwell):
                lost = lost or time.monotonic()
                if time.monotonic() - lost > _OUTAGE:
                    raise
                continue
            for entry in view.status_history:
                if (entry.status, entry.created_at) not in seen:
                    seen.add((entry.status, entry.created_at))
                    yield entry
            if view.has_ended:
                return
            sleep_sync(_LOOK)

    def _stream(self, job: str, last_id: str) -> Generator[tuple[str, Event]]:
        """The events of one connection, with their ids."""
        url = f"{self._facilitator.base}/api/v1/jobs/{job}/events/"
        headers = {"accept": "text/event-stream"}
        if last_id:
            headers["last-event-id"] = last_id
        with self._facilitator.stream(url, headers, with_key=True) as response:
            if response.status_code == 204:
                return
            for sse in EventSource(response).iter_sse():
                event = read_event(sse.event, sse.data)
                if event is not None:
                    yield sse.id, event

    def logs(self, job: str | JobView) -> Generator[LogEvent]:
        """The output of a job's program, whole and in order, while it runs and to the last byte.

        A piece that the live stream lost, and output that is no text, come at the job's end.
        """
        live = {name: PrintedPart() for name in _STREAMS}
        with closing(self.events(job)) as events:
            for event in events:
                if isinstance(event, LogEvent) and event.stream in live and live[event.stream].take(event):
                    yield event
        view = self.job(job)
        for name in _STREAMS:
            part = live[name]
            rest = self.output(view, name, offset=part.end)
            if rest:
                text = rest.decode("utf-8", "replace")
                yield LogEvent(stream=name, text=text, at=view.last_update, offset=part.end)

    def output(self, job: str | JobView, stream: str = "stdout", *, offset: int = 0) -> bytes:
        """The bytes that an ended job printed to `stdout` or `stderr` from `offset` on, as far as they are kept.

        A connection that breaks is opened again where it broke. Raises `Damaged` if the bytes are not the printed ones.
        """
        if stream not in _STREAMS:
            raise MusterError(f"a job has the streams stdout and stderr, and no {stream!r}")
        view = job if isinstance(job, JobView) and job.has_ended else self.job(job)
        printed = view.completion.printed if view.completion else None
        kept: PrintedStream | None = getattr(printed, stream, None)
        if kept is None or kept.stored is None:
            text: str = getattr(view, stream)
            return text.encode()[offset:]
        url = f"{self._facilitator.base}/api/v1/jobs/{_id(view)}/output/{stream}/"
        found = transfers.read_output(self._facilitator, url, offset, kept.stored.bytes)
        covered = kept.bytes if kept.kept is None else kept.kept
        is_whole = offset == 0 and kept.sha256 is not None and len(found) >= covered
        if is_whole and hashlib.sha256(found[:covered]).hexdigest() != str(kept.sha256).removeprefix("sha256:"):
            raise Damaged(f"the output of job {view.uuid} is not the one that its executor reported")
        return found

    def metrics(self, job: str | JobView) -> JobMetricsView:
        """The newest state that a job's program reported, and the series of its metrics."""
        return self._facilitator.get(JobMetricsView, f"/api/v1/jobs/{_id(job)}/metrics/")

    def checkpoints(self, job: str | JobView) -> list[KeptCheckpoint]:
        """The checkpoints of a job that are kept, oldest first, while it runs and after."""
        return (self._kept(job)).checkpoints

    def _kept(self, job: str | JobView) -> JobCheckpointsView:
        return self._facilitator.get(JobCheckpointsView, f"/api/v1/jobs/{_id(job)}/checkpoints/")

    def fetch_checkpoint(
        self, job: str | JobView, into: str | os.PathLike[str] = ".", *, ordinal: int | None = None
    ) -> Path:
        """Fetches the newest checkpoint, or the one of this number, below the folder `into`; returns its path."""
        view = self._kept(job)
        found = [one for one in view.checkpoints if ordinal is None or one.ordinal == ordinal]
        if not found:
            which = "no checkpoint" if ordinal is None else f"no checkpoint {ordinal}"
            raise MusterError(f"job {_id(job)} has {which} that is kept")
        return transfers.restore(self._facilitator, view.blocks, found[-1], Path(into))

    def fetch_outputs(
        self, job: str | JobView, into: str | os.PathLike[str] = ".", *, replace: bool = False
    ) -> list[Path]:
        """Fetches the outputs that an ended job left at the paths of its `outputs`, to the same paths below `into`.

        Files that are there already are replaced only with `replace`, and a folder never is: then `MusterError` says
        so.
        """
        view, folder, fetched = self.job(job), Path(into), []
        for upload in view.uploads:
            file_id = _requests.file_of(str(upload.get("url", "")))
            if file_id is None:
                continue
            try:
                file = self.file(file_id)
            except NotFound:
                continue
            if not file.complete:
                continue
            path, kind = _requests.output_path(str(upload.get("relative_path", ""))), upload.get("kind")
            if kind == "matching" or path == _requests.WHOLE:
                pattern = path if kind == "matching" else None
                fetched += transfers.fetch_files(self._facilitator, file, folder, pattern, replace)
            elif kind == "folder":
                fetched.append(transfers.fetch_folder(self._facilitator, file, folder / path))
            else:
                transfers.check_place(folder / path, replace)
                fetched.append(transfers.download(self._facilitator, file, folder / path))
        return fetched

    def check(self, job: str | JobView) -> JobCheck:
        """The validator's finding by running a job again. Raises `NotFound` until it has told."""
        return self._facilitator.get(JobCheck, f"/api/v1/jobs/{_id(job)}/check/")

    def report_cheat(self, job: str | JobView, trusted_job: str | JobView) -> Message:
        """Reports that a miner cheated on a job; the evidence is the same job on a trusted miner."""
        report = ReportCheat(job_uuid=_id(job), trusted_job_uuid=_id(trusted_job))
        return self._facilitator.post(Message, "/api/v1/cheated-job/", report)

    def _place(self, output: str) -> list[dict[str, Any]]:
        """The uploads of an output: one for each kind that it may be of."""
        path = _requests.output_path(output)
        uploads = []
        for kind in _requests.kinds_of(output):
            wanted = CreateFile(name=_requests.stored_name(path, kind))
            file = self._facilitator.post(FileView, "/api/v1/files/", wanted)
            uploads.append(_requests.upload_of(path, kind, file.upload_url))
        return uploads

    def _store_input(self, one: _requests.StoredInput) -> dict[str, Any]:
        """Puts an input into the store, a folder and a program as an archive; returns its volume."""
        name = one.path.rsplit("/", 1)[-1]
        if isinstance(one.source, Path) and one.source.is_file() and not os.access(one.source, os.X_OK):
            file = transfers.upload(self._facilitator, one.source, name)
            return {"volume_type": "single_file", "url": file.download_url, "relative_path": one.path}
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "input.zip"
            if one.is_folder and isinstance(one.source, Path):
                under, members = one.path, call_here(_requests.list_files, one.source)
                call_here(_requests.pack, members, archive)
            else:
                under = one.path.rpartition("/")[0]
                call_here(_requests.pack, [(name, one.source)], archive)
            file = transfers.upload(self._facilitator, archive, f"{name}.zip")
        return {"volume_type": "zip_url", "contents": file.download_url, "relative_path": under or None}

    # Files

    def upload(self, source: str | os.PathLike[str], *, name: str | None = None) -> FileView:
        """Sends a file of this machine to the store. An upload that broke off goes on where it broke off."""
        path = Path(source)
        return transfers.upload(self._facilitator, path, name or path.name)

    def download(self, file: str | FileView, into: str | os.PathLike[str]) -> Path:
        """Fetches a file of the store to the path `into`, and checks its sha256."""
        found = self.file(file) if isinstance(file, str) else file
        return transfers.download(self._facilitator, found, Path(into))

    def file(self, file_id: str) -> FileView:
        """One file, with fresh URLs."""
        return self._facilitator.get(FileView, f"/api/v1/files/{_segment(file_id)}/")

    def files(self) -> Generator[FileView]:
        """The account's files, newest first."""
        page = 1
        while True:
            found = self._facilitator.get(FilePage, "/api/v1/files/", page=page, page_size=100)
            for file in found.results:
                yield file
            if found.next is None:
                return
            page += 1

    def delete_file(self, file: str | FileView) -> None:
        """Deletes a file. Its URLs stop working at once."""
        file_id = file.id if isinstance(file, FileView) else file
        self._facilitator.delete(f"/api/v1/files/{_segment(file_id)}/")

    # The subnet and the account

    def subnet(self) -> SubnetCapacity:
        """The offers of the subnet's miners now, by validator and class."""
        return self._facilitator.get(SubnetCapacity, "/api/v1/subnet/")

    def account(self) -> AccountView:
        """The numbers of the account's jobs, files and keys."""
        return self._facilitator.get(AccountView, "/api/v1/account/")

    def usage(self) -> UsageList:
        """The tokens and requests that the account has used, by day and model."""
        return self._facilitator.get(UsageList, "/api/v1/usage/")

    def api_keys(self) -> list[ApiKey]:
        """The API keys of the account, without the keys themselves."""
        return (self._facilitator.get(KeyList, "/api/v1/keys/")).results

    def create_api_key(self, name: str, *, rights: list[str] | None = None, days: int | None = None) -> ApiKey:
        """Makes an API key, which only this answer contains. `days` is how long it holds."""
        return self._facilitator.post(ApiKey, "/api/v1/keys/", CreateKey(name=name, rights=rights, days=days))

    def revoke_api_key(self, key: str | ApiKey) -> None:
        """Revokes an API key at once, and all keys that it has made."""
        key_id = key.id if isinstance(key, ApiKey) else key
        self._facilitator.send("DELETE", f"/api/v1/keys/{quote(key_id, safe='')}/", tries=TRIES)

    def webhook(self) -> AccountWebhookView:
        """The account's webhook, without its secret. Raises `NotFound` if there is none."""
        return self._facilitator.get(AccountWebhookView, "/api/v1/webhook/")

    def set_webhook(self, url: str | None, *, new_secret: bool = False) -> AccountWebhookView:
        """Sets the URL that is told of the ends of all jobs; with `None`, of those that name one themselves.

        The answer has the secret only if it is new.
        """
        body = SetWebhook(url=url, new_secret=new_secret)
        return decode(AccountWebhookView, self._facilitator.send("PUT", "/api/v1/webhook/", body=body))

    def remove_webhook(self) -> None:
        """Removes the account's webhook and its secret."""
        self._facilitator.delete("/api/v1/webhook/")

    # Models

    def models(self) -> list[dict[str, Any]]:
        """The models that can be asked, and what is known of each."""
        listed = self._facilitator.send("GET", "/v1/models", tries=TRIES)
        if not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
            raise Unreadable("the list of models has no data")
        return list(listed["data"])

    def prove(self, exchange: Exchange) -> ProofRecord:
        """Fetches the proof of an answer that a transport of `muster_client.proofs` has seen, and checks it.

        Raises `NotProven` with the first defect.
        """
        words, looks = exchange.transcript(urlsplit(self._facilitator.base).path), _PROOF_LOOKS
        while True:
            try:
                view = self._facilitator.send("GET", f"/v1/proofs/{exchange.id}", tries=TRIES)
                break
            except NotFound as missing:
                # The gateway stores an answer a moment after its last byte.
                looks -= 1
                if looks == 0:
                    raise NotProven(f"the facilitator has no proof of the answer {exchange.id}") from missing
            sleep_sync(_PROOF_PAUSE)
        record = ProofRecord({**view, "words": words})
        call_here(record.verify)
        return record

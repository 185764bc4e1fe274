#!/usr/bin/env python3
"""Calls every public method of the official ComputeHorde SDK and says what came of it as JSON.

    sdk_every_method.py FACILITATOR_URL VALIDATOR_SS58 KEY_URI

The validator behind the facilitator does with a job what its first argument says: `complete`, `fail`, `stream`, or nothing for `hold`.
Tokens of the facilitator must live for seconds only: one expires on the way.
"""

import asyncio
import datetime
import json
import os
import sys
import time

import bittensor_wallet
from compute_horde_sdk._internal import sdk as internals
from compute_horde_sdk.v1 import (
    ComputeHordeClient,
    ComputeHordeError,
    ComputeHordeJobSpec,
    ComputeHordeNotFoundError,
    ExecutorClass,
    HTTPInputVolume,
    HTTPOutputVolume,
    HuggingfaceInputVolume,
    InlineInputVolume,
)

PAGES = 23
PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))

# The SDK looks every three seconds; nothing here depends on how often.
internals.JOB_REFRESH_INTERVAL = datetime.timedelta(seconds=0.05)


def spec(what: str, **more) -> ComputeHordeJobSpec:
    return ComputeHordeJobSpec(
        executor_class=ExecutorClass.always_on__test,
        job_namespace="SN0.muster",
        docker_image="alpine:latest",
        args=[what],
        download_time_limit_sec=5,
        execution_time_limit_sec=5,
        upload_time_limit_sec=5,
        **more,
    )


async def refused(call, kind) -> str:
    try:
        await call
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


async def run(url: str, validator: str, uri: str) -> dict:
    client = ComputeHordeClient(
        hotkey=bittensor_wallet.Keypair.create_from_uri(uri),
        compute_horde_validator_hotkey=validator,
        facilitator_url=url,
    )
    await client.authenticate()

    # Inputs and outputs of each kind, the trusted miner's flag, artifacts_dir unset.
    volumes = {
        "/volume/inline": InlineInputVolume.from_file_contents("a.txt", b"hello"),
        "/volume/hub": HuggingfaceInputVolume(repo_id="a/b", revision="main", allow_patterns=["*.json"]),
        "/volume/file.bin": HTTPInputVolume(url="https://example.org/file.bin"),
    }
    uploads = {
        "/output/put.bin": HTTPOutputVolume(http_method="PUT", url="https://example.org/put", signed_headers={"B": "1", "A": "2"}),
        "/output/post.bin": HTTPOutputVolume(http_method="POST", url="https://example.org/post", form_fields={"z": "1", "a": "2"}),
    }
    full = spec("complete", env={"B": "1", "A": "ż"}, input_volumes=volumes, output_volumes=uploads)
    job = await client.create_job(full, on_trusted_miner=True)
    assert job.status_history, "a job has a status from the start"
    seen = []
    await job.wait(timeout=PATIENCE, status_callback=lambda _, entry: seen.append(str(entry.status)))
    assert job.result.stdout == "ż\n" and job.result.artifacts == {"/artifacts/x": b"hi"}, job.result
    assert job.result.upload_results, "what the destinations answered"
    await job.refresh_from_facilitator()
    same = await client.get_job(job.uuid)
    assert same.result == job.result and same.error is None
    unknown = "11111111-2222-4333-8444-555555555555"
    await refused(client.get_job(unknown), ComputeHordeNotFoundError)

    streaming = await client.create_job(spec("stream", streaming=True))
    await streaming.wait_for_streaming(timeout=PATIENCE)
    address = [streaming.streaming_server_address, streaming.streaming_server_port, streaming.streaming_server_cert]

    attempts = []
    failed = await client.run_until_complete(
        spec("fail"), job_attempt_callback=attempts.append, timeout=PATIENCE, max_attempts=2
    )
    assert failed.status.is_failed() and len(attempts) == 2, failed.status
    done = await client.run_until_complete(spec("complete", artifacts_dir="/artifacts"), timeout=PATIENCE, max_attempts=1)
    assert done.status.is_successful()

    await client.report_cheated_job(job.uuid, done.uuid, details={"why": "ż", "n": [1, 2.5, None]})
    await client.report_cheated_job(done.uuid, job.uuid)
    again = await refused(client.report_cheated_job(job.uuid, done.uuid), ComputeHordeError)

    held = [(await client.create_job(spec("hold"))).uuid for _ in range(PAGES)]
    listed = [entry.uuid async for entry in client.iter_jobs()]
    assert listed[:PAGES] == held[::-1], "newest first, each once, over several pages"
    assert len(listed) == len(set(listed)) == PAGES + 5
    page = await client.get_jobs(page=2, page_size=7)
    assert [entry.uuid for entry in page] == listed[7:14]
    await refused(client.get_jobs(page=99), ComputeHordeNotFoundError)

    # The token ends meanwhile; the SDK logs in again by itself.
    first, end = client._token, time.monotonic() + PATIENCE
    while client._token == first:
        assert time.monotonic() < end, "the token never expired"
        await client.get_jobs(page_size=1)

    return {
        "uuid": job.uuid,
        "seen": seen,
        "streaming": address,
        "error": type(failed.error).__name__,
        "again": again,
        "listed": len(listed),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(*sys.argv[1:4]))))

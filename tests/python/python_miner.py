#!/usr/bin/env python3
"""A miner made of ComputeHorde's own message classes, for one executor: offers it one job and sends it the rest.

    python_miner.py TOKEN IMAGE

Needs compute-horde 0.0.27 and its websockets. Prints the port that it listens on, then, once the executor has left, one JSON object
with everything the executor said, parsed by ComputeHorde's classes: {"path": "...", "frames": [{...}, ...]}. The frames it sends are those
that a Python miner forwards: the job's receipt with its time cut to milliseconds, no header of Muster's.
"""

import asyncio
import datetime
import json
import sys

import bittensor
import websockets
from compute_horde.protocol_messages import (
    ExecutorToMinerMessage,
    V0InitialJobRequest,
    V0JobRequest,
)
from compute_horde.receipts.schemas import JobStartedReceiptPayload
from compute_horde_core.executor_class import ExecutorClass
from pydantic import TypeAdapter

TOKEN, IMAGE = sys.argv[1:3]
JOB = TOKEN[:36]
V, M = (bittensor.Keypair.create_from_uri(f"//{name}") for name in ("Validator", "Miner"))


def offer() -> V0InitialJobRequest:
    payload = JobStartedReceiptPayload(
        job_uuid=JOB,
        miner_hotkey=M.ss58_address,
        validator_hotkey=V.ss58_address,
        timestamp=datetime.datetime.now(datetime.UTC),
        executor_class=ExecutorClass.always_on__test,
        is_organic=True,
        ttl=30,
    )
    signature = "0x" + V.sign(payload.blob_for_signing()).hex()
    # Django's JSON field keeps milliseconds; the signature is over microseconds.
    cut = payload.timestamp.replace(microsecond=payload.timestamp.microsecond // 1000 * 1000)
    return V0InitialJobRequest(
        job_uuid=JOB,
        executor_class=ExecutorClass.always_on__test,
        docker_image=IMAGE,
        volume=None,
        job_started_receipt_payload=payload.model_copy(update={"timestamp": cut}),
        job_started_receipt_signature=signature,
        timeout_seconds=300,
        executor_timing=V0InitialJobRequest.ExecutorTimingDetails(
            allowed_leeway=10, download_time_limit=20, execution_time_limit=30, upload_time_limit=20, streaming_start_time_limit=1
        ),
        streaming_details=None,
    )


def job() -> V0JobRequest:
    return V0JobRequest(
        job_uuid=JOB,
        executor_class=ExecutorClass.always_on__test,
        docker_image=IMAGE,
        docker_run_options_preset="none",
        docker_run_cmd=["-c", "echo driven; echo kept > /artifacts/kept.txt"],
        env={"A": "b"},
        volume=None,
        output_upload=None,
        artifacts_dir="/artifacts",
    )


async def main() -> None:
    adapter, frames, over = TypeAdapter(ExecutorToMinerMessage), [], asyncio.Event()
    report = {}

    async def serve(socket: websockets.ServerConnection) -> None:
        report["path"] = socket.request.path
        await socket.send(offer().model_dump_json())
        async for frame in socket:
            message = adapter.validate_json(frame)
            frames.append(json.loads(frame))
            if message.message_type == "V0ExecutorReadyRequest":
                await socket.send(job().model_dump_json())
        over.set()

    async with websockets.serve(serve, "127.0.0.1", 0, max_size=50 * 2**20) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.wait_for(over.wait(), 120)
    print(json.dumps(report | {"frames": frames}))


if __name__ == "__main__":
    asyncio.run(main())

#!/usr/bin/env python3
"""Runs one job through the official ComputeHorde SDK whose inputs come from everywhere and whose outputs are uploaded.

    sdk_moves_data.py FACILITATOR_URL VALIDATOR_SS58 WALLET_ROOT WALLET_NAME WALLET_HOTKEY IMAGE PLACES

PLACES is what `s3_and_hub.py` printed. Prints {"status": ..., "stdout": ..., "results": {path: {"headers": ..., "body": ...}}}.
"""

import asyncio
import json
import os
import sys

import bittensor_wallet
from compute_horde_sdk.v1 import (
    ComputeHordeClient,
    ComputeHordeJobSpec,
    ExecutorClass,
    HTTPInputVolume,
    HTTPOutputVolume,
    HuggingfaceInputVolume,
    InlineInputVolume,
)

PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))


async def run(url, validator, wallet_root, wallet_name, wallet_hotkey, image, places):
    wallet = bittensor_wallet.Wallet(name=wallet_name, hotkey=wallet_hotkey, path=wallet_root)
    client = ComputeHordeClient(
        hotkey=wallet.hotkey, compute_horde_validator_hotkey=validator, facilitator_url=url
    )
    places = json.loads(places)
    spec = ComputeHordeJobSpec(
        executor_class=ExecutorClass.always_on__test,
        job_namespace="SN0.muster",
        docker_image=image,
        args=["words"],
        artifacts_dir="/artifacts",
        input_volumes={
            "/volume/inline": InlineInputVolume.from_file_contents("inline.txt", b"inline inline"),
            "/volume/fetched.txt": HTTPInputVolume(url=places["get"]),
            "/volume/hub": HuggingfaceInputVolume(repo_id=places["repository"], allow_patterns="sub/*"),
        },
        output_volumes={
            "/output/words.json": HTTPOutputVolume(http_method="PUT", url=places["put"]),
            "/output/stdout.txt": HTTPOutputVolume(
                http_method="POST", url=places["post"]["url"], form_fields=places["post"]["fields"]
            ),
        },
        download_time_limit_sec=60,
        execution_time_limit_sec=60,
        upload_time_limit_sec=60,
    )
    job = await client.run_until_complete(spec, timeout=PATIENCE, max_attempts=1)
    result = job.result
    print(
        json.dumps(
            {
                "status": str(job.status),
                "stdout": result.stdout if result else "",
                "results": {
                    path: {"headers": dict(answer.headers), "body": answer.body}
                    for path, answer in (result.upload_results if result else {}).items()
                },
                "error": repr(job.error) if job.error else None,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))

#!/usr/bin/env python3
"""Runs one streaming job through the official ComputeHorde SDK, talks to it directly, ends it, and prints what came of it.

    sdk_streams.py FACILITATOR_URL VALIDATOR_SS58 WALLET_ROOT WALLET_NAME WALLET_HOTKEY IMAGE [-- ARG...]

The job serves HTTP on port 8000. The SDK makes the client's certificate; the server's is the one that the job's status names, and
no other is trusted. Exit code 0 only for a completed job:

    {"uuid": "...", "status": "completed", "health": 200, "lines": ["data: ...", ...], "history": [...]}
"""

import argparse
import asyncio
import json
import os
import ssl
import sys
import tempfile
from pathlib import Path

import bittensor_wallet
import httpx
from compute_horde_sdk.v1 import ComputeHordeClient, ComputeHordeJobSpec, ExecutorClass
from cryptography.hazmat.primitives import serialization

PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("url", "validator", "wallet_root", "wallet_name", "wallet_hotkey", "image"):
        parser.add_argument(name)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    namespace = parser.parse_args(sys.argv[1:at])
    namespace.args = sys.argv[at + 1 :]
    return namespace


def trust(job, folder: Path) -> ssl.SSLContext:
    """The job's server, shown the certificate that the SDK made for this job."""
    context = ssl.create_default_context(cadata=job.streaming_server_cert)
    pem = folder / "client.pem"
    key = job.streaming_private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(key + job.streaming_public_cert.public_bytes(serialization.Encoding.PEM))
    context.load_cert_chain(pem)
    return context


async def stranger_is_refused(job, base: str) -> bool:
    """Whether somebody without the user's certificate is turned away while the job runs."""
    strangers = ssl.create_default_context(cadata=job.streaming_server_cert)
    try:
        async with httpx.AsyncClient(verify=strangers, base_url=base, timeout=PATIENCE) as stranger:
            await stranger.get("/health")
    # TLS 1.3 refuses a certificate after the handshake, at the first read, and httpx passes that on as it is.
    except (httpx.HTTPError, ssl.SSLError):
        return True
    return False


async def run(args: argparse.Namespace) -> int:
    wallet = bittensor_wallet.Wallet(name=args.wallet_name, hotkey=args.wallet_hotkey, path=args.wallet_root)
    client = ComputeHordeClient(
        hotkey=wallet.hotkey,
        compute_horde_validator_hotkey=args.validator,
        facilitator_url=args.url,
    )
    spec = ComputeHordeJobSpec(
        executor_class=ExecutorClass.always_on__test,
        job_namespace="SN0.muster",
        docker_image=args.image,
        args=args.args,
        artifacts_dir="/artifacts",
        streaming=True,
        streaming_start_time_limit_sec=30,
        download_time_limit_sec=30,
        execution_time_limit_sec=60,
        upload_time_limit_sec=30,
    )
    job = await client.create_job(spec)
    await job.wait_for_streaming(timeout=PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        base = f"https://{job.streaming_server_address}:{job.streaming_server_port}"
        async with httpx.AsyncClient(verify=trust(job, Path(folder)), base_url=base, timeout=PATIENCE) as direct:
            health = (await direct.get("/health")).status_code
            lines = []
            async with direct.stream("POST", "/v1/chat/completions", json={"messages": []}) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)
            refused = await stranger_is_refused(job, base)
            await direct.post("/terminate")
    await job.wait(timeout=PATIENCE)
    report = {
        "uuid": job.uuid,
        "status": str(job.status),
        "health": health,
        "lines": lines,
        "stranger_refused": refused,
        "history": [str(entry.status) for entry in job.status_history],
        "error": repr(job.error) if job.error else None,
    }
    print(json.dumps(report))
    return 0 if job.status.is_successful() else 1


def main() -> int:
    args = arguments()
    try:
        return asyncio.run(run(args))
    except Exception as error:  # noqa: BLE001 - whatever the SDK raises is what the caller is to read
        print(f"the SDK gave up: {type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

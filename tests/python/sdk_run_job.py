#!/usr/bin/env python3
"""Runs one job through the official ComputeHorde SDK and prints what came of it as JSON.

    sdk_run_job.py FACILITATOR_URL VALIDATOR_SS58 WALLET_ROOT WALLET_NAME WALLET_HOTKEY IMAGE [INPUT_DIR] [-- ARG...]

The wallet is the user's, in Bittensor's layout (WALLET_ROOT/WALLET_NAME/hotkeys/WALLET_HOTKEY). INPUT_DIR travels inside the
job and appears under --mount. The files in /artifacts come back. Exit code 0 only for a completed job:

    {"uuid": "...", "status": "completed", "stdout": "...", "stderr": "...", "artifacts": {"/artifacts/x": "<base64>"},
     "history": ["sent", ...], "error": null}
"""

import argparse
import asyncio
import base64
import io
import json
import sys
import zipfile
from pathlib import Path

import bittensor_wallet
from compute_horde_sdk.v1 import (
    ComputeHordeClient,
    ComputeHordeJobSpec,
    ExecutorClass,
    InlineInputVolume,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="the facilitator, for example http://127.0.0.1:8090")
    parser.add_argument("validator", help="ss58 of the validator's hotkey")
    parser.add_argument("wallet_root", help="the folder of wallets, for example ~/.bittensor/wallets")
    parser.add_argument("wallet_name")
    parser.add_argument("wallet_hotkey")
    parser.add_argument("image")
    parser.add_argument("input_dir", nargs="?", type=Path)
    parser.add_argument("--mount", default="/volume/input", help="where INPUT_DIR appears (default %(default)s)")
    parser.add_argument("--artifacts-dir", default="/artifacts", help="'' leaves it unset, the SDK's own default")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--timeout", type=float, default=180, help="seconds to wait in all (default %(default)s)")
    parser.add_argument("--attempts", type=int, default=1, help="as the SDK's max_attempts (default %(default)s)")
    # Arguments after `--` belong to the job, options included.
    own, job = split_at_dashes(sys.argv[1:])
    namespace = parser.parse_args(own)
    namespace.args = job
    return namespace


def split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def zipped(folder: Path) -> str:
    """The folder as the SDK wants an inline volume: base64 of a zip."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
    return base64.b64encode(packed.getvalue()).decode()


async def run(args: argparse.Namespace) -> int:
    wallet = bittensor_wallet.Wallet(name=args.wallet_name, hotkey=args.wallet_hotkey, path=args.wallet_root)
    client = ComputeHordeClient(
        hotkey=wallet.hotkey,
        compute_horde_validator_hotkey=args.validator,
        facilitator_url=args.url,
    )
    volumes = None
    if args.input_dir is not None:
        volumes = {args.mount: InlineInputVolume(contents=zipped(args.input_dir))}
    spec = ComputeHordeJobSpec(
        executor_class=ExecutorClass.always_on__test,
        job_namespace="SN0.muster",
        docker_image=args.image,
        args=args.args,
        env=dict(pair.split("=", 1) for pair in args.env),
        artifacts_dir=args.artifacts_dir or None,
        input_volumes=volumes,
        download_time_limit_sec=30,
        execution_time_limit_sec=60,
        upload_time_limit_sec=30,
    )
    job = await client.run_until_complete(spec, timeout=args.timeout, max_attempts=args.attempts)
    result = job.result
    report = {
        "uuid": job.uuid,
        "status": str(job.status),
        "stdout": result.stdout if result else "",
        "stderr": result.stderr if result else "",
        "artifacts": {
            path: base64.b64encode(content).decode() for path, content in (result.artifacts if result else {}).items()
        },
        "history": [str(entry.status) for entry in job.status_history],
        "error": repr(job.error) if job.error else None,
    }
    print(json.dumps(report))
    if job.status.is_successful():
        return 0
    print(f"the job ended as {job.status}: {job.error}", file=sys.stderr)
    return 1


def main() -> int:
    args = arguments()
    try:
        return asyncio.run(run(args))
    except Exception as error:  # noqa: BLE001 - whatever the SDK raises is what the caller is to read
        print(f"the SDK gave up: {type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

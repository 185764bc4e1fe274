#!/usr/bin/env python3
"""ComputeHorde's own validator code against a miner: runs organic jobs with `OrganicMinerClient` and reads the receipts.

    organic_miner_client.py VALIDATOR_URI MINER_SS58 HOST PORT IMAGE

Needs compute-horde 0.0.27. The validator's key is the development key of VALIDATOR_URI. Three jobs are run: one that
succeeds, one whose program fails, and one of a class that the miner has not; then the miner's receipt pages are read with
`ReceiptsTransfer`, which checks both signatures of every line, twice: whole, and from where the first reading ended. Prints one
JSON object:

    {"succeeded": {"uuid", "stdout", "artifacts", "stages": [...], "manifest"}, "failed": {"uuid", "reason", "stage", "exit"},
     "declined": {"reason"}, "main_hotkey": "5...", "transfer": {"receipts", "again", "errors": [...]},
     "receipts": [{"payload", "validator_signature", "miner_signature"}, ...]}
"""

import asyncio
import json
import os
import sys
import time
import uuid

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["compute_horde.receipts"],
    # In memory, and one connection for all threads: asynchronous calls of Django's run in others.
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:receipts?mode=memory&cache=shared",
                           "OPTIONS": {"uri": True}}},
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    RECEIPT_TRANSFER_CHECKPOINT_CACHE="default",
    USE_TZ=True,
)
django.setup()

import aiohttp  # noqa: E402 - Django's models want their settings first
import bittensor  # noqa: E402
from compute_horde.miner_client.organic import (  # noqa: E402
    MinerRejectedJob,
    MinerReportedJobFailed,
    OrganicJobDetails,
    OrganicMinerClient,
    execute_organic_job_on_miner,
)
from compute_horde.protocol_messages import V0MainHotkeyMessage  # noqa: E402
from compute_horde.receipts.models import JobAcceptedReceipt, JobFinishedReceipt, JobStartedReceipt  # noqa: E402
from compute_horde.receipts.store.local import LocalFilesystemPagedReceiptStore  # noqa: E402
from compute_horde.receipts.transfer import ReceiptsTransfer  # noqa: E402
from compute_horde_core.executor_class import ExecutorClass  # noqa: E402
from compute_horde_core.volume import InlineVolume  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402

PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))
TIMING = OrganicJobDetails.TimingDetails(
    allowed_leeway=10, download_time_limit=20, execution_time_limit=30, upload_time_limit=20, streaming_start_time_limit=1
)


class Client(OrganicMinerClient):
    """Writes down which stages it was told of and what the miner said that it does not understand."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.stages, self.errors, self.main_hotkey = [], [], asyncio.get_running_loop().create_future()

    async def handle_message(self, msg):
        self.stages.append(msg.message_type)
        if isinstance(msg, V0MainHotkeyMessage):
            self.main_hotkey.set_result(msg.main_hotkey)
        await super().handle_message(msg)

    async def notify_generic_error(self, msg):
        self.errors.append(msg.details)

    async def notify_receipt_failure(self, comment):
        self.errors.append(comment)


class Run:
    def __init__(self, uri, miner, host, port, image):
        self.key = bittensor.Keypair.create_from_uri(uri)
        self.miner, self.host, self.port, self.image = miner, host, int(port), image

    def client(self):
        return Client(self.miner, self.host, self.port, str(uuid.uuid4()), self.key)

    def details(self, client, command, executor_class=ExecutorClass.always_on__test, **more):
        return OrganicJobDetails(
            job_uuid=client.job_uuid,
            executor_class=executor_class,
            docker_image=self.image,
            job_timing=TIMING,
            docker_run_options_preset="none",
            docker_run_cmd=command,
            artifacts_dir="/artifacts",
            allowance_blocks=[5136476, 5136477],
            allowance_job_value=70,
            **more,
        )

    async def succeed(self):
        client = self.client()
        contents = "UEsDBBQAAAAAAAAAIVRx8nRmBAAAAAQAAAAFAAAAYS50eHRtYXJrUEsBAhQDFAAAAAAAAAAhVHHydGYEAAAABAAAAAUAAAAAAAAAAAAAAIABAAAAAGEudHh0UEsFBgAAAAABAAEAMwAAACcAAAAAAA=="
        details = self.details(
            client,
            ["-c", "/bin/busybox cat /volume/a.txt; echo left > /artifacts/left.txt"],
            volume=InlineVolume(contents=contents),
        )
        stdout, stderr, artifacts, uploads = await execute_organic_job_on_miner(client, details, 20, 60)
        return {
            "uuid": client.job_uuid,
            "stdout": stdout,
            "artifacts": artifacts,
            "stages": client.stages,
            "errors": client.errors,
            "manifest": {str(kind): count for kind, count in (await client.miner_manifest).items()},
        }

    async def fail(self):
        client = self.client()
        try:
            await execute_organic_job_on_miner(client, self.details(client, ["-c", "echo sorry >&2; exit 3"]), 20, 60)
        except MinerReportedJobFailed as failed:
            msg = failed.msg
            return {
                "uuid": client.job_uuid,
                "reason": str(msg.reason),
                "stage": str(msg.stage),
                "exit": msg.docker_process_exit_status,
                "stderr": msg.docker_process_stderr,
            }
        raise AssertionError("the program failed and the job did not")

    async def be_declined(self):
        client = self.client()
        try:
            await execute_organic_job_on_miner(
                client, self.details(client, [], executor_class=ExecutorClass.always_on__llm__a6000), 20, 60
            )
        except MinerRejectedJob as rejected:
            return {"reason": str(rejected.msg.reason), "receipts": len(rejected.msg.receipts)}
        raise AssertionError("a class that the miner has not was taken")

    async def ask_main_hotkey(self):
        async with self.client() as client:
            await client.send_model(V0MainHotkeyMessage(main_hotkey=None))
            return await asyncio.wait_for(client.main_hotkey, 20)

    async def transfer(self):
        now = LocalFilesystemPagedReceiptStore.current_page_at
        import datetime

        page = now(datetime.datetime.now(datetime.UTC))
        pages = [page - 1, page]
        miners = [(self.miner, self.host, self.port)]

        async def read():
            async with aiohttp.ClientSession() as session:
                return await ReceiptsTransfer.transfer(miners, pages, session, asyncio.Semaphore(4), 5)

        # The miner stores the last receipt while we already read: until all are there, or it takes too long.
        await JobStartedReceipt.objects.all().adelete()
        await JobAcceptedReceipt.objects.all().adelete()
        await JobFinishedReceipt.objects.all().adelete()
        deadline, total, errors = time.monotonic() + PATIENCE, 0, []
        while total < 6 and time.monotonic() < deadline:
            result = await read()
            total += result.n_receipts
            errors += [repr(error) for error in [*result.transfer_errors, *result.line_errors]]
            await asyncio.sleep(0.1)
        again = await read()
        errors += [repr(error) for error in [*again.transfer_errors, *again.line_errors]]
        receipts = []
        for model in (JobStartedReceipt, JobAcceptedReceipt, JobFinishedReceipt):
            async for row in model.objects.all():
                receipts.append(json.loads(row.to_receipt().model_dump_json()))
        return {"receipts": total, "again": again.n_receipts, "errors": errors}, receipts


async def main():
    run = Run(*sys.argv[1:6])
    report = {
        "succeeded": await run.succeed(),
        "failed": await run.fail(),
        "declined": await run.be_declined(),
        "main_hotkey": await run.ask_main_hotkey(),
    }
    report["transfer"], report["receipts"] = await run.transfer()
    print(json.dumps(report))


if __name__ == "__main__":
    held = connection.cursor()  # keeps the database in memory while other threads come and go
    call_command("migrate", verbosity=0)
    asyncio.run(main())

"""The package against a whole subnet: `muster up`, MUSTER_FACILITATOR and MUSTER_API_KEY name it."""

import asyncio
import hashlib
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import openai
import pytest

from muster_client import AsyncClient, Client, errors, events, models, proofs, webhooks

IMAGE = os.environ.get("MUSTER_TEST_IMAGE", "muster/hello:latest")
MODEL = "parrot"
PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))
ASK = [{"role": "user", "content": "one two three"}]


def counts(job):
    """The words that the program counted."""
    return {one["word"]: one["count"] for one in json.loads(job.artifact("/artifacts/words.json"))["top"]}


@pytest.fixture
def muster():
    with Client() as client:
        yield client


def test_a_job_takes_files_of_this_machine_and_brings_files_back(muster, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("muster muster a force")
    (tmp_path / "large.bin").write_bytes(os.urandom(3 * 1024 * 1024))
    job = muster.run(
        image=IMAGE,
        args=["words"],
        inputs={"text": tmp_path / "text", "b.txt": b"force"},
        outputs=["words.json"],
        name="from-python",
    )
    assert job.succeeded and job.exit_code == 0 and job.failure is None
    assert counts(job) == {"muster": 2, "force": 2, "a": 1}
    fetched = muster.fetch_outputs(job, tmp_path / "out")
    assert fetched == [tmp_path / "out" / "words.json"]
    assert fetched[0].read_bytes() == job.artifact("/artifacts/words.json")
    assert muster.output(job).decode().splitlines()[0]
    assert next(muster.jobs(name="from-python")).uuid == job.uuid
    with pytest.raises(errors.MusterError, match="is here already"):
        muster.fetch_outputs(job, tmp_path / "out")
    assert muster.fetch_outputs(job, tmp_path / "out", replace=True) == fetched
    # Larger ones go through the store.
    large = muster.run(
        image=IMAGE, args=["probe", "tree"], inputs={"large.bin": tmp_path / "large.bin"}, outputs=["results/"]
    )
    tree = muster.fetch_outputs(large, tmp_path / "tree")
    assert tree == [tmp_path / "tree" / "results"]
    digest = hashlib.sha256((tmp_path / "large.bin").read_bytes()).hexdigest()
    assert hashlib.sha256((tree[0] / "large.bin").read_bytes()).hexdigest() == digest
    assert (tree[0] / "key").stat().st_mode & 0o777 == 0o600


def test_a_job_is_followed_and_its_output_comes_whole(muster):
    job = muster.submit(image=IMAGE, args=["probe", "say", "2", "Hello", "world"])
    seen = list(muster.events(job))
    statuses = [event.status for event in seen if isinstance(event, events.StatusEntry)]
    assert statuses[0] == "sent" and statuses[-1] == "completed" and len(set(statuses)) == len(statuses)
    printed = "".join(piece.text for piece in muster.logs(job) if piece.stream == "stdout")
    assert printed.encode() == muster.output(job)
    # More than a result's text holds, and no text at all.
    job = muster.submit(image=IMAGE, args=["probe", "print", "3000000"])
    printed = "".join(piece.text for piece in muster.logs(job) if piece.stream == "stdout")
    whole = muster.output(job)
    assert len(whole) >= 3_000_000 and printed.encode() == whole
    assert muster.output(job, offset=2_999_000) == whole[2_999_000:]
    binary = muster.run(image=IMAGE, args=["probe", "bytes", "0"])
    assert b"\xff" in muster.output(binary)


def test_a_failed_job_says_why_and_a_cancelled_one_ends(muster):
    with pytest.raises(errors.JobFailed) as failed:
        muster.run(image=IMAGE, args=["probe", "exit", "7"])
    assert (failed.value.job.exit_code, failed.value.job.last_status) == (7, "failed")
    assert failed.value.job.failure
    job = muster.submit(image=IMAGE, args=["probe", "sleep", "600"], timeout=900)
    with pytest.raises(errors.TooLate):
        muster.wait(job, timeout=0.5)
    muster.cancel(job)
    ended = muster.wait(job)
    assert ended.has_ended and not ended.succeeded and ended.exit_code != 0
    with pytest.raises(errors.NotFound):
        muster.job("11111111-2222-4333-8444-555555555555")
    with pytest.raises(errors.Refused, match="image"):
        muster.submit(image="not an image!", args=[])


def test_metrics_and_checkpoints_of_a_job_are_read(muster, tmp_path):
    rule = models.MetricRule(name="accuracy", pattern="accuracy=([0-9.]+)")
    job = muster.run(image=IMAGE, args=["probe", "train", "5"], metrics=[rule])
    view = muster.metrics(job)
    series = {one.name: one.points for one in view.series}
    assert series["loss"] and "accuracy" in series and view.newest.report.step == 5
    saved = models.CheckpointTerms(every=1, folder="/checkpoints")
    job = muster.run(image=IMAGE, args=["probe", "save", "6", "0"], checkpoints=saved)
    kept = muster.checkpoints(job)
    newest = muster.fetch_checkpoint(job, tmp_path)
    assert newest.name == kept[-1].name and newest.read_text() == newest.name.removeprefix("step-")
    with pytest.raises(errors.MusterError, match="is here already"):
        muster.fetch_checkpoint(job, tmp_path)
    with pytest.raises(errors.MusterError, match="no checkpoint 999"):
        muster.fetch_checkpoint(job, tmp_path / "other", ordinal=999)
    begun = models.ResumeSource(job=job.uuid, ordinal=kept[-1].ordinal)
    again = muster.run(
        image=IMAGE,
        args=["probe", "save", "1", "0"],
        checkpoints=models.CheckpointTerms(every=1, folder="/checkpoints", resume_from=begun),
    )
    assert f"from {kept[-1].step}" in muster.output(again).decode()


def test_files_lie_in_the_store_once(muster, tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(700_000))
    sent = muster.upload(path)
    assert sent.complete and sent.size == 700_000
    assert muster.upload(path).id == sent.id
    assert sent.id in {file.id for file in muster.files()}
    assert muster.download(sent, tmp_path / "back").read_bytes() == path.read_bytes()
    assert muster.download(sent.id, tmp_path / "back").read_bytes() == path.read_bytes()
    muster.delete_file(sent)
    with pytest.raises(errors.NotFound):
        muster.file(sent.id)


def test_the_end_of_a_job_comes_as_a_signed_message(muster):
    messages = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            messages.append((dict(self.headers), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    secret = muster.set_webhook(None, new_secret=True).secret
    url = f"http://127.0.0.1:{server.server_port}/ends"
    job = muster.run(image=IMAGE, args=["probe", "exit", "0"], webhook=url)
    until = time.monotonic() + PATIENCE
    while not messages and time.monotonic() < until:
        time.sleep(0.05)
    headers, body = messages[0]
    assert webhooks.verify(secret, headers, body)["data"]["job"] == job.uuid
    with pytest.raises(errors.InvalidMessage):
        webhooks.verify(secret, headers, body.replace(b"job.ended", b"job.other"))
    assert muster.webhook().url is None
    muster.remove_webhook()
    server.shutdown()


def test_answers_beside_openais_client_are_proven(muster, tmp_path):
    seen = proofs.RecordingTransport(httpx2.HTTPTransport())
    client = openai.OpenAI(
        base_url=muster.openai_url,
        api_key=muster.api_key,
        http_client=httpx2.Client(transport=seen, timeout=PATIENCE),
        max_retries=0,
    )
    stream = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert said.startswith("one two three")
    record = muster.prove(seen.last)
    assert record.verify().has_words
    record.save(tmp_path / "answer.json")
    whole = client.chat.completions.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=5)
    assert muster.prove(seen.of_answer(whole.headers["x-request-id"])).verify().proof.status == 200
    changed = muster.prove(seen.last).value
    changed["words"]["request"] = "e30="
    with pytest.raises(errors.NotProven, match="another request"):
        proofs.verify(changed)
    # A stream that is left in its middle is not compared.
    stream = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=200, stream=True)
    next(iter(stream))
    stream.close()
    with pytest.raises(errors.NotProven, match="not read to its end"):
        muster.prove(seen.last)
    if kept := os.environ.get("MUSTER_TEST_RECORD"):
        # The command checks what this package has written.
        record.save(kept)


def test_the_account_and_the_subnet_are_shown(muster):
    assert any(offer.executors for one in muster.subnet().results for offer in one.classes)
    assert MODEL in {one["id"] for one in muster.models()}
    account = muster.account()
    assert account.keys >= 1 and account.account
    key = muster.create_api_key("from-python", rights=["read"], days=1)
    assert key.key.startswith("msk_") and key.id in {one.id for one in muster.api_keys()}
    with Client(api_key=key.key) as reader, pytest.raises(errors.Refused) as refused:
        reader.submit(image=IMAGE, args=["probe", "exit", "0"])
    assert refused.value.status == 403
    muster.revoke_api_key(key)
    with Client(api_key=key.key) as reader, pytest.raises(errors.Unauthorised):
        reader.account()
    assert any(day.model == MODEL for day in muster.usage().results)


def test_the_client_with_await_runs_jobs_beside_one_another(tmp_path):
    async def run():
        async with AsyncClient() as client:
            both = await asyncio.gather(
                *(client.run(image=IMAGE, args=["words"], inputs={"a.txt": word}) for word in (b"one", b"two two"))
            )
            assert [counts(job) for job in both] == [{"one": 1}, {"two": 2}]
            job = await client.submit(image=IMAGE, args=["probe", "say", "1", "Hello"], outputs=["none.txt"])
            printed = [piece.text async for piece in client.logs(job)]
            assert "Hello" in "".join(printed)
            assert await client.fetch_outputs(job, tmp_path) == []
            async with httpx2.AsyncClient(
                transport=(seen := proofs.AsyncRecordingTransport(httpx2.AsyncHTTPTransport())), timeout=PATIENCE
            ) as http:
                models_client = openai.AsyncOpenAI(
                    base_url=client.openai_url, api_key=client.api_key, http_client=http, max_retries=0
                )
                stream = await models_client.chat.completions.create(
                    model=MODEL, messages=ASK, max_tokens=5, stream=True
                )
                async for _ in stream:
                    pass
                assert (await client.prove(seen.last)).verify().has_words

    asyncio.run(run())

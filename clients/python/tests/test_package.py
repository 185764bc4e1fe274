"""The package without any subnet: its generated parts, its pure rules, and statements from golden vectors."""

import asyncio
import base64
import dataclasses
import hashlib
import hmac
import inspect
import io
import json
import pickle
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import sr25519

from muster_client import AsyncClient, Client, JobSpec, errors, models, proofs, webhooks
from muster_client._answers import base_of, error_of
from muster_client._body_digest import hash_answer, hash_request, strip_comments
from muster_client._decode import decode, encode
from muster_client._requests import (
    choose_validator,
    file_of,
    kinds_of,
    matches,
    needed_features,
    output_path,
    read_inputs,
    relative,
    request_of,
)
from muster_client._statements import read_attestation, read_proof
from muster_client._trees import read_manifest, unpack
from muster_client.events import PrintedPart, read_event
from muster_client.models import LogEvent

ROOT = Path(__file__).parents[3]
SEAL = json.loads((ROOT / "tests/vectors/seal.json").read_text())
NOW = "2026-11-30T19:36:05.621713Z"


def test_generated_files_are_up_to_date():
    ran = subprocess.run(
        [sys.executable, ROOT / "clients/python/generate.py", "--check"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_types_are_right():
    mypy = [sys.executable, "-m", "mypy", "--cache-dir", "/dev/null"]
    ran = subprocess.run(mypy, cwd=ROOT / "clients/python", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_style_is_kept():
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command], cwd=ROOT / "clients/python", capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_both_clients_have_the_same_calls():
    def calls(kind):
        named = inspect.getmembers(kind, lambda member: inspect.isfunction(member) or isinstance(member, property))
        return {name for name, _ in named if not name.startswith("_")} - {"close", "aclose"}

    assert calls(Client) == calls(AsyncClient)
    assert "run" in calls(Client)


def test_answers_are_read_with_fields_of_a_newer_release_and_without_optional_ones():
    offer = {"class": "always_on.test", "executors": 2, "free": 1, "miners": 1, "private_images": 0, "running": 1}
    read = decode(models.ClassOffer, {**offer, "waiting": 0, "ahead": 0, "why": "", "of_tomorrow": [1]})
    assert (read.class_, read.estimate_s, read.hardware) == ("always_on.test", None, None)
    assert encode(read)["class"] == "always_on.test"
    entry = decode(models.StatusEntry, {"status": "sent", "created_at": NOW})
    assert entry.created_at == datetime(2026, 11, 30, 19, 36, 5, 621713, tzinfo=UTC)
    point = decode(models.MetricPoint, {"at": NOW, "value": 1})
    assert point.value == 1.0 and isinstance(point.value, float)


def job(status, **metadata):
    """A job whose history ends with this status, as a facilitator answers it."""
    history = [{"status": "sent", "created_at": NOW}, {"status": status, "created_at": NOW, "metadata": metadata}]
    texts = {name: "x" for name in ("executor_class", "status", "docker_image", "target_validator_hotkey")}
    limits = ("download_time_limit", "execution_time_limit", "streaming_start_time_limit", "upload_time_limit")
    return decode(
        models.JobView,
        {"uuid": "1", "created_at": NOW, "last_update": NOW, "args": [], "env": {}, "use_gpu": False}
        | texts
        | dict.fromkeys(limits, 1)
        | {"status_history": history, "artifacts": {"/artifacts/a": "aGk="}},
    )


def test_a_job_says_how_it_went():
    failed = {"reason": "nonzero", "stage": "execution", "message": "it ended with 7", "docker_process_exit_status": 7}
    for view, facts in [
        (job("accepted"), (False, False, None, None)),
        (job("completed"), (True, True, 0, None)),
        (job("failed", job_failure_details=failed), (True, False, 7, "it ended with 7")),
        (job("horde_failed"), (True, False, None, "horde_failed")),
    ]:
        assert (view.has_ended, view.succeeded, view.exit_code, view.failure) == facts
    assert job("completed").artifact("/artifacts/a") == b"hi"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "has no created_at"),
        ({"status": 7, "created_at": NOW}, "the answer.status is int, not str"),
        ({"status": "sent", "created_at": "yesterday"}, "the answer.created_at is no time"),
        ([], "the answer is list, not StatusEntry"),
        ({"status": "sent", "created_at": NOW, "metadata": 1}, "the answer.metadata is int"),
    ],
)
def test_an_answer_of_another_form_is_named(value, words):
    with pytest.raises(errors.Unreadable, match=words.replace(".", r"\.")):
        decode(models.StatusEntry, value)


@pytest.mark.parametrize(
    ("address", "base"),
    [
        ("https://f.example/", "https://f.example"),
        ("https://f.example/v1", "https://f.example"),
        ("http://127.0.0.1:8090/api/v1/", "http://127.0.0.1:8090"),
        ("127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("f.example", "https://f.example"),
        ("https://f.example/below", "https://f.example/below"),
        # A key is sent in the clear to this machine only.
        ("localhost.example.org", "https://localhost.example.org"),
        ("localhost:1", "http://localhost:1"),
        ("[::1]:1", "http://[::1]:1"),
    ],
)
def test_an_address_is_read_as_people_write_it(address, base):
    assert base_of(address) == base


@pytest.mark.parametrize(
    "address",
    [
        "f.example:8090",
        "ftp://f.example",
        "https://f.example/?a=1",
        "https://",
        "",
        "https://user:secret@f.example",
        "http://[::1",
        "https://f.example:port",
    ],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(errors.MusterError):
        base_of(address)


def test_the_reason_of_a_refusal_is_read_in_every_form():
    for body, words in [
        ({"detail": "no"}, "no"),
        ({"error": "no"}, "no"),
        ({"error": {"message": "no"}}, "no"),
        (["no"], "no"),
        ({"args": ["bad"], "env": "worse"}, "args: bad; env: worse"),
    ]:
        assert error_of(400, json.dumps(body).encode()).reason == words
    assert error_of(400, b"<html>").reason == "<html>"
    kinds = {
        401: errors.Unauthorised,
        404: errors.NotFound,
        429: errors.Unwell,
        503: errors.Unwell,
        409: errors.Refused,
    }
    assert all(type(error_of(status, b"")) is kind for status, kind in kinds.items())


def test_a_path_of_the_container_stays_in_its_folder():
    assert relative("/volume/data/x", "/volume") == relative("data/x", "/volume") == "data/x"
    for path in ["", "/", "../x", "a/../b", "a//b", "/etc/passwd", "a\\b", "/volume/", "."]:
        with pytest.raises(errors.MusterError):
            relative(path, "/volume")


def test_small_inputs_travel_inside_the_request_and_large_ones_through_the_store(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one").write_text("1")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    small = read_inputs(
        {"data": tmp_path / "data", "run.sh": tmp_path / "run.sh", "b": b"bytes", "u": "https://x.example/u"}, None
    )
    url, packed = small.volumes
    assert url == {"volume_type": "single_file", "url": "https://x.example/u", "relative_path": "u"}
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(packed["contents"])))
    assert {name: archive.read(name) for name in archive.namelist()} == {
        "data/one": b"1",
        "run.sh": b"#!/bin/sh\n",
        "b": b"bytes",
    }
    assert archive.getinfo("run.sh").external_attr >> 16 == 0o100755
    (tmp_path / "large").write_bytes(bytes(2 * 1024 * 1024))
    large = read_inputs({"large": tmp_path / "large"}, None)
    assert (large.volumes, [one.path for one in large.stored]) == ([], ["large"])
    assert read_inputs({"large": tmp_path / "large"}, 7).seconds == 7
    with pytest.raises(errors.MusterError, match="there is no input"):
        read_inputs({"x": tmp_path / "missing"}, None)


def test_a_request_has_what_its_user_asked_for_and_needs_the_features():
    spec = JobSpec(image="i", args=["a"], outputs=["model.bin", "logs/", "*.txt"], priority=10, stdin="in", name="n")
    inputs = read_inputs({}, None)
    body = request_of(spec, "5V", inputs, [])
    assert body["muster"] == {"terms": {"priority": 10, "start": {"stdin": "in"}}}
    assert (body["target_validator_hotkey"], body["tag"], body["volumes"]) == ("5V", "n", None)
    assert needed_features(spec) == {"terms", "folders", "output-patterns", "program-start"}
    assert needed_features(JobSpec(image="i")) == set()
    assert [kinds_of(output) for output in spec.outputs] == [["file", "folder"], ["folder"], ["matching"]]
    with pytest.raises(errors.MusterError, match="priority"):
        request_of(JobSpec(image="i", priority=0), "5V", inputs, [])


def test_the_validator_at_which_a_job_starts_first_is_chosen():
    def capacity(*validators):
        def offer(name, free, estimate):
            one = {"class": "c", "executors": 2, "free": free, "miners": 1, "private_images": 0, "running": 0}
            one |= {"waiting": 0, "ahead": 0, "why": "", "estimate_s": estimate}
            limits = {"image_default_s": 1, "image_s": 1, "job_s": 1, "queue_default_s": 1, "queue_s": 1}
            return {"validator": name, "told_at": NOW, "limits": limits, "classes": [one]}

        return decode(models.SubnetCapacity, {"results": [offer(*one) for one in validators]})

    assert choose_validator(capacity(("A", 1, 60), ("B", 1, 5)), "c") == "B"
    assert choose_validator(capacity(("A", 1, 60), ("B", 1, None)), "c") == "A"
    assert choose_validator(capacity(("A", 1, None), ("B", 2, None)), "c") == "B"
    assert choose_validator(capacity(("A", 0, None)), "other") == "A"
    for found, kind in [((), "c"), ((("A", 1, 1), ("B", 1, 1)), "other")]:
        with pytest.raises(errors.NoValidator):
            choose_validator(capacity(*found), kind)


def test_a_delivered_file_is_one_that_the_pattern_names():
    for pattern, path, is_named in [
        ("*.txt", "a.txt", True),
        ("*.txt", "b/a.txt", False),
        ("*.txt", ".git/hooks/pre-commit", False),
        ("out/*/[ab]?", "out/x/a1", True),
        ("out/*/[!ab]?", "out/x/a1", False),
    ]:
        assert matches(pattern, path) is is_named, (pattern, path)
    assert [output_path(output) for output in (".", "/output", "/output/a/", "a")] == [".", ".", "a", "a"]
    assert kinds_of(".") == ["folder"]


def test_a_mistake_in_a_job_is_told_before_anything_is_sent():
    client, seen = answering()
    for parts, words in [({"args": "words"}, "args is a list"), ({"outputs": "model.bin"}, "outputs is a list")]:
        with pytest.raises(errors.MusterError, match=words):
            client.submit(image="i", **parts)
    with pytest.raises(errors.MusterError, match="and not both: name"):
        client.submit(JobSpec(image="i"), name="x")
    with pytest.raises(errors.MusterError, match="no 'stdlog'"):
        client.output(job("completed"), "stdlog")
    assert seen == []


def test_output_is_read_on_where_its_connection_broke_and_compared():
    def printed(digest):
        stream = {"bytes": 7, "sha256": digest, "stored": {"blocks": "b", "bytes": 7}}
        view = job("completed")
        report = {"printed": {"stdout": stream, "stderr": {"bytes": 0}}}
        return dataclasses.replace(view, completion=decode(models.CompletionReport, report))

    right = hashlib.sha256(b"content").hexdigest()
    parts = [httpx.Response(200, content=b"con"), httpx.ConnectError("no"), httpx.Response(200, content=b"tent")]
    client, seen = answering(*parts)
    assert client.output(printed(right)) == b"content"
    assert [request.url.params["offset"] for request in seen] == ["0", "3", "3"]
    client, _ = answering(httpx.Response(200, content=b"CONTENT"))
    with pytest.raises(errors.Damaged):
        client.output(printed(right))


def test_a_deletion_whose_answer_was_lost_is_done():
    client, seen = answering(httpx.ReadError("cut"), httpx.Response(404, json={"detail": "gone"}))
    client.delete_file("11111111-2222-4333-8444-555555555555")
    assert len(seen) == 2
    client, _ = answering(httpx.Response(404, json={"detail": "none"}))
    with pytest.raises(errors.NotFound):
        client.delete_file("x/../y")


def test_errors_cross_processes():
    for error in [errors.Unwell(503, "busy"), errors.JobFailed(job("horde_failed"))]:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_a_file_of_the_store_is_known_by_its_url():
    name = "11111111-2222-4333-8444-555555555555"
    assert file_of(f"https://f.example/below/files/{name}/upload?Expires=1") == name
    assert file_of("https://bucket.example/key?Signature=1") is None


def test_output_is_taken_while_it_is_whole_and_in_order():
    def piece(offset, text):
        return LogEvent(stream="stdout", text=text, at=datetime.now(UTC), offset=offset)

    part = PrintedPart()
    taken = [
        part.take(piece(offset, text)) for offset, text in [(0, "ab"), (2, "é"), (4, "c"), (4, "c"), (9, "z"), (5, "d")]
    ]
    assert (taken, part.end) == ([True, True, True, False, False, False], 5)
    part = PrintedPart()
    assert not part.take(piece(0, "a\ufffd")) and part.end == 0
    part = PrintedPart()
    assert part.take(piece(0, "ab")) and part.take(piece(0, "anew")) and part.end == 4


def test_events_of_an_unknown_kind_are_passed_over():
    assert read_event("of_tomorrow", "?") is None
    assert read_event("status", json.dumps({"status": "sent", "created_at": NOW})).status == "sent"
    with pytest.raises(errors.Unreadable):
        read_event("status", "?")


SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
BODY = b'{"type":"job.ended","data":{"job":"1"}}'


def signed(body=BODY, at=1_000, key=b"k" * 32):
    made = base64.b64encode(hmac.digest(key, b"msg_1." + str(at).encode() + b"." + body, hashlib.sha256)).decode()
    return {"Webhook-Id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": f"v1,AAAA v1,{made}"}


def test_a_message_of_a_webhook_is_taken_if_its_secret_signed_it_lately():
    assert webhooks.verify(SECRET, signed(), BODY, now=1_100)["data"]["job"] == "1"
    for headers, body, now, words in [
        (signed(), BODY + b" ", 1_100, "not signed"),
        (signed(key=b"x" * 32), BODY, 1_100, "not signed"),
        (signed(), BODY, 2_000, "1000 s ago"),
        (signed(), BODY, 0, "-1000 s ago"),
        ({}, BODY, 1_100, "no header webhook-id"),
        (signed() | {"webhook-timestamp": "?"}, BODY, 1_100, "cannot be read"),
        (signed(b"[]"), b"[]", 1_100, "no object"),
        (signed() | {"webhook-timestamp": "9" * 400}, BODY, 1_100, "cannot be read"),
    ]:
        with pytest.raises(errors.InvalidMessage, match=words):
            webhooks.verify(SECRET, headers, body, now=now)


def test_a_secret_that_is_not_there_signs_nothing():
    for secret, key in [("", b""), ("whsec_", b""), ("whsec_" + base64.b64encode(b"short").decode(), b"short")]:
        with pytest.raises(errors.InvalidMessage, match="secret is none"):
            webhooks.verify(secret, signed(key=key), BODY, now=1_000)


def test_statements_are_read_as_the_vectors_have_them():
    attestation = read_attestation(bytes.fromhex(SEAL["attestation"]))
    assert attestation.executor == "executor-7" and attestation.scheme == "raw-http"
    assert (attestation.input_price, attestation.output_price) == (1_000, 3_000)
    assert read_attestation(bytes.fromhex(SEAL["attestation_without_model"])).model is None
    proof = read_proof(bytes.fromhex(SEAL["proof"]))
    assert (proof.status, proof.end, proof.sequence) == (200, "completed", 0)
    assert proof.attestation == hashlib.sha256(bytes.fromhex(SEAL["attestation"])).digest()
    assert read_proof(bytes.fromhex(SEAL["proof_without_options"])).end == "client-gone"
    whole = bytes.fromhex(SEAL["proof"])
    for damaged in [whole[:-1], whole + b"\0", b"x" + whole, whole[:-1] + b"\x09"]:
        with pytest.raises(errors.NotProven):
            read_proof(damaged)


def test_comments_of_a_gateway_and_the_line_of_the_proof_are_not_hashed():
    for body in [b"data: {}\n\ndata: [DONE]\n\n", b"data: {}\r\n\r\n", b"data: unfinished", b": muster", b""]:
        whole = b": muster-wait\n" + body
        assert strip_comments(whole) == body
        assert strip_comments(whole + b"\n: muster-proof AAAA\n") == body
    assert strip_comments(b"data: : muster-x\n") == b"data: : muster-x\n"
    assert hash_answer("raw-http", "application/json", b": muster-x\n")[1] == 11


def test_the_scheme_of_texts_hashes_what_was_said():
    def parts(*texts):
        return hashlib.sha256(b"".join(len(t.encode()).to_bytes(4, "big") + t.encode() for t in texts)).digest()

    def said(*texts):
        pieces = (at.to_bytes(4, "big") + hashlib.sha256(t.encode()).digest() for at, t in enumerate(texts))
        return hashlib.sha256(b"".join(pieces)).digest()

    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "é"}]}]}
    assert hash_request("text", json.dumps(chat).encode()) == parts("user", "Hi é")
    assert hash_request("text", b'{"prompt": ["a", "b"]}') == parts("a", "b")
    assert hash_request("text", b"nonsense") == hashlib.sha256(b"nonsense").digest()
    stream = (
        b': ping\n\ndata: {"choices":[{"index":1,"delta":{"content":"b"}}]}\r\n\r\n'
        b'data:{"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\ndata: not json\n\n'
        b'data: {"choices":[{"index":0,"delta":{"content":"lo"}}],"usage":null}\n\ndata: [DONE]\n\n'
    )
    assert hash_answer("text", "text/event-stream", stream) == (said("Hello", "b"), len(stream))
    call = {"function": {"name": "f", "arguments": "{}"}}
    message = {"content": None, "reasoning_content": "r", "tool_calls": [call]}
    tools = json.dumps({"choices": [{"message": message}]}).encode()
    assert hash_answer("text", "application/json", tools)[0] == said("rf{}")
    # A document with a field of another type is passed over whole, as the session's own reader does.
    for odd in [
        {"index": None, "text": "x"},
        {"index": -1, "text": "x"},
        {"index": "0", "text": "x"},
        {"text": 7},
        {"text": "\ud800"},
        {"message": {"content": ["x"]}},
        {"message": {"content": "x", "tool_calls": [None]}},
        {"message": "x"},
    ]:
        body = b"data: " + json.dumps({"choices": [{"index": 0, "text": "x"}, odd]}).encode() + b"\n\n"
        assert hash_answer("text", "text/event-stream", body) == (hashlib.sha256(body).digest(), len(body)), odd
    assert hash_request("text", b'{"prompt": null, "input": "x"}') == parts("x")
    for odd in [b'{"messages": [7]}', b'{"messages": [{"role": 7}]}', b'{"prompt": "\\ud800"}']:
        assert hash_request("text", odd) == hashlib.sha256(odd).digest()
    picture = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}
    with pytest.raises(errors.NotProven, match="muster proof verify"):
        hash_request("text", json.dumps(picture).encode())


def ss58(key):
    data = bytes([42]) + key
    data += hashlib.blake2b(b"SS58PRE" + data, digest_size=64).digest()[:2]
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = proofs._ALPHABET[digit] + text
    return text


def record():
    """A record of an answer that parties of our own signed: the golden statements with other keys."""
    pairs = [sr25519.pair_from_seed(bytes([seed]) * 32) for seed in (1, 2, 3)]
    (miner, _), (session, _), (validator, _) = pairs
    statement = bytearray(bytes.fromhex(SEAL["attestation"]))
    for key, found in ((session, b"\x11" * 32), (miner, b"\x22" * 32), (validator, b"\x33" * 32)):
        at = bytes(statement).index(found)
        statement[at : at + 32] = key
    attested = hashlib.sha256(statement).digest()
    body = b'data: {"choices":[]}\n\n' * 500
    proof = bytes.fromhex(SEAL["proof"])
    proof = proof.replace(hashlib.sha256(bytes.fromhex(SEAL["attestation"])).digest(), attested)
    proof = proof.replace(b"\x33" * 32, validator)

    def seal(pair, data):
        return base64.b64encode(bytes(data) + sr25519.sign(pair, bytes(data))).decode()

    start = datetime.fromtimestamp(1_769_000_000, UTC)
    return {
        "id": "ab" * 32,
        "nonce": "55" * 32,
        "verdict": "proven",
        "miner": ss58(miner),
        "validator": ss58(validator),
        "attestation": seal(pairs[0], statement),
        "proof": seal(pairs[1], proof),
        "words": {
            "method": "POST",
            "path": "/v1/chat/completions",
            "request": base64.b64encode(b'{"model":"m"}').decode(),
            "status": 200,
            "content_type": "text/event-stream; charset=utf-8",
            "response": base64.b64encode(b": muster-wait\n" + body + b"\n: muster-proof AAAA\n").decode(),
            "client_nonce": "44" * 32,
            "asked_at": start.isoformat(),
            "ended_at": (start + timedelta(seconds=3)).isoformat(),
        },
    }


def test_a_record_holds_and_every_change_of_it_is_found(tmp_path):
    proven = proofs.verify(record())
    assert proven.has_words and proven.proof.end == "completed"
    without = record()
    del without["words"]
    assert not proofs.verify(without).has_words
    kept = proofs.ProofRecord(record())
    kept.save(tmp_path / "answer.json")
    assert proofs.ProofRecord.load(tmp_path / "answer.json").verify() == proven
    later = (datetime.fromtimestamp(1_769_000_000, UTC) + timedelta(seconds=400)).isoformat()
    other = ss58(sr25519.pair_from_seed(bytes([9]) * 32)[0])
    changes = [
        ({"miner": other}, "another miner"),
        ({"validator": other}, "another validator"),
        ({"validator": "nobody"}, "is no address"),
        ({"nonce": "00" * 32}, "another answer"),
        ({"proof": None}, "without a proof"),
        ({"proof": record()["attestation"]}, "session key did not sign"),
        ({"attestation": record()["proof"]}, "no muster/attestation/1"),
        ({"attestation": "?"}, "not a signed statement"),
        ({"words": record()["words"] | {"request": "e30="}}, "another request: the body"),
        ({"words": record()["words"] | {"path": "/v1/completions"}}, "another request: the path"),
        ({"words": record()["words"] | {"status": 201}}, "another answer: the status"),
        ({"words": record()["words"] | {"response": "ZGF0YTogMQo="}}, "another answer"),
        ({"words": record()["words"] | {"client_nonce": "07" * 32}}, "another request's nonce"),
        ({"words": record()["words"] | {"asked_at": later}}, "off the time"),
        ({"words": {}}, "cannot be read"),
        ({"words": 7}, "cannot be read"),
        ({"words": record()["words"] | {"asked_at": "2026-11-30T19:36:05"}}, "cannot be read"),
    ]
    for change, words in changes:
        with pytest.raises(errors.NotProven, match=words):
            proofs.verify(record() | change)
    statement = bytearray(base64.b64decode(record()["attestation"]))
    statement[-70] ^= 1
    with pytest.raises(errors.NotProven, match="did not sign it"):
        proofs.verify(record() | {"attestation": base64.b64encode(statement).decode()})


def manifest(*entries):
    text = b"muster/checkpoint-manifest/1\n" + len(entries).to_bytes(4, "little")
    for path, size in entries:
        text += (
            bytes([size is not None]) + len(path).to_bytes(2, "little") + path.encode() + (0o644).to_bytes(4, "little")
        )
        if size is not None:
            text += size.to_bytes(8, "little") + b"d" * 32 * -(-size // (8 << 20))
    return text


def test_a_manifest_leads_nowhere_else():
    folder, file = read_manifest(manifest(("step-1", None), ("step-1/w", 9 << 20)), "step-1")
    assert (folder.size, file.lengths()) == (None, [8 << 20, 1 << 20])
    for damaged in [
        manifest(("step-1", None))[:-1],
        manifest(("step-1", None)) + b"x",
        manifest(),
        manifest(("step-1", None), ("step-1/../x", 1)),
        manifest(("step-2", None)),
        manifest(("step-1/x", 1)),
        manifest(("/etc", None)),
        b"other",
    ]:
        with pytest.raises(errors.Damaged):
            read_manifest(damaged, "step-1")


def test_an_archive_of_outputs_is_laid_out_and_leads_nowhere_else(tmp_path):
    def lay_out(*entries):
        archive, into = tmp_path / "a.tar", Path(tempfile.mkdtemp(dir=tmp_path)) / "into"
        with tarfile.open(archive, "w") as made:
            for name, kind, target in entries:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname, entry.mode = kind, target, 0o600 if name == "key" else 0o755
                entry.size = 1 if kind == tarfile.REGTYPE else 0
                made.addfile(entry, io.BytesIO(b"x"))
        unpack(archive, into)
        return into

    file, folder, link = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE
    into = lay_out(
        (".", folder, ""), ("a/b", file, ""), ("key", file, ""), ("a/up", link, "../key"), ("deep/l", link, "../a")
    )
    assert (into / "a/b").read_bytes() == b"x" and (into / "a/up").read_bytes() == b"x"
    assert (into / "key").stat().st_mode & 0o777 == 0o600
    for entries in [
        [("../out", file, "")],
        [("/out", file, "")],
        [("a/../../out", file, "")],
        [("l", link, "../x")],
        [("l", link, "/etc/passwd")],
        [("a/l", link, "x/../../..")],
        [("l", link, "")],
        [(".", link, "x")],
        [(".", file, "")],
        [("pipe", tarfile.FIFOTYPE, "")],
        [("hard", tarfile.LNKTYPE, "a")],
        [("a", file, ""), ("a", file, "")],
        [("a", file, ""), ("a/b", file, "")],
        [("p/q/r", link, "../.."), ("p/q/r/x", link, "..")],
    ]:
        with pytest.raises(errors.Damaged):
            lay_out(*entries)
    assert not (tmp_path / "out").exists()


def answering(*answers):
    """A client whose facilitator gives these answers, and the requests that it got."""
    seen, left = [], list(answers)

    def answer(request):
        seen.append(request)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return Client("http://127.0.0.1:1", "msk_k", http=httpx.Client(transport=httpx.MockTransport(answer))), seen


def test_a_request_that_may_be_repeated_is_and_another_is_not():
    ok = httpx.Response(200, json={"account": "a", "files": 0, "jobs": 0, "keys": 1, "open_jobs": 0})
    client, seen = answering(httpx.ConnectError("no"), httpx.Response(503, json={"detail": "busy"}), ok)
    assert client.account().keys == 1 and len(seen) == 3
    assert seen[0].headers["authorization"] == "Bearer msk_k"
    client, seen = answering(httpx.ConnectError("no"))
    with pytest.raises(errors.Unreachable):
        client.create_api_key("x")
    assert len(seen) == 1
    client, _ = answering(httpx.ConnectTimeout(""))
    with pytest.raises(errors.Unreachable, match="ConnectTimeout"):
        client.create_api_key("x")
    client, seen = answering(httpx.Response(401, json={"detail": "no key"}))
    with pytest.raises(errors.Unauthorised, match="no key"):
        client.account()


def test_a_job_whose_answer_is_lost_is_submitted_with_the_same_key():
    lost = httpx.ReadError("cut")
    client, seen = answering(lost, httpx.Response(400, json={"detail": "seen"}))
    with pytest.raises(errors.Refused, match="seen"):
        client.submit(image="i", validator="5V")
    names = {request.headers["idempotency-key"] for request in seen}
    assert len(seen) == 2 and len(names) == 1


def test_a_facilitator_of_another_make_is_not_given_what_it_would_drop():
    client, seen = answering(httpx.Response(404, text="no such page"))
    with pytest.raises(errors.MusterError, match="does not know terms"):
        client.submit(image="i", validator="5V", priority=3)
    assert [request.url.path for request in seen] == ["/health"]


def test_a_missing_key_and_a_bad_one_are_told():
    for address, key in [("http://127.0.0.1:1", ""), ("", "msk_k")]:
        with pytest.raises(errors.MusterError, match="MUSTER_API_KEY"):
            Client(address, key)
    with pytest.raises(errors.MusterError, match="no key has"):
        Client("http://127.0.0.1:1", "msk k")


def test_a_signed_url_gets_no_key():
    file = {"id": "11111111-2222-4333-8444-555555555555", "created_at": NOW, "expires_at": NOW, "name": "n"}
    file |= {"download_url": "https://bucket.example/n", "upload_url": "https://bucket.example/n", "complete": True}
    file |= {"sha256": hashlib.sha256(b"content").hexdigest()}
    client, seen = answering(httpx.Response(200, content=b"con"), httpx.Response(200, content=b"content"))
    view = decode(models.FileView, file)
    with pytest.raises(errors.Damaged):
        client.download(view, "/tmp/never")
    assert "authorization" not in seen[0].headers and not Path("/tmp/never").exists()


def test_the_client_with_await_does_the_same():
    ok = httpx.Response(200, json={"account": "a", "files": 0, "jobs": 0, "keys": 1, "open_jobs": 0})

    async def ask():
        transport = httpx.MockTransport(lambda request: ok)
        async with AsyncClient("http://127.0.0.1:1", "msk_k", http=httpx.AsyncClient(transport=transport)) as client:
            return (await client.account()).keys

    assert asyncio.run(ask()) == 1

"""Makes tests/vectors/python.json: messages and signed texts as ComputeHorde's own code prints them.

Run with a Python that has compute-horde 0.0.27 (install it with --no-deps beside its dependencies) and
compute-horde-sdk 0.0.18: `python tests/python/make_vectors.py > tests/vectors/python.json`.
Names: `X` is the exact frame, `X_blob` the text that is signed. Keys are those of //Validator, //Miner and //User.
"""
import datetime, json, sys

import bittensor
from compute_horde.fv_protocol.facilitator_requests import V0JobCheated
from compute_horde.protocol_consts import *
from compute_horde.protocol_messages import *
from compute_horde.receipts.schemas import *
from compute_horde.fv_protocol.validator_requests import *
from compute_horde.utils import canonical_json
from compute_horde_core.volume import *
from compute_horde_core.output_upload import *

V, M, U = (bittensor.Keypair.create_from_uri(f"//{n}") for n in ("Validator", "Miner", "User"))
JOB = "11111111-2222-4333-8444-555555555555"
T = datetime.datetime(2026, 1, 21, 12, 34, 56, 789012, tzinfo=datetime.UTC)
who = dict(job_uuid=JOB, miner_hotkey=M.ss58_address, validator_hotkey=V.ss58_address, timestamp=T)
out = {"keys": {"validator": V.ss58_address, "miner": M.ss58_address, "user": U.ss58_address}}


def put(name, message):
    out[name] = message.model_dump_json()
    assert type(message).model_validate_json(out[name]) == message


def sign(key, blob):
    return "0x" + key.sign(blob.encode()).hex()


put("V0VolumesReadyRequest", V0VolumesReadyRequest(job_uuid=JOB))
put("V0MachineSpecsRequest", V0MachineSpecsRequest(job_uuid=JOB, specs={"specs": {"cpu": {"count": 2, "clocks": [2400.5]}, "os": "Debian"}}))
put("V0JobFailedRequest", V0JobFailedRequest(job_uuid=JOB, message="nöpe", reason=JobFailureReason.NONZERO_RETURN_CODE, stage=JobStage.EXECUTION, docker_process_exit_status=3, docker_process_stdout="a\n", docker_process_stderr="b\u2028", context={"k": [1, None, True]}))
put("V0MainHotkeyMessage_answer", V0MainHotkeyMessage(main_hotkey=M.ss58_address))
for code in UnauthorizedError.Code:
    put(f"UnauthorizedError_{code.value}", UnauthorizedError(code=code, details="d"))
put("V0ExecutorFailedRequest", V0ExecutorFailedRequest(job_uuid=JOB))
put("V0StreamingJobNotReadyRequest", V0StreamingJobNotReadyRequest(job_uuid=JOB))
for rejection in JobRejectionReason:
    put(f"V0DeclineJobRequest_{rejection.value}", V0DeclineJobRequest(job_uuid=JOB, message="m", reason=rejection))
for reason in HordeFailureReason:
    put(f"V0HordeFailedRequest_{reason.value}", V0HordeFailedRequest(job_uuid=JOB, reported_by=JobParticipantType.MINER, message="m", reason=reason))

finished = JobFinishedReceiptPayload(**who, time_started=T.replace(microsecond=0), time_took_us=1234567, score_str="20.000000", block_numbers=[5136476, 2**32])
accepted = JobAcceptedReceiptPayload(**who, time_accepted=T, ttl=65)
started = JobStartedReceiptPayload(**who, executor_class="always_on.test", is_organic=True, ttl=7)
for name, receipt in (("started", started), ("accepted", accepted), ("finished", finished)):
    blob = receipt.blob_for_signing()
    out[f"receipt_{name}_blob"] = blob
    put(f"receipt_{name}", Receipt(payload=receipt, validator_signature=sign(V, blob), miner_signature=sign(M, blob)))
put("V0JobFinishedReceiptRequest", V0JobFinishedReceiptRequest(payload=finished, signature=sign(V, finished.blob_for_signing())))

volumes = {
    "inline": InlineVolume(contents="UEsFBg=="),
    "zip_url": ZipUrlVolume(contents="https://x/y.zip", relative_path="z"),
    "single_file": SingleFileVolume(url="https://x/y", relative_path="a/b"),
    "huggingface": HuggingfaceVolume(repo_id="a/b", allow_patterns=["*.json", "*.bin"], relative_path="hf"),
    "huggingface_one": HuggingfaceVolume(repo_id="a/b", allow_patterns="*.json", repo_type="model", revision="main", token="t"),
}
uploads = {
    "zip_post": ZipAndHttpPostUpload(url="https://x", form_fields={"b": "2", "a": "1"}),
    "zip_put": ZipAndHttpPutUpload(url="https://x"),
    "file_post": SingleFilePostUpload(url="https://x", form_fields={"b": "2"}, relative_path="o", signed_headers={"z": "1", "y": "2"}),
    "file_put": SingleFilePutUpload(url="https://x", relative_path="o"),
}
volumes["multi"] = MultiVolume(volumes=list(volumes.values()))
uploads["multi"] = MultiUpload(uploads=[uploads["file_post"], uploads["file_put"]], system_output=uploads["zip_put"])
for preset, (kind, upload) in zip(("none", "nvidia_all", "none", "none", "none"), uploads.items()):
    put(f"V0JobRequest_upload_{kind}", V0JobRequest(job_uuid=JOB, executor_class="always_on.test", docker_image="i", docker_run_options_preset=preset, docker_run_cmd=[], env={"B": "ż", "A": ""}, output_upload=upload))
for kind, volume in volumes.items():
    initial = V0InitialJobRequest(job_uuid=JOB, executor_class="always_on.test", volume=volume, job_started_receipt_payload=started, job_started_receipt_signature=sign(V, started.blob_for_signing()))
    text = json.loads(initial.model_dump_json())
    text.pop("validator_signature")
    out[f"V0InitialJobRequest_volume_{kind}"] = json.dumps(text, separators=(",", ":"), ensure_ascii=False)
    out[f"V0InitialJobRequest_volume_{kind}_blob"] = initial.blob_for_signing()
    if kind == "multi":
        put("V0InitialJobRequest_signed", initial.signed(V))
request = V0JobRequest(job_uuid=JOB, executor_class="always_on.test", docker_image="i", docker_run_options_preset="none", docker_run_cmd=["sh", "-c", "echo \"é😀\x7f\""], env={"B": "2", "A": "1"}, artifacts_dir="/artifacts").signed(V)
put("V0JobRequest_signed", request)
out["V0JobRequest_signed_blob"] = request.blob_for_signing()
foreign = json.loads(request.model_dump_json(exclude={"validator_signature"})) | {"from_the_future": {"float": 1e16, "small": 1e-07, "int": 2**63, "z": [-0.0, 1.5]}}
out["V0JobRequest_future_blob"] = canonical_json(foreign)
out["V0JobRequest_future"] = json.dumps({"validator_signature": sign(V, canonical_json(foreign))} | foreign)

put("JobStatusUpdate_null", JobStatusUpdate(uuid=JOB, status=JobStatus.RECEIVED))
put("JobStatusUpdate_rejected", JobStatusUpdate(uuid=JOB, status=JobStatus.REJECTED, metadata=JobStatusMetadata(job_rejection_details=JobRejectionDetails(rejected_by=JobParticipantType.VALIDATOR, reason=JobRejectionReason.NO_MINER_FOR_JOB, message="m", context={"a": 1}))))
put("JobStatusUpdate_failed", JobStatusUpdate(uuid=JOB, status=JobStatus.FAILED, metadata=JobStatusMetadata(job_failure_details=JobFailureDetails(reason=JobFailureReason.TIMEOUT, stage=JobStage.EXECUTION, message="m", docker_process_exit_status=137, docker_process_stdout="o", docker_process_stderr="e"))))
put("JobStatusUpdate_horde_failed", JobStatusUpdate(uuid=JOB, status=JobStatus.HORDE_FAILED, metadata=JobStatusMetadata(horde_failure_details=HordeFailureDetails(reported_by=JobParticipantType.MINER, reason=HordeFailureReason.EXECUTOR_DISCONNECTED, message="m"), extra_field={"x": 1})))
for status in JobStatus:
    put(f"JobStatusUpdate_status_{status.value}", JobStatusUpdate(uuid=JOB, status=status))
signature = dict(signature_type="bittensor", signatory=U.ss58_address, timestamp_ns=1795237786175244114, signature="AAAA" * 21 + "AA==", signature_scope="FullRequest")
put("V0JobCheated", V0JobCheated(signature=signature, job_uuid=JOB, trusted_job_uuid=JOB, details={"a": None}))
nonce = "0123456789abcdef0123456789abcdef:1tVw4q:sig"
out["login_nonce"], out["login_signature"] = nonce, U.sign(nonce.encode()).hex()
json.dump(out, sys.stdout, indent=1, ensure_ascii=False)
print()

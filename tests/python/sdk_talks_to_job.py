#!/usr/bin/env python3
"""Talks to a streaming job as a user of ComputeHorde's SDK does: with the certificate that the SDK makes for a job.

Prints the client's certificate as JSON, reads one line {"url": "https://...", "certificate": "PEM"} on its input, then asks, and
prints what came: {"health": 200, "lines": [...], "stranger_refused": true, "end": 200}. No other server is trusted.
"""

import json
import os
import ssl
import sys
import tempfile
from pathlib import Path

import httpx
from compute_horde_core.certificate import generate_certificate, serialize_certificate
from cryptography.hazmat.primitives import serialization

PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))


def main() -> int:
    certificate, key = generate_certificate("127.0.0.1")
    pem = serialize_certificate(certificate)
    print(json.dumps({"certificate": pem.decode()}), flush=True)
    job = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "client.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        own.write_bytes(private + pem)
        context = ssl.create_default_context(cadata=job["certificate"])
        context.load_cert_chain(own)
        refused = False
        try:
            with httpx.Client(verify=ssl.create_default_context(cadata=job["certificate"])) as stranger:
                stranger.get(job["url"] + "/health")
        except httpx.HTTPError:
            refused = True
        with httpx.Client(verify=context, base_url=job["url"], timeout=PATIENCE) as direct:
            health = direct.get("/health").status_code
            with direct.stream("POST", "/v1/chat/completions", json={"messages": []}) as answer:
                lines = list(answer.iter_lines())
            end = direct.post("/terminate").status_code
    print(json.dumps({"health": health, "lines": lines, "stranger_refused": refused, "end": end}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

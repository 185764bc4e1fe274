"""Writes tests/vectors/seal.json: the bytes of a sealed session's statements, packed by hand from docs/protocol.md.

Run: python3 tests/python/make_seal_vectors.py > tests/vectors/seal.json
"""

import hashlib
import hmac
import json
import struct
import uuid


def u8(value):
    return struct.pack(">B", value)


def u16(value):
    return struct.pack(">H", value)


def u32(value):
    return struct.pack(">I", value)


def u64(value):
    return struct.pack(">Q", value)


def text(value):
    raw = value.encode()
    return u16(len(raw)) + raw


def maybe(value):
    return b"\0" if value is None else b"\1" + value


def ident(n):
    return uuid.UUID(int=n).bytes


def key(n):
    return bytes([n]) * 32


def sha(raw):
    return hashlib.sha256(raw).digest()


def leaf(chunk):
    return sha(b"\0" + chunk)


def root(leaves):
    if not leaves:
        return sha(b"")
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha(b"\1" + root(leaves[:split]) + root(leaves[split:]))


def chunks(raw):
    return root([leaf(raw[i : i + 4096]) for i in range(0, len(raw), 4096)])


SECOND = 1_000_000
START = 1_769_000_000 * SECOND


def attestation(model):
    return b"".join(
        [
            b"muster/attestation/1",
            ident(1),
            key(0x11),
            ident(2),
            ident(3),
            key(0x22),
            key(0x33),
            sha(b"server certificate"),
            sha(b"client certificate"),
            text("executor-7"),
            text("203.0.113.7:6006"),
            sha(b"image"),
            maybe(model),
            u8(0),
            u64(1_000),
            u64(3_000),
            u64(START),
            u64(START + 3600 * SECOND),
        ]
    )


def proof(attested, full):
    output = b"data: {\"choices\":[]}\n\n" * 500
    return b"".join(
        [
            b"muster/response-proof/1",
            ident(1),
            u64(0),
            sha(attested),
            ident(2),
            ident(3),
            key(0x33),
            maybe(sha(b"a client") if full else None),
            sha(attested),
            maybe(key(0x44) if full else None),
            maybe(key(0x55) if full else None),
            text("POST"),
            text("/v1/chat/completions"),
            u16(200),
            maybe(text("text/event-stream") if full else None),
            u8(0),
            sha(b'{"model":"m"}'),
            sha(output),
            u64(len(output)),
            chunks(output),
            u64(START + SECOND),
            maybe(u64(START + SECOND + 1) if full else None),
            u64(START + 2 * SECOND),
            maybe(sha(b"prompt") + u32(7) + sha(b"tokens") + u32(500) if full else None),
            maybe(sha(b"model") + sha(b"build") + sha(b"sampling") if full else None),
            u8(0 if full else 3),
        ]
    )


def close(attested, last):
    return b"".join(
        [
            b"muster/session-close/1",
            ident(1),
            sha(attested),
            u64(1),
            sha(last),
            u64(START + 3 * SECOND),
        ]
    )


def answer_leaf(n):
    return b"muster/answer-leaf/1" + ident(1) + u64(n) + sha(b"proof") + u64(500) + u64(1_500) + sha(b"a client")


def audit_share():
    return b"muster/audit-share/1" + key(0x22) + text("tiny") + u32(70_000)


def bucket():
    return b"".join(
        [
            b"muster/audit-bucket/1",
            sha(b"genesis"),
            u16(12),
            key(0x33),
            u64(4_321),
            u64(3),
            root([leaf(answer_leaf(n)) for n in range(3)]),
            sha(b"the header before"),
            u64(1),
            leaf(audit_share()),
            sha(b"own prompts"),
        ]
    )


def gateway_nonce(client_nonce):
    facts = sha(b"attestation") + sha(b"a client") + maybe(client_nonce) + sha(b"request") + u64(7)
    return hmac.new(key(0x66), b"muster/gateway-nonce/1" + facts, hashlib.sha256).digest()


def answer_seed(client_nonce):
    return sha(b"muster/answer-seed/1" + maybe(client_nonce) + sha(b"request") + key(0x55))


if __name__ == "__main__":
    whole = attestation(sha(b"model"))
    response = proof(whole, True)
    print(
        json.dumps(
            {
                "attestation": whole.hex(),
                "attestation_without_model": attestation(None).hex(),
                "proof": response.hex(),
                "proof_without_options": proof(whole, False).hex(),
                "close": close(whole, response).hex(),
                "answer_leaf": answer_leaf(2).hex(),
                "audit_share": audit_share().hex(),
                "bucket": bucket().hex(),
                "draw_message": (sha(b"genesis") + u16(12) + u64(4_321) + sha(b"block")).hex(),
                "gateway_nonce": gateway_nonce(key(0x44)).hex(),
                "answer_seed": answer_seed(key(0x44)).hex(),
                "answer_seed_without_clients": answer_seed(None).hex(),
                "gateway_nonce_without_clients": gateway_nonce(None).hex(),
                "chunk_roots": [
                    {"length": n, "root": chunks(bytes(i % 251 for i in range(n))).hex()}
                    for n in (0, 1, 4095, 4096, 4097, 12288, 20481)
                ],
            },
            indent=2,
        )
    )

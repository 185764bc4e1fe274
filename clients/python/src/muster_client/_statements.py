"""The signed statements of a session, read from their bytes; docs/sealed-sessions.md has their layouts."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import uuid
from dataclasses import dataclass

from .errors import NotProven

_SIGNATURE = 64
_MAX_ENVELOPE = 64 * 1024
_SCHEMES = ("raw-http", "text")
_ENDS = ("completed", "engine-failed", "engine-silent", "client-gone", "oversize", "session-closed")


@dataclass(frozen=True)
class Envelope:
    """A statement's bytes with their signature."""

    statement: bytes
    signature: bytes

    @property
    def digest(self) -> bytes:
        """The SHA-256 by which other statements refer to this one."""
        return hashlib.sha256(self.statement).digest()


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """The miner's statement about a session. Times are microseconds since 1970; prices are rao for a million tokens."""

    session: uuid.UUID
    session_key: bytes
    job: uuid.UUID
    attempt: uuid.UUID
    miner: bytes
    audience: bytes
    executor: str
    address: str
    image: bytes
    model: bytes | None
    scheme: str
    input_price: int
    output_price: int
    not_before: int
    not_after: int


@dataclass(frozen=True, kw_only=True)
class ResponseProof:
    """The session's statement about one answer. Times are microseconds since 1970."""

    session: uuid.UUID
    sequence: int
    previous: bytes
    job: uuid.UUID
    attempt: uuid.UUID
    audience: bytes
    client: bytes | None
    attestation: bytes
    client_nonce: bytes | None
    gateway_nonce: bytes | None
    method: str
    path: str
    status: int
    content_type: str | None
    scheme: str
    input: bytes
    output: bytes
    output_bytes: int
    started: int
    first_byte: int | None
    ended: int
    end: str


class _Reader:
    """Takes the fields of a statement, one after another."""

    def __init__(self, data: bytes, tag: bytes) -> None:
        if not data.startswith(tag):
            raise NotProven(f"the statement is no {tag.decode()}")
        self.data, self.at = data, len(tag)

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise NotProven("a statement ends too early")
        self.at, taken = end, self.data[self.at : end]
        return taken

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)

    def key(self) -> bytes:
        return self.take(32)

    def id(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.take(16))

    def text(self) -> str:
        try:
            return self.take(self.number(">H")).decode()
        except UnicodeDecodeError as error:
            raise NotProven("a text of a statement is no UTF-8") from error

    def is_there(self) -> bool:
        byte = self.take(1)
        if byte not in (b"\x00", b"\x01"):
            raise NotProven("a statement has a field that is neither there nor absent")
        return byte == b"\x01"

    def name(self, names: tuple[str, ...]) -> str:
        number = self.number(">B")
        if number >= len(names):
            raise NotProven("a statement is of a newer form than this package knows")
        return names[number]

    def end(self) -> None:
        if self.at != len(self.data):
            raise NotProven("a statement goes on behind its last field")


def open_envelope(text: str) -> Envelope:
    """Reads the text form of a statement: base64 of its bytes and of the 64 bytes of the signature."""
    try:
        data = base64.b64decode(text.strip(), validate=True) if len(text) <= _MAX_ENVELOPE else b""
    except binascii.Error:
        data = b""
    if len(data) <= _SIGNATURE:
        raise NotProven("not a signed statement: it is base64 of a statement and 64 bytes of signature")
    return Envelope(data[:-_SIGNATURE], data[-_SIGNATURE:])


def read_attestation(data: bytes) -> Attestation:
    """Reads the miner's statement."""
    read = _Reader(data, b"muster/attestation/1")
    session, session_key, job, attempt = read.id(), read.key(), read.id(), read.id()
    miner, audience = read.key(), read.key()
    read.take(64)  # The digests of the two certificates, which bind the connection of the gateway.
    executor, address, image = read.text(), read.text(), read.key()
    model = read.key() if read.is_there() else None
    scheme = read.name(_SCHEMES)
    input_price, output_price = read.number(">Q"), read.number(">Q")
    not_before, not_after = read.number(">q"), read.number(">q")
    read.end()
    return Attestation(
        session=session,
        session_key=session_key,
        job=job,
        attempt=attempt,
        miner=miner,
        audience=audience,
        executor=executor,
        address=address,
        image=image,
        model=model,
        scheme=scheme,
        input_price=input_price,
        output_price=output_price,
        not_before=not_before,
        not_after=not_after,
    )


def read_proof(data: bytes) -> ResponseProof:
    """Reads the session's statement about an answer."""
    read = _Reader(data, b"muster/response-proof/1")
    session, sequence, previous = read.id(), read.number(">Q"), read.key()
    job, attempt, audience = read.id(), read.id(), read.key()
    client = read.key() if read.is_there() else None
    attestation = read.key()
    client_nonce = read.key() if read.is_there() else None
    gateway_nonce = read.key() if read.is_there() else None
    method, path, status = read.text(), read.text(), read.number(">H")
    content_type = read.text() if read.is_there() else None
    scheme = read.name(_SCHEMES)
    input_digest, output = read.key(), read.key()
    output_bytes = read.number(">Q")
    read.key()  # The root over chunks, with which a beginning alone is checked.
    started = read.number(">q")
    first_byte = read.number(">q") if read.is_there() else None
    ended = read.number(">q")
    if read.is_there():
        read.take(32 + 4 + 32 + 4)  # Digests and counts of token ids.
    if read.is_there():
        read.take(96)  # What the engine states of itself.
    end = read.name(_ENDS)
    read.end()
    return ResponseProof(
        session=session,
        sequence=sequence,
        previous=previous,
        job=job,
        attempt=attempt,
        audience=audience,
        client=client,
        attestation=attestation,
        client_nonce=client_nonce,
        gateway_nonce=gateway_nonce,
        method=method,
        path=path,
        status=status,
        content_type=content_type,
        scheme=scheme,
        input=input_digest,
        output=output,
        output_bytes=output_bytes,
        started=started,
        first_byte=first_byte,
        ended=ended,
        end=end,
    )

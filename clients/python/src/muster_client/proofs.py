"""Proofs of streamed answers: a record of what was asked and answered, and its check without any connection.

A transport stands between OpenAI's client and the network, and keeps the bytes of each answer:

    import httpx2, openai
    from muster_client import Client, proofs

    muster = Client("https://facilitator.example.org", api_key="msk_…")
    seen = proofs.RecordingTransport(httpx2.HTTPTransport())
    models = openai.OpenAI(
        base_url=muster.openai_url, api_key=muster.api_key, http_client=httpx2.Client(transport=seen)
    )
    answer = models.chat.completions.create(model="parrot", messages=[{"role": "user", "content": "one two"}])
    record = muster.prove(seen.last)
    record.save("answer.json")

Signatures are checked by the package `py-sr25519-bindings`: `pip install muster-client[proofs]`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ._body_digest import hash_answer, hash_request, media_type
from ._statements import Attestation, Envelope, ResponseProof, open_envelope, read_attestation, read_proof
from .errors import MusterError, NotProven

__all__ = [
    "AsyncRecordingTransport",
    "Attestation",
    "Exchange",
    "ProofRecord",
    "ProvenAnswer",
    "RecordingTransport",
    "ResponseProof",
    "verify",
]

#: By how much the clocks of two parties may differ.
SKEW = timedelta(seconds=30)
#: The longest answer that is kept to be checked, in bytes.
MAX_ANSWER = 64 * 1024 * 1024
#: Answers that a transport keeps, and their bytes.
KEPT, KEPT_BYTES = 64, 256 * 1024 * 1024
#: The longest comment line at the end of a stream, in bytes.
_MAX_LINE = 64 * 1024
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _now() -> datetime:
    return datetime.now(UTC)


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


@dataclass
class Exchange:
    """A request and its answer, byte for byte, as the client saw them."""

    method: str
    path: str
    """With the query."""
    request: bytes
    client_nonce: str
    """64 hex digits, which the session signed with the answer."""
    asked_at: datetime
    status: int = 0
    content_type: str | None = None
    id: str = ""
    """The answer's id, by which the facilitator finds its proof."""
    response: bytearray = field(default_factory=bytearray)
    """With Muster's comment lines."""
    ended_at: datetime | None = None
    """`None` while the answer comes."""
    is_whole: bool = True
    """Whether the whole answer was kept."""

    def transcript(self, below: str = "") -> dict[str, Any]:
        """As a record has it. `below` is the path of a facilitator that does not stand at the root of its host."""
        if self.ended_at is None or not self.is_whole:
            raise NotProven("the answer was not read to its end, so it cannot be checked")
        return {
            "method": self.method,
            "path": self.path.removeprefix(below),
            "request": base64.b64encode(self.request).decode(),
            "status": self.status,
            "content_type": self.content_type,
            "response": base64.b64encode(bytes(self.response)).decode(),
            "client_nonce": self.client_nonce,
            "asked_at": _stamp(self.asked_at),
            "ended_at": _stamp(self.ended_at),
        }


@dataclass(frozen=True)
class ProvenAnswer:
    """The signed statements of an answer: that of its session, and that of the session's miner."""

    proof: ResponseProof
    attestation: Attestation
    has_words: bool
    """Whether the question and the answer were compared, byte for byte."""


@dataclass
class ProofRecord:
    """A proof with the words that it proves, as `muster chat --save` and `muster proof verify` know it."""

    value: dict[str, Any]
    """The JSON of the record."""

    @classmethod
    def load(cls, path: str | Path) -> ProofRecord:
        """Reads a record that was saved."""
        try:
            value = json.loads(Path(path).read_text())
        except ValueError:
            value = None
        if not isinstance(value, dict) or "attestation" not in value:
            raise NotProven(f"{path} is no record of a proof")
        return cls(value)

    def save(self, path: str | Path) -> None:
        """Writes the record, with which anybody can check the answer: it holds the question and the answer."""
        Path(path).write_text(json.dumps(self.value, indent=2) + "\n")

    def verify(self) -> ProvenAnswer:
        """Checks both signatures, the parties, the request and the answer. Raises `NotProven`."""
        return verify(self.value)


def public_key(address: str) -> bytes:
    """The key of an ss58 address. Raises `NotProven` if it is none."""
    number = 0
    for letter in address:
        digit = _ALPHABET.find(letter)
        if digit < 0 or len(address) > 64:
            raise NotProven(f"{address[:80]!r} is no address")
        number = number * 58 + digit
    data = number.to_bytes(max(35, (number.bit_length() + 7) // 8), "big")
    checked = hashlib.blake2b(b"SS58PRE" + data[:-2], digest_size=64).digest()
    if len(data) != 35 or data[-2:] != checked[:2]:
        raise NotProven(f"{address[:80]!r} is no address")
    return data[1:33]


def _is_signed(key: bytes, envelope: Envelope) -> bool:
    try:
        import sr25519
    except ImportError as error:
        raise MusterError("checking signatures needs `pip install muster-client[proofs]`") from error
    try:
        return bool(sr25519.verify(envelope.signature, envelope.statement, key))
    except ValueError:
        # The bytes are no key, or no signature.
        return False


def verify(record: dict[str, Any]) -> ProvenAnswer:
    """Checks a record: the JSON of `GET /v1/proofs/{id}`, with the request and the answer as `words` or without.

    Raises `NotProven` with the first defect.
    """
    try:
        return _verify(record)
    except (TypeError, ValueError, ArithmeticError) as error:
        # A record is another party's: its values may be of any type.
        raise NotProven(f"the record cannot be read: {error}") from error


def _verify(record: dict[str, Any]) -> ProvenAnswer:
    attested = open_envelope(str(record.get("attestation", "")))
    attestation = read_attestation(attested.statement)
    if not _is_signed(attestation.miner, attested):
        raise NotProven("the miner that the attestation names did not sign it")
    for name, key in (("miner", attestation.miner), ("validator", attestation.audience)):
        if public_key(str(record.get(name, ""))) != key:
            raise NotProven(f"the gateway names another {name} than the signed statements")
    if not record.get("proof"):
        raise NotProven(f"the answer came without a proof; its gateway says: {record.get('verdict')}")
    sealed = open_envelope(str(record["proof"]))
    if not _is_signed(attestation.session_key, sealed):
        raise NotProven("the session key did not sign this proof: it was altered, or is another session's")
    proof = read_proof(sealed.statement)
    nonce = record.get("nonce") or record.get("id")
    if proof.gateway_nonce is None or proof.gateway_nonce.hex() != nonce:
        raise NotProven("the gateway names another answer than the signed statements")
    _check_session(proof, attestation, attested.digest)
    words = record.get("words")
    if words is not None:
        _check_words(proof, words)
    return ProvenAnswer(proof, attestation, words is not None)


def _check_session(proof: ResponseProof, own: Attestation, digest: bytes) -> None:
    same = [
        ("session", proof.session == own.session),
        ("attestation", proof.attestation == digest),
        ("job", (proof.job, proof.attempt) == (own.job, own.attempt)),
        ("validator", proof.audience == own.audience),
        ("scheme of digests", proof.scheme == own.scheme),
    ]
    for name, is_same in same:
        if not is_same:
            raise NotProven(f"the proof is of another {name} than the miner attested")
    if proof.started < own.not_before or proof.ended > own.not_after:
        raise NotProven("the answer lies outside the time for which the miner attested the session")
    first = proof.started if proof.first_byte is None else proof.first_byte
    if not proof.started <= first <= proof.ended:
        raise NotProven("the proof's times run backwards")


def _check_words(proof: ResponseProof, words: dict[str, Any]) -> None:
    try:
        request = base64.b64decode(words["request"], validate=True)
        response = base64.b64decode(words["response"], validate=True)
        asked_at = datetime.fromisoformat(words["asked_at"])
        ended_at = datetime.fromisoformat(words["ended_at"])
        nonce = bytes.fromhex(words["client_nonce"]) if words.get("client_nonce") else None
        asked = {"the method": words["method"] == proof.method, "the path": words["path"] == proof.path}
        status, content_type = words["status"], words.get("content_type")
    except (KeyError, TypeError, ValueError) as error:
        raise NotProven(f"the record's request and answer cannot be read: {error}") from error
    if nonce != proof.client_nonce:
        raise NotProven("the proof carries another request's nonce")
    asked["the body"] = hash_request(proof.scheme, request) == proof.input
    output, length = hash_answer(proof.scheme, content_type, response)
    # A gateway whose client waits for a session sends its own head before it knows the session's.
    types = {media_type(content_type), media_type(proof.content_type)}
    answered = {
        "the status": status == proof.status,
        "the content type": content_type == proof.content_type or types == {"text/event-stream"},
        "the length": length == proof.output_bytes,
        "the body": output == proof.output,
    }
    for party, parts in (("request", asked), ("answer", answered)):
        for name, is_same in parts.items():
            if not is_same:
                raise NotProven(f"the proof is of another {party}: {name} differs")
    off = max(asked_at - _time(proof.started), _time(proof.ended) - ended_at)
    if off > SKEW:
        raise NotProven(f"the proof's times are {off.total_seconds():.0f} s off the time at which it was seen")


class _Exchanges:
    """The newest exchanges of a transport, by the ids of their answers."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Exchange] = OrderedDict()

    def begin(self, request: Any, body: bytes) -> Exchange:
        """Gives a request its nonce, before it is sent."""
        nonce = secrets.token_hex(32)
        request.headers["muster-client-nonce"] = nonce
        # The digest is of the body as the session sent it.
        request.headers["accept-encoding"] = "identity"
        path = request.url.raw_path.decode()
        return Exchange(request.method, path, body, nonce, _now())

    def answered(self, exchange: Exchange, response: Any) -> None:
        """Keeps an exchange once its answer has begun."""
        exchange.status = response.status_code
        exchange.content_type = response.headers.get("content-type")
        exchange.id = response.headers.get("x-request-id", "")
        self._kept[exchange.id] = exchange
        while len(self._kept) > KEPT or sum(len(one.response) for one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)

    def of_answer(self, answer_id: str) -> Exchange:
        """The exchange whose answer has this id: the header `x-request-id`."""
        try:
            return self._kept[answer_id]
        except KeyError:
            raise NotProven(f"this transport has not seen the answer {answer_id[:80]}") from None

    @property
    def last(self) -> Exchange:
        """The newest exchange."""
        if not self._kept:
            raise NotProven("this transport has not seen an answer")
        return next(reversed(self._kept.values()))


def _take(exchange: Exchange, piece: bytes) -> None:
    if len(exchange.response) + len(piece) > MAX_ANSWER:
        exchange.is_whole = False
    else:
        exchange.response += piece


def _lacks_its_end(exchange: Exchange) -> bool:
    """Whether the reader stopped at the last event of a stream, which the proof follows."""
    return exchange.ended_at is None and b"\ndata: [DONE]" in exchange.response[-_MAX_LINE:]


def _stream_class(stream: Any, name: str) -> type:
    """The base of a library's streams: httpx and httpx2 have one each, and take no other."""
    return next(base for base in type(stream).__mro__ if base.__name__ == name)


class RecordingTransport(_Exchanges):
    """A transport of httpx or httpx2 that keeps each answer, and passes it on as it comes."""

    def __init__(self, inner: Any) -> None:
        """Sends by the transport `inner`, such as `httpx2.HTTPTransport()`."""
        super().__init__()
        self._inner = inner

    def handle_request(self, request: Any) -> Any:
        """Sends a request."""
        exchange = self.begin(request, request.read())
        response = self._inner.handle_request(request)
        self.answered(exchange, response)
        inner = response.stream

        pieces = iter(inner)

        class Recorded(_stream_class(inner, "SyncByteStream")):  # type: ignore[misc]
            def __iter__(self) -> Any:
                for piece in pieces:
                    _take(exchange, piece)
                    yield piece
                exchange.ended_at = _now()

            def close(self) -> None:
                try:
                    if _lacks_its_end(exchange):
                        for piece in pieces:
                            _take(exchange, piece)
                        exchange.ended_at = _now()
                except Exception:
                    # The client has its answer. Without the proof's line it cannot be checked, and `prove` says so.
                    exchange.is_whole = False
                finally:
                    inner.close()

        response.stream = Recorded()
        return response

    def close(self) -> None:
        """Closes the inner transport."""
        self._inner.close()

    def __enter__(self) -> RecordingTransport:
        """Opens the inner transport."""
        self._inner.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        """Closes the inner transport."""
        self._inner.__exit__(*reason)


class AsyncRecordingTransport(_Exchanges):
    """As `RecordingTransport`, for a client with `await`."""

    def __init__(self, inner: Any) -> None:
        """Sends by the transport `inner`, such as `httpx2.AsyncHTTPTransport()`."""
        super().__init__()
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        """Sends a request."""
        exchange = self.begin(request, await request.aread())
        response = await self._inner.handle_async_request(request)
        self.answered(exchange, response)
        inner = response.stream

        pieces = aiter(inner)

        class Recorded(_stream_class(inner, "AsyncByteStream")):  # type: ignore[misc]
            async def __aiter__(self) -> Any:
                async for piece in pieces:
                    _take(exchange, piece)
                    yield piece
                exchange.ended_at = _now()

            async def aclose(self) -> None:
                try:
                    if _lacks_its_end(exchange):
                        async for piece in pieces:
                            _take(exchange, piece)
                        exchange.ended_at = _now()
                except Exception:
                    # The client has its answer. Without the proof's line it cannot be checked, and `prove` says so.
                    exchange.is_whole = False
                finally:
                    await inner.aclose()

        response.stream = Recorded()
        return response

    async def aclose(self) -> None:
        """Closes the inner transport."""
        await self._inner.aclose()

    async def __aenter__(self) -> AsyncRecordingTransport:
        """Opens the inner transport."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *reason: Any) -> None:
        """Closes the inner transport."""
        await self._inner.__aexit__(*reason)

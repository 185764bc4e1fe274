"""Digests of requests and answers, as a session signs them; docs/sealed-sessions.md has the two schemes."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from .errors import NotProven

_MAX_JSON = 4 * 1024 * 1024
_MAX_CHOICES = 128
_PREFIX = b": muster-"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|\Z)")


def media_type(content_type: str | None) -> str:
    """The type without its parameters."""
    return (content_type or "").split(";")[0].strip().lower()


def strip_comments(body: bytes) -> bytes:
    """The bytes of an event stream without Muster's comment lines, and without the line feed before the proof."""
    kept = bytearray()
    for match in _LINE.finditer(body):
        line = match.group()
        if not line.startswith(_PREFIX):
            kept += line
        elif line.startswith(_PREFIX + b"proof ") and kept.endswith(b"\n"):
            kept.pop()
    return bytes(kept)


def hash_answer(scheme: str, content_type: str | None, body: bytes) -> tuple[bytes, int]:
    """The digest and the length of an answer's body, as its session counts them."""
    kind = media_type(content_type)
    if kind == "text/event-stream":
        body = strip_comments(body)
    digest = _hash_texts(kind, body) if scheme == "text" else None
    return digest or hashlib.sha256(body).digest(), len(body)


def hash_request(scheme: str, body: bytes) -> bytes:
    """The digest of a request's body."""
    digest = _hash_asked(body) if scheme == "text" else None
    return digest or hashlib.sha256(body).digest()


def _hash_asked(body: bytes) -> bytes | None:
    asked = _object(body)
    if asked is None:
        return None
    messages, prompt = asked.get("messages"), asked.get("prompt")
    prompt = asked.get("input") if prompt is None else prompt
    try:
        if messages is not None:
            listed = [_member(one) for one in _list(messages)]
            texts = [text for one in listed for text in (_text(one.get("role", "")), _content(one.get("content")))]
        elif isinstance(prompt, str):
            texts = [prompt]
        elif isinstance(prompt, list):
            texts = [_only_text(one) for one in prompt]
        else:
            return None
        parts = [len(text.encode()).to_bytes(4, "big") + text.encode() for text in texts]
    except (_Unlike, UnicodeEncodeError):
        return None
    return hashlib.sha256(b"".join(parts)).digest()


class _Unlike(Exception):
    """A document whose field has another type than OpenAI's: it holds no text, as the session's own reader has it."""


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _Unlike
    return value


def _member(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Unlike
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unlike
    return value


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "".join(_only_text(part.get("text") if part.get("type") == "text" else None) for part in content)
    return _only_text(None)


def _only_text(value: Any) -> str:
    """A text. What is none is signed by the bytes of its JSON, which are not kept here."""
    if not isinstance(value, str):
        raise NotProven(
            "the request has parts that are not text, whose digest this package does not know; "
            "`muster proof verify` checks such a record"
        )
    return value


def _hash_texts(kind: str, body: bytes) -> bytes | None:
    if kind == "text/event-stream":
        lines = re.split(rb"[\r\n]", body)
        documents = [line[5:] for line in lines if line.startswith(b"data:") and len(line) <= _MAX_JSON]
    elif kind == "application/json" and len(body) <= _MAX_JSON:
        documents = [body]
    else:
        return None
    choices: dict[int, Any] = {}
    for document in documents:
        try:
            said = _said(_object(document) or {})
        except (_Unlike, UnicodeEncodeError):
            continue
        for index, text in said:
            if index in choices or len(choices) < _MAX_CHOICES:
                choices.setdefault(index, hashlib.sha256()).update(text)
    if not choices:
        return None
    parts = (index.to_bytes(4, "big") + text.digest() for index, text in sorted(choices.items()))
    return hashlib.sha256(b"".join(parts)).digest()


def _said(answer: dict[str, Any]) -> list[tuple[int, bytes]]:
    """The index of each choice with its text."""
    said = []
    for choice in map(_member, _list(answer.get("choices", []))):
        index = choice.get("index", 0)
        if type(index) is not int or not 0 <= index < 1 << 32:
            raise _Unlike
        found = [choice.get("text")]
        for message in (choice.get("delta"), choice.get("message")):
            if message is None:
                continue
            found += [_member(message).get(name) for name in ("reasoning_content", "content", "refusal")]
            calls = message.get("tool_calls")
            for call in map(_member, _list([] if calls is None else calls)):
                function = call.get("function")
                called = {} if function is None else _member(function)
                found += [called.get("name"), called.get("arguments")]
        said.append((index, "".join(_text(text) for text in found if text is not None).encode()))
    return said


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

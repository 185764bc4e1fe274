"""Reads what a facilitator answers, apart from the way on which it came."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from .errors import MusterError, NotFound, Refused, Unauthorised, Unreadable, Unwell

_LONGEST = 2_000
_INTERFACES = ("/api/v1", "/api", "/v1")
_LOCAL = ("127.0.0.1", "localhost", "::1")


def base_of(address: str) -> str:
    """The URL of a facilitator as people write it: without a scheme for this machine, or with `/v1` at its end."""
    text = address.strip()
    wrong = MusterError(f"{address!r} is no address of a facilitator, such as https://facilitator.example.org")
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not parts.scheme:
        # A key is never sent in the clear because a scheme was forgotten, but to this machine itself.
        is_local = host in _LOCAL
        if not is_local and port is not None:
            raise MusterError(f"the address {text} has no scheme; write https://{text} or http://{text}")
        text = f"{'http' if is_local else 'https'}://{text}"
    is_odd = parts.scheme not in ("", "http", "https") or not host or "@" in parts.netloc
    if is_odd or parts.query or parts.fragment:
        raise wrong
    text = text.rstrip("/")
    for path in _INTERFACES:
        text = text.removesuffix(path)
    return text.rstrip("/")


def reason_of(body: bytes) -> str:
    """The words of an error: `{"detail"}`, `{"error"}`, OpenAI's, a list, fields with reasons, or the text."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text[:_LONGEST]
    if isinstance(value, dict):
        error = value.get("error")
        words = [value.get("detail"), error, error.get("message") if isinstance(error, dict) else None]
        for found in words:
            if isinstance(found, str) and found:
                return found
        fields = ((name, why[0] if isinstance(why, list) and why else why) for name, why in value.items())
        return "; ".join(f"{name}: {why}" for name, why in fields)[:_LONGEST]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return value[0]
    return text[:_LONGEST]


def error_of(status: int, body: bytes) -> MusterError:
    """The error for an answer that is no success."""
    reason = reason_of(body)
    if status == 429 or status >= 500:
        return Unwell(status, reason)
    kinds: dict[int, type[Refused]] = {401: Unauthorised, 404: NotFound}
    return kinds.get(status, Refused)(status, reason)


def json_of(body: bytes, base: str) -> Any:
    """The JSON of an answer."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise Unreadable(f"the answer of {base} is no JSON; is that a facilitator?") from error

"""Messages about the ends of jobs, signed as Standard Webhooks (https://www.standardwebhooks.com).

from muster_client import webhooks

message = webhooks.verify(secret, request.headers, request.body)
print(message["data"]["job"], message["data"]["status"])
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from .errors import InvalidMessage

_PREFIX = "whsec_"
#: Bytes; with an empty secret anybody could sign.
_SHORTEST_KEY = 24
#: How many seconds a message may be older or newer than this machine's clock.
TOLERANCE = 300


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> dict[str, Any]:
    """Checks that a message was signed with the account's `secret` lately, and reads it.

    The same message may come again: its header `webhook-id` is the same then. `now` are the seconds since 1970 that
    count, those of this machine's clock if left out.

    Raises `InvalidMessage`.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        name, stamp = found["webhook-id"], found["webhook-timestamp"]
        signatures = found["webhook-signature"].split()
        age = (time.time() if now is None else now) - float(int(stamp))
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except KeyError as missing:
        raise InvalidMessage(f"the message has no header {missing.args[0]}") from None
    except (ValueError, ArithmeticError, binascii.Error) as error:
        raise InvalidMessage("the secret or the message's time cannot be read") from error
    if len(key) < _SHORTEST_KEY:
        raise InvalidMessage("the secret is none: it begins with whsec_, as the account's webhook was set with it")
    if abs(age) > tolerance:
        raise InvalidMessage(f"the message was sent {age:.0f} s ago by this machine's clock")
    signed = hmac.digest(key, f"{name}.{stamp}.".encode() + body, hashlib.sha256)
    expected = "v1," + base64.b64encode(signed).decode()
    if not any(hmac.compare_digest(expected.encode(), one.encode()) for one in signatures):
        raise InvalidMessage("the message was not signed with this secret")
    try:
        message = json.loads(body)
    except ValueError as error:
        raise InvalidMessage("the message is no JSON") from error
    if not isinstance(message, dict):
        raise InvalidMessage("the message is no object")
    return message

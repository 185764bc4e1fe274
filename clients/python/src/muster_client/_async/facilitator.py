"""Requests to a facilitator in the name of an API key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx

from .. import _answers
from .._decode import decode, encode
from .._waiting import sleep_async
from ..errors import MusterError, NotFound, Unauthorised, Unreachable, Unwell

T = TypeVar("T")

#: How often a request that may be repeated is sent, and the pause before the second time; later ones double.
TRIES = 4
_FIRST_PAUSE = 0.25
#: The same for a submission, which is one job however often it is sent.
SUBMIT_TRIES = 8
_TIMEOUT = httpx.Timeout(20, connect=10)
#: An answer of many pieces may be silent for so long; a facilitator sends a comment more often.
_STREAM_TIMEOUT = httpx.Timeout(20, connect=10, read=60)
#: The parts of answers that this package understands, beyond those of ComputeHorde's clients.
_FEATURES = "terms, queue, results, webhooks, metrics, completion, output, non-finite-metrics, folders"


class AsyncFacilitator:
    """A facilitator, as one account reaches it."""

    def __init__(self, facilitator: str, api_key: str, http: httpx.AsyncClient | None) -> None:
        """Opens nothing yet."""
        if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise MusterError("the API key is empty or has characters that no key has; it begins with msk_")
        self.base = _answers.base_of(facilitator)
        self.api_key = api_key
        self._is_own = http is None
        self.http = http or httpx.AsyncClient(timeout=_TIMEOUT)
        self._headers = {"authorization": f"Bearer {api_key}", "muster-features": _FEATURES}

    async def aclose(self) -> None:
        """Closes the connections, but not those of a client that the user made."""
        if self._is_own:
            await self.http.aclose()

    async def get(self, kind: type[T], path: str, **query: Any) -> T:
        """Reads an object."""
        given = {name: value for name, value in query.items() if value is not None}
        return decode(kind, await self.send("GET", path, query=given, tries=TRIES))

    async def delete(self, path: str) -> None:
        """Deletes an object."""
        await self.send("DELETE", path, tries=TRIES)

    async def post(self, kind: type[T], path: str, body: Any, **options: Any) -> T:
        """Makes an object, and reads it."""
        return decode(kind, await self.send("POST", path, body=body, **options))

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = 1,
    ) -> Any:
        """Sends a request, and reads the JSON of its answer; `None` for an answer without a body.

        It is sent again where no answer came, `tries` times in all.
        """
        content = None if body is None else json.dumps(encode(body)).encode()
        sent = {**self._headers, **(headers or {})}
        if content is not None:
            sent["content-type"] = "application/json"
        pause, is_first = _FIRST_PAUSE, True
        while True:
            try:
                response = await self.request(method, self.base + path, content, sent, query)
                return _answers.json_of(response.content, self.base) if response.content else None
            except NotFound:
                # The first request may have deleted it, and only its answer was lost.
                if method == "DELETE" and not is_first:
                    return None
                raise
            except (Unreachable, Unwell):
                tries -= 1
                if tries <= 0:
                    raise
            is_first = False
            await sleep_async(pause)
            pause *= 2

    async def request(
        self,
        method: str,
        url: str,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> httpx.Response:
        """Sends one request, also to a signed URL, which gets no key."""
        try:
            response = await self.http.request(
                method, url, content=content, headers=headers, params=query or None, timeout=timeout
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failed(error) from error
        if not response.is_success:
            raise _answers.error_of(response.status_code, response.content)
        return response

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str] | None = None, *, with_key: bool = False
    ) -> AsyncIterator[httpx.Response]:
        """An answer that is read while it comes."""
        sent = {**(self._headers if with_key else {}), **(headers or {})}
        try:
            async with self.http.stream("GET", url, headers=sent, timeout=_STREAM_TIMEOUT) as response:
                if not response.is_success:
                    raise _answers.error_of(response.status_code, await response.aread())
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> MusterError:
        """The error for a request that got no answer."""
        if isinstance(error, httpx.InvalidURL):
            return MusterError(f"the address of the facilitator or of a file is none: {error}")
        return Unreachable(f"the facilitator at {self.base} does not answer: {str(error) or type(error).__name__}")

    async def features(self) -> set[str]:
        """The features that the facilitator knows; none for one of another make."""
        try:
            health = await self.send("GET", "/health", tries=TRIES)
        except (Unauthorised, Unwell, Unreachable):
            raise
        except MusterError:
            return set()
        found = health.get("features") if isinstance(health, dict) else None
        return {name for name in found or [] if isinstance(name, str)}

    async def require(self, needed: set[str]) -> None:
        """Fails if the facilitator lacks a feature: it would drop a part of the request in silence."""
        lacking = needed - await self.features() if needed else set()
        if lacking:
            names = ", ".join(sorted(lacking))
            raise MusterError(f"the facilitator at {self.base} does not know {names}, which this needs")

"""Everything that OpenAI's own client can do through our facilitator. Called with base URL, key and model; prints one JSON object."""

import asyncio
import json
import os
import sys
import time

import openai
from openai import AsyncOpenAI, OpenAI

base, key, model = sys.argv[1:4]
PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))
ASK = [{"role": "user", "content": "Say something."}]


def said(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def refused(call):
    try:
        call()
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        return {"class": type(error).__name__, "status": error.status_code, "code": body.get("code")}
    return None


async def in_async():
    async with AsyncOpenAI(base_url=base, api_key=key) as client:
        stream = await client.chat.completions.create(model=model, messages=ASK, max_tokens=8, stream=True)
        chunks = [chunk async for chunk in stream]
        both = await asyncio.gather(
            *(client.chat.completions.create(model=model, messages=ASK, max_tokens=4) for _ in range(3))
        )
        return said(chunks), len([one for one in both if one.choices[0].message.content is not None])


def used(client, **wish):
    """The tokens that the gateway counted of one answer."""
    raw = client.chat.completions.with_raw_response.create(model=model, messages=ASK, max_tokens=4, **wish)
    answer = raw.parse()
    if wish.get("stream"):
        list(answer)
    waited_until = time.monotonic() + PATIENCE
    while True:
        try:
            return client.get(f"/proofs/{raw.headers['x-request-id']}", cast_to=object)["usage"]
        except openai.NotFoundError:
            # The answer is stored a moment after its last byte.
            if time.monotonic() > waited_until:
                raise
            time.sleep(0.02)


def main():
    client = OpenAI(base_url=base, api_key=key, max_retries=0, timeout=PATIENCE)
    report = {"models": [one.id for one in client.models.list()]}
    report["model"] = client.models.retrieve(model).id
    # The first stream waits for a session to come up.
    stream = client.chat.completions.create(
        model=model, messages=ASK, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    report["stream"] = said(chunks)
    report["stream_usage"] = next((c.usage.completion_tokens for c in reversed(chunks) if c.usage), None)
    raw = client.chat.completions.with_raw_response.create(model=model, messages=ASK, max_tokens=8)
    report["plain"] = raw.parse().choices[0].message.content
    report["id"] = raw.headers["x-request-id"]
    report["proof_header"] = "muster-proof" in raw.headers
    report["async"], report["gathered"] = asyncio.run(in_async())
    logprobs = client.chat.completions.create(
        model=model, messages=ASK, max_tokens=4, logprobs=True, top_logprobs=2
    ).choices[0].logprobs
    report["logprobs"] = len(logprobs.content) if logprobs and logprobs.content else 0
    # A document, a stream and a stream with its usage have one price, whatever else the request says.
    ways = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "user": "u" * 500}]
    report["used"] = [used(client, **way) for way in ways]
    # An abort in the middle: the next request is none the worse for it.
    stream = client.chat.completions.create(model=model, messages=ASK, max_tokens=200, stream=True)
    report["aborted"] = stream.response.headers["x-request-id"]
    next(iter(stream))
    stream.close()
    report["after_abort"] = client.chat.completions.create(
        model=model, messages=ASK, max_tokens=2
    ).choices[0].message.content
    nobody = OpenAI(base_url=base, api_key="nobody", max_retries=0)
    report["refused"] = {
        "key": refused(lambda: nobody.models.list()),
        "model": refused(lambda: client.chat.completions.create(model="no-such-model", messages=ASK)),
        "large": refused(
            lambda: client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "x" * 5_000_000}]
            )
        ),
    }
    print(json.dumps(report))


main()

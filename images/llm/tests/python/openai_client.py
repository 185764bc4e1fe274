"""OpenAI's own client against the engine: openai_client.py SOCKET"""

import sys

import httpx2
import openai

client = openai.OpenAI(
    base_url="http://engine/v1", api_key="none", max_retries=0, http_client=httpx2.Client(transport=httpx2.HTTPTransport(uds=sys.argv[1]))
)

assert [model.id for model in client.models.list()] == ["test"]

messages = [{"role": "system", "content": "You know Rust."}, {"role": "user", "content": "What is a trait?"}]
asked = {"model": "test", "messages": messages, "max_tokens": 24, "seed": 5, "temperature": 0.8}
whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
choice = whole.choices[0]
assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
assert len(choice.logprobs.content) == whole.usage.completion_tokens
assert all(len(token.top_logprobs) == 3 and token.token_id >= 0 for token in choice.logprobs.content)
assert b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode(errors="replace") == choice.message.content

streamed = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == choice.message.content
assert streamed[-1].usage.completion_tokens == whole.usage.completion_tokens

legacy = client.completions.create(model="test", prompt="fn main() {", max_tokens=16, temperature=0, logprobs=2, n=1)
assert len(legacy.choices[0].logprobs.tokens) == legacy.usage.completion_tokens
stopped = client.completions.create(model="test", prompt="fn main() {", max_tokens=64, temperature=0, stop=["\n"])
assert "\n" not in stopped.choices[0].text and stopped.choices[0].finish_reason in ("stop", "length")

with client.completions.create(model="test", prompt="fn", max_tokens=400, stream=True) as stream:
    next(iter(stream))  # and goes

for call, kind in [
    (lambda: client.completions.create(model="none", prompt="x"), openai.NotFoundError),
    (lambda: client.completions.create(model="test", prompt="x", temperature=3), openai.BadRequestError),
    (lambda: client.completions.create(model="test", prompt="x " * 2000), openai.BadRequestError),
]:
    try:
        call()
    except kind as error:
        assert error.body["message"] and error.body["code"]
    else:
        raise AssertionError(kind)
print("the official client", openai.__version__, "is served:", repr(choice.message.content[:60]))

"""OpenAI's client asks an engine behind the seal: openai_asks_llama.py BASE KEY MODEL

Greedily, so that a stream and a whole answer say the same. Prints what it got.
"""

import json
import sys

import openai

base, key, model = sys.argv[1:]
client = openai.OpenAI(base_url=base, api_key=key, max_retries=0)
ask = {"model": model, "prompt": "fn main() {\n", "max_tokens": 12, "temperature": 0, "seed": 1}
whole = client.completions.create(**ask).choices[0].text
streamed = "".join(piece.choices[0].text for piece in client.completions.create(**ask, stream=True) if piece.choices)
likely = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Borrowing"}], max_tokens=4, logprobs=True, top_logprobs=2)
print(json.dumps({
    "models": sorted(entry.id for entry in client.models.list()),
    "whole": whole,
    "streamed": streamed,
    "logprobs": sum(len(token.top_logprobs) == 2 for token in likely.choices[0].logprobs.content),
}))

#!/usr/bin/env python3
"""Whether the reference reads the answers of vLLM: stated ids, request and text, and the draws by its seed.

    python3 vllm.py MUSTER_LLM MODEL URL ANSWERS

URL is a vLLM server that serves the folder MODEL under its name, as docs/llm/vllm.md starts one. Of ANSWERS chats three in four name a
seed. MUSTER_LLM compares the ids that vLLM states with the request and the text, and scores them with the sampler `vllm` where there is a
seed. It prints how many answers pass the comparison, and how many tokens are not those that the replay of the sampler draws.

Needs the packages of tests/python/requirements.txt.
"""

import collections
import pathlib
import sys

import httpx2

from llama_cpp_chats import ABOUT, ASKED, TEMPERATURES
from engine import Engine

LENGTH = 96


def chat(model, n):
    about = ASKED[n % len(ASKED)].format(ABOUT[n % len(ABOUT)])
    body = {"model": model, "messages": [{"role": "user", "content": about}], "max_tokens": LENGTH,
            "temperature": TEMPERATURES[n % len(TEMPERATURES)], "return_token_ids": True}
    return body if n % 4 == 3 else body | {"seed": 1_000 + n}


def scored(reference, request, answer):
    choice = answer["choices"][0]
    body = {"model": request["model"], "prompt_token_ids": answer["prompt_token_ids"], "token_ids": choice["token_ids"],
            "temperature": request["temperature"], "request": request, "text": choice["message"]["content"],
            "finish_reason": choice["finish_reason"]}
    if "seed" in request:
        body |= {"seed": request["seed"], "sampler": "vllm"}
    return reference.ask("POST", "/v1/score", body)


def main():
    folder, url, answers = pathlib.Path(sys.argv[2]).resolve(), sys.argv[3], int(sys.argv[4])
    found, tokens, off = collections.Counter(), 0, 0
    with Engine(sys.argv[1], folder, ["--name", folder.name]) as reference, httpx2.Client(base_url=url, timeout=600) as vllm:
        for n in range(answers):
            request = chat(folder.name, n)
            status, score = scored(reference, request, vllm.post("/v1/chat/completions", json=request).raise_for_status().json())
            is_read = status == 200 and score["compared"]
            found["the same ids as in request and text" if is_read else score["error"]["code"]] += 1
            if is_read and "seed" in request:
                tokens += len(score["tokens"])
                off += sum(token["margin"] > 0 for token in score["tokens"])
    for what, count in found.items():
        print(f"{count} of {answers} answers: {what}")
    print(f"{off} of {tokens} tokens are not those of the replayed sampler")


if __name__ == "__main__":
    main()

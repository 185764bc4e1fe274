#!/usr/bin/env python3
"""Tokens a second against llama.cpp: same weights, same threads, in turns, in one run.

    python3 speed.py MUSTER_LLM MODEL [THREADS]      prints one JSON document

MODEL is a folder with safetensors. Both engines are asked over HTTP on loopback or a Unix socket; llama.cpp is the wheel `xllamacpp`.
"""

import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import httpx2
import xllamacpp

binary, model, threads = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
here = pathlib.Path(__file__).parent
ROUNDS, PREFILL, DECODE = 9, 400, 200
random.seed(1)


def fresh(count):
    """A prompt that nobody has seen, so that no prefix is at hand."""
    return [random.randrange(300, 2000) for _ in range(count)]


def timed(ask):
    begun = time.monotonic()
    ask()
    return time.monotonic() - begun


def turns(ours, peer):
    ours(), peer()
    a, b = [], []
    for _ in range(ROUNDS):
        a.append(ours())
        b.append(peer())
    return {"ours": a, "peer": b, "ratio": statistics.median(a) / statistics.median(b)}


results = {"threads": threads}
for kind in ("f32", "f16", "q8_0"):
    folder = tempfile.TemporaryDirectory()
    file = pathlib.Path(folder.name) / "m.gguf"
    subprocess.run([sys.executable, here.parent / "tests/python/to_gguf.py", model, file, kind], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (file.parent / name).write_bytes((model / name).read_bytes())
    socket = file.parent / "s"
    engine = subprocess.Popen([binary, "serve", "--model", file, "--socket", socket, "--threads", str(threads)],
                              env={"RUST_LOG": "error", "RAYON_NUM_THREADS": str(threads)})
    ours = httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket)), base_url="http://engine", timeout=600)
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(file), 512, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_prompt = False
    server = xllamacpp.Server(params)
    peer = httpx2.Client(base_url=server.listening_address, timeout=600)
    for _ in range(600):
        try:
            ours.get("/health").raise_for_status()
            break
        except httpx2.HTTPError:
            time.sleep(0.1)

    def ask(client, prompt, count):
        answer = client.post("/v1/completions", json={
            "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "logit_bias": {"0": -100}, "cache_prompt": False})
        used = answer.raise_for_status().json()["usage"]
        assert used["completion_tokens"] == count, used

    results[f"{kind}: prefill, tokens/s"] = turns(*(lambda c=c: PREFILL / timed(lambda: ask(c, fresh(PREFILL), 1)) for c in (ours, peer)))
    results[f"{kind}: decode, tokens/s"] = turns(*(lambda c=c: DECODE / timed(lambda: ask(c, fresh(4), DECODE)) for c in (ours, peer)))

    def generate():
        generate.prompt = fresh(8)
        answer = ours.post("/v1/completions", json={"prompt": generate.prompt, "max_tokens": PREFILL, "seed": 3, "return_token_ids": True,
                                                   "logit_bias": {"0": -100}})
        generate.ids = answer.json()["choices"][0]["token_ids"]

    def score():
        body = {"prompt_token_ids": generate.prompt, "token_ids": generate.ids, "seed": 3, "logit_bias": {"0": -100}}
        ours.post("/v1/score", json=body).raise_for_status()

    results[f"{kind}: scoring over generating, s"] = turns(lambda: timed(generate), lambda: timed(score))
    results[f"{kind}: scoring over generating, s"]["ratio"] **= -1
    results[f"{kind}: scoring over generating, s"]["names"] = ["generating", "scoring"]
    engine.kill()
    engine.wait()
    del server
print(json.dumps(results, indent=1))

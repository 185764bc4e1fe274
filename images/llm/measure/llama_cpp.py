#!/usr/bin/env python3
"""A calibration of llama.cpp's own sampler: its answers under its seeds, scored by a replay of its choices.

    python3 llama_cpp.py MUSTER_LLM MODEL OUT ANSWERS [NAME=FOLDER ...]

llama.cpp (the wheel xllamacpp) writes all answers, with the same weights as GGUF in several kinds; MUSTER_LLM scores them in f32 with
`"sampler": "llama.cpp"`. OUT gets the counts as calibration.py writes them: the margin is how far the uniform number of a token is from
the interval of the token that was said. Each FOLDER is a model of train/skip.py or train/train.py, each NAME its alternative.

Needs the packages of tests/python/requirements.txt.
"""

import concurrent.futures
import pathlib
import subprocess
import sys
import tempfile
import time

import httpx2

from calibration import row, write
from engine import Engine
from margins import LENGTH, PROMPTS

# The kind of the weights, the type of keys and values, and how many answers are written at once.
MACHINES = {"f32": ("f32", "f32", "F32", 1), "f32, batches of 3": ("f32", "f32", "F32", 3), "f16, first half": ("f16", "f16", "F32", 1),
            "f16, second half": ("f16", "f16", "F32", 3), "bf16, first half": ("bf16", "bf16", "F32", 1),
            "bf16, second half": ("bf16", "bf16", "F32", 3)}
ALTERNATIVES = {"int4": ("q4_0", "F32", 1), "int8": ("q8_0", "F32", 1), "KV int8": ("f16", "Q8_0", 1)}
PEER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.warmup = sys.argv[1], int(sys.argv[3]), False
params.n_ctx = 512 * params.n_parallel
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + sys.argv[2])
flash = xllamacpp.llama_flash_attn_type
params.flash_attn_type = flash.LLAMA_FLASH_ATTN_TYPE_ENABLED if sys.argv[2] == "Q8_0" else flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
print("listens on", server.listening_address, flush=True)
sys.stdin.read()
"""


class Peer:
    def __init__(self, file, cache, parallel):
        self.process = subprocess.Popen([sys.executable, "-c", PEER, file, cache, str(parallel)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith("listens on "):
                self.http = httpx2.Client(base_url=line.split()[-1], timeout=600)
                return
        raise RuntimeError("llama.cpp does not answer")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def answer(peer, prompt, n, cheat):
    claimed = {"seed": n, "temperature": [1.0, 0.3][n // len(PROMPTS) % 2], "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    asked = dict(claimed, seed=n + 50_000) if cheat == "wrong sampler" else claimed
    # Not the path of OpenAI's interface: its log-probabilities leave out tokens that end inside a character.
    ids = peer.http.post("/completion", json={
        **asked, "prompt": prompt, "n_predict": LENGTH, "return_tokens": True, "logit_bias": [[0, -100]], "cache_prompt": False,
        "samplers": ["top_k", "top_p", "min_p", "temperature"]}).raise_for_status().json()["tokens"]
    assert len(ids) == LENGTH, ids
    return {**claimed, "prompt_token_ids": prompt, "token_ids": ids, "logit_bias": {"0": -100}, "sampler": "llama.cpp"}


def rows(name, folder, kind, cache, parallel, reference, prompts, first, count):
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        file = pathlib.Path(home) / "m.gguf"
        convert = pathlib.Path(__file__).parent.parent / "tests/python/to_gguf.py"
        subprocess.run([sys.executable, convert, folder, file, kind], check=True, stdout=subprocess.DEVNULL)
        with Peer(file, cache, parallel) as peer, concurrent.futures.ThreadPoolExecutor(parallel) as pool:
            texts = list(pool.map(lambda n: answer(peer, prompts[n % len(prompts)], n, name), range(first, first + count)))
    scored = [reference.post("/v1/score", text)["tokens"] for text in texts]
    off = sum(token["margin"] != 0 for tokens in scored for token in tokens) / sum(map(len, scored))
    print(f"{name}: {off:.3%} off, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return {"margin": [row(tokens, "margin") for tokens in scored]}


def main():
    model, out, count = sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4])
    others = dict(given.split("=", 1) for given in sys.argv[5:])
    seed = iter(range(0, 10_000_000, 100_000))
    with Engine(sys.argv[1], model, []) as reference:
        digest = reference.get("/v1/models")["data"][0]["digest"]
        ids = lambda text: reference.post("/v1/completions", {"prompt": text, "max_tokens": 1, "return_token_ids": True})["choices"][0]["prompt_token_ids"]
        prompts = [ids(text) for text in PROMPTS]
        machines = [(name, gpu, rows(name, model, *how, reference, prompts, next(seed), count)) for name, (gpu, *how) in MACHINES.items()]
        cheaper = {name: (model, *how) for name, how in ALTERNATIVES.items()}
        cheaper |= {name: (folder, "f32", "F32", 1) for name, folder in others.items()}
        cheaper["wrong sampler"] = (model, "f32", "F32", 1)
        alternatives = [(name, rows(name, *how, reference, prompts, next(seed), count)) for name, how in cheaper.items()]
    write(out, "margin", digest, machines, alternatives)


if __name__ == "__main__":
    main()

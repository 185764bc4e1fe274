#!/usr/bin/env python3
"""Tokens a second against llama.cpp: same weights, same threads, in turns, in one run.

    python3 speed.py MUSTER_LLM MODEL [THREADS [ROUNDS]]      prints a table

With ROUNDS, scoring alone is measured, in so many rounds and without llama.cpp. MODEL is a folder with safetensors. Both engines are processes of their own and are asked over HTTP; llama.cpp's is the server of the
wheel `xllamacpp`. What counts is the processor time of the engine's process between question and answer, so other work on the
machine disturbs little; wall time stands beside it. Prompts are random tokens, so no prefix is at hand.
"""

import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import httpx2

ROUNDS, PREFILL, DECODE = 11, 400, 400
PEER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 512, 1, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
params.cache_prompt = False
server = xllamacpp.Server(params)
print("listens on", server.listening_address, flush=True)
sys.stdin.read()
"""


class Engine:
    def __init__(self, process, client):
        self.process, self.client = process, client

    def processor(self):
        """Seconds of processor time, of all its threads."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def timed(self, ask):
        wall, processor = time.monotonic(), self.processor()
        given = ask(self.client)
        return time.monotonic() - wall, self.processor() - processor, given


def fresh(count):
    return [random.randrange(300, 2000) for _ in range(count)]


def ours(binary, file, threads):
    socket = file.parent / "s"
    process = subprocess.Popen([binary, "serve", "--model", file, "--socket", socket, "--threads", threads], env={"RUST_LOG": "error"})
    client = httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket)), base_url="http://engine", timeout=600)
    for _ in range(1200):
        try:
            client.get("/health").raise_for_status()
            return Engine(process, client)
        except httpx2.HTTPError:
            time.sleep(0.1)
    raise RuntimeError("the engine does not answer")


def theirs(file, threads):
    process = subprocess.Popen([sys.executable, "-c", PEER, file, threads], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if line.startswith("listens on "):
            return Engine(process, httpx2.Client(base_url=line.split()[-1], timeout=600))
    raise RuntimeError("llama.cpp does not answer")


def ask(prompt, count):
    def asked(client):
        answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                                                      "logit_bias": {"0": -100}, "cache_prompt": False})
        used = answer.raise_for_status().json()["usage"]
        assert used["completion_tokens"] == count, used
    return asked


def row(kind, what, unit, mine, peers, size, target, mend=lambda ratio: ratio):
    """Medians; the ratio is of processor time, turn by turn."""
    ratios = [mend(b[1] / a[1]) for a, b in zip(mine, peers)]
    ratio = statistics.median(ratios)
    rate = lambda runs, i: statistics.median(size(run[i]) for run in runs)
    print(f"| {kind} | {what} | {rate(mine, 1):,.{unit[1]}f} | {rate(peers, 1):,.{unit[1]}f} {unit[0]} | {rate(mine, 0):,.{unit[1]}f} "
          f"| {rate(peers, 0):,.{unit[1]}f} | **{ratio:.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) | {target} |", flush=True)


def main():
    binary, model = sys.argv[1], pathlib.Path(sys.argv[2])
    threads = sys.argv[3] if len(sys.argv) > 3 else "1"
    alone = len(sys.argv) > 4
    rounds = int(sys.argv[4]) if alone else ROUNDS
    here = pathlib.Path(__file__).parent
    random.seed(1)
    print("| weights | what | ours, processor | peer, processor | ours, wall | peer, wall | ratio | target |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for kind in ("f32", "f16", "q8_0", "q4_0"):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "m.gguf"
            subprocess.run([sys.executable, here.parent / "tests/python/to_gguf.py", model, file, kind], check=True)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                (file.parent / name).write_bytes((model / name).read_bytes())
            engine = ours(binary, file, threads)
            peer = engine if alone else theirs(file, threads)
            try:
                for what, prompt, count, work in () if alone else (("prefill of 400", PREFILL, 1, PREFILL), ("decode of 400", 4, DECODE, DECODE)):
                    a, b = [], []
                    for turn in range(ROUNDS + 1):
                        text = fresh(prompt)
                        for one, runs in ((engine, a), (peer, b)) if turn % 2 else ((peer, b), (engine, a)):
                            runs.append(one.timed(ask(text, count)))
                    row(kind, what, ("tokens/s", 0), a[1:], b[1:], lambda seconds, work=work: work / seconds, "≥ 0.5")
                made, judged, off = [], [], 0
                for seed in range(rounds + 1):
                    prompt = fresh(8)
                    body = {"prompt": prompt, "max_tokens": DECODE, "seed": seed, "return_token_ids": True, "logit_bias": {"0": -100}}
                    made.append(engine.timed(lambda client: client.post("/v1/completions", json=body).raise_for_status().json()))
                    ids = made[-1][2]["choices"][0]["token_ids"]
                    body = {"prompt_token_ids": prompt, "token_ids": ids, "seed": seed, "logit_bias": {"0": -100}}
                    judged.append(engine.timed(lambda client: client.post("/v1/score", json=body).raise_for_status().json()))
                    cached = judged[-1][2]["usage"]["prompt_tokens_details"]["cached_tokens"]
                    assert cached <= len(prompt), cached
                    off += sum(token["margin"] != 0 for token in judged[-1][2]["tokens"])
                row(kind, "scoring 400 over generating them", ("s", 4), judged[1:], made[1:], lambda seconds: seconds, "≤ 0.1",
                    lambda ratio: 1 / ratio)
                print(f"{kind}: {off} of {DECODE * (rounds + 1)} tokens of its own answers are off", file=sys.stderr, flush=True)
            finally:
                for one in (engine, peer):
                    one.process.kill()
                    one.process.wait()


if __name__ == "__main__":
    main()

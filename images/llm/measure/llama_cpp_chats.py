#!/usr/bin/env python3
"""Calibrations of llama.cpp's server as users ask it: chats, of which only the text and the request's seed are known.

    python3 llama_cpp_chats.py MUSTER_LLM MODEL OUT ANSWERS [NAME=FOLDER ...]

llama.cpp (the wheel xllamacpp) answers chats with the same weights as GGUF in several kinds, at its own top-k, top-p and min-p and at
temperatures 1, 0.7 and 0.3 in turns; MUSTER_LLM finds the tokens in the text by the seed and scores them. OUT gets the text of
docs/audit-bundle.md, "Calibration", of format 2, with known answers; OUT.unseeded gets one of half as many chats that name no seed and
leave all parameters to llama.cpp. The digests of images and arguments are zeros: whoever whitelists an image writes them. Each FOLDER is a
model of train/skip.py or train/train.py, each NAME its alternative.

Needs the packages of tests/python/requirements.txt.
"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import httpx2

from calibration import row
from engine import Engine

LENGTH, KNOWN, KNOWN_LENGTH = 128, 8, 48
VERSION = "b11549"
# As llama.cpp's server has them where a request leaves them out.
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
TEMPERATURES = [1.0, 0.7, 0.3]
ASKED = ["Say in two sentences what {} is for.", "Write a few lines about {}.", "Which three things should everybody know about {}?",
         "Compare {} with something else.", "Give an example of {}."]
ABOUT = ["a loop", "the harbour", "a closure", "honey", "an iterator", "snow", "the compiler", "a letter", "ownership", "a train", "a vector"]
# The kind of the weights, and how many chats are answered at once. No bf16: a text ends at the first token that rounding has
# changed, so the mean ratio of a machine at the bound itself is 1, and no alternative would be tested.
MACHINES = {"f32": ("f32", "f32", 1), "f32, batches of 3": ("f32", "f32", 3), "f16": ("f16", "f16", 1),
            "f16, batches of 2": ("f16", "f16", 2), "f16, batches of 3": ("f16", "f16", 3)}
ALTERNATIVES = {"int4": ("q4_0", 1), "int8": ("q8_0", 1)}
PEER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.warmup = sys.argv[1], int(sys.argv[2]), False
params.n_ctx, params.use_jinja = 512 * params.n_parallel, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print("listens on", server.listening_address, flush=True)
sys.stdin.read()
"""


class Peer:
    def __init__(self, folder, kind, parallel):
        self.home = tempfile.TemporaryDirectory()
        file = pathlib.Path(self.home.name) / "m.gguf"
        convert = pathlib.Path(__file__).parent.parent / "tests/python/to_gguf.py"
        subprocess.run([sys.executable, convert, folder, file, kind], check=True, stdout=subprocess.DEVNULL)
        self.process = subprocess.Popen([sys.executable, "-c", PEER, file, str(parallel)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if line.startswith("listens on "):
                self.http = httpx2.Client(base_url=line.split()[-1], timeout=600)
                return
        raise RuntimeError("llama.cpp does not answer")

    def post(self, path, body):
        return self.http.post(path, json=body).raise_for_status().json()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.home.cleanup()


def question(n, is_seeded):
    text = ASKED[n % len(ASKED)].format(ABOUT[n % len(ABOUT)])
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": LENGTH}
    return body | {"temperature": TEMPERATURES[n % len(TEMPERATURES)], "seed": n} if is_seeded else body


def score(reference, name, request, choice):
    """The tokens of an answer; none if its text tells none."""
    asked = DEFAULTS | {key: value for key, value in request.items() if key != "model"}
    body = {"request": asked, "text": choice["message"]["content"], "finish_reason": choice["finish_reason"],
            "sampler": "llama.cpp", "sampler_version": VERSION}
    status, reply = reference.ask("POST", "/v1/score", body)
    if status == 400 and reply["error"]["param"] == "text":
        return []
    assert status == 200, reply
    return reply["tokens"]


def rows(name, folder, kind, parallel, reference, first, count):
    begun, found = time.monotonic(), {}
    with Peer(folder, kind, parallel) as peer, concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        for statistic, is_seeded, many in (("margin", True, count), ("surprise", False, count // 2)):
            asked = [question(n, is_seeded) for n in range(first, first + many)]
            sent = [dict(body, seed=body["seed"] + 50_000) if name == "wrong sampler" and is_seeded else body for body in asked]
            choices = list(pool.map(lambda body: peer.post("/v1/chat/completions", body)["choices"][0], sent))
            scored = [score(reference, name, body, choice) for body, choice in zip(asked, choices)]
            found[statistic] = [row(tokens, statistic) for tokens in scored if tokens]
            tokens = [token for answer in scored for token in answer]
            if is_seeded:
                off = sum(token["margin"] != 0 for token in tokens) / len(tokens)
                print(f"{name}: {len(tokens)} tokens told, {off:.3%} off", file=sys.stderr, flush=True)
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return found


def known_answers(folder):
    """Answers of llama.cpp under known seeds, with the ids of prompt and answer."""
    known = []
    with Peer(folder, "f16", 1) as peer:
        for n in range(KNOWN):
            body = question(n, True) | {"max_tokens": KNOWN_LENGTH}
            said = peer.post("/v1/chat/completions", body | {"verbose": True, "return_tokens": True})
            prompt = peer.post("/tokenize", {"content": said["__verbose"]["prompt"], "add_special": True, "parse_special": True})["tokens"]
            request = json.dumps({"seed": body["seed"], "temperature": body["temperature"]}, sort_keys=True, separators=(",", ":"))
            known.append({"request": request, "prompt": prompt, "output": said["__verbose"]["tokens"]})
    return known


def write(out, statistic, digest, machines, alternatives, more):
    zeros = "sha256:" + "00" * 32
    calibration = {
        "format": "muster/audit-calibration/2", "statistic": statistic, "model": digest if digest.startswith("sha256:") else "sha256:" + digest,
        "engine": zeros, "arguments": zeros, "reference": {"engine": zeros, "arguments": zeros},
        "machines": [{"machine": name, "gpu": gpu, "answers": answers[statistic]} for name, gpu, answers in machines],
        "alternatives": [{"name": name, "answers": answers[statistic]} for name, answers in alternatives],
    }
    out.write_text(json.dumps(calibration | more, sort_keys=True, separators=(",", ":")))


def main():
    model, out, count = sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4])
    others = dict(given.split("=", 1) for given in sys.argv[5:])
    seed = iter(range(0, 10_000_000, 100_000))
    cheaper = {name: (model, *how) for name, how in ALTERNATIVES.items()}
    cheaper |= {name: (folder, "f32", 1) for name, folder in others.items()}
    cheaper["wrong sampler"] = (model, "f16", 1)
    known = known_answers(model)
    with Engine(sys.argv[1], model, []) as reference:
        digest = reference.get("/v1/models")["data"][0]["digest"]
        machines = [(name, gpu, rows(name, model, *how, reference, next(seed), count)) for name, (gpu, *how) in MACHINES.items()]
        alternatives = [(name, rows(name, *how, reference, next(seed), count)) for name, how in cheaper.items()]
    sampler = {"sampler": {"engine": "llama.cpp", "version": VERSION}, "known_answers": known}
    write(out, "margin", digest, machines, alternatives, sampler)
    others = [one for one in alternatives if one[0] != "wrong sampler"]
    write(out.with_suffix(f".unseeded{out.suffix}"), "surprise", digest, machines, others, {})


if __name__ == "__main__":
    main()

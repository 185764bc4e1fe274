#!/usr/bin/env python3
"""A calibration of spot checks from real answers: honest engines as machines, cheaper ones as alternatives.

    python3 calibration.py MUSTER_LLM MODEL OUT ANSWERS [NAME=FOLDER ...]

Every engine answers ANSWERS prompts of its own, in turns at temperature 1 and 0.3; the reference (f32) scores them. OUT gets the text
of docs/audit-bundle.md, "Calibration": one row of counts for each answer, by entropy and by margin. Each FOLDER is a model of
train/skip.py or train/train.py, each NAME its alternative. All engines run on one machine, which takes the place of several: a
calibration that counts against miners comes from several machines.

Needs httpx2 (tests/python/requirements.txt).
"""

import concurrent.futures
import json
import math
import pathlib
import sys
import time

from margins import LENGTH, PROMPTS, Engine

MACHINES = {
    "f32": ("f32", []),
    "f32, batches of 3, 2 threads": ("f32", ["--threads", "2", "--streams", "3", "--kept", "2"]),
    "f16, first half": ("f16", ["--weights", "f16", "--rounding", "f16"]),
    "f16, second half": ("f16", ["--weights", "f16", "--rounding", "f16"]),
    "bf16, first half": ("bf16", ["--weights", "bf16", "--rounding", "bf16"]),
    "bf16, second half": ("bf16", ["--weights", "bf16", "--rounding", "bf16"]),
}
ALTERNATIVES = {"int4": ["--weights", "q4_0"], "int8": ["--weights", "q8_0"]}
# Upper edges: entropies in millinats, margins in micronats. docs/audit-bundle.md has them, too.
ENTROPIES, MARGINS = [500, 1_500, 3_000], [0, 10_000, 50_000, 200_000, 500_000, 1_000_000, 2_000_000]


def answer(engine, n):
    body = {"prompt": PROMPTS[n % len(PROMPTS)], "max_tokens": LENGTH, "seed": n, "temperature": [1.0, 0.3][n // len(PROMPTS) % 2],
            "return_token_ids": True, "logit_bias": {"0": -100}}
    choice = engine.post("/v1/completions", body)["choices"][0]
    kept = {name: body[name] for name in ("seed", "temperature", "logit_bias")}
    return {"prompt_token_ids": choice["prompt_token_ids"], "token_ids": choice["token_ids"], **kept}


def cell(token):
    entropy = sum(math.floor(token["entropy"] * 1_000) >= edge for edge in ENTROPIES)
    if token["margin"] == "impossible":
        return entropy * 9 + 8
    margin = math.ceil(token["margin"] * 1_000_000)
    return entropy * 9 + sum(margin > edge for edge in MARGINS)


def row(tokens):
    """The counts of one answer: cell, count, cell, count, in rising order of cells."""
    cells = [cell(token) for token in tokens]
    return [number for at in sorted(set(cells)) for number in (at, cells.count(at))]


def rows(name, folder, arguments, reference, first, count):
    begun = time.monotonic()
    with Engine(folder, arguments) as engine, concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: answer(engine, n), range(first, first + count)))
    scored = [row(reference.post("/v1/score", text)["tokens"]) for text in texts]
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return scored


def main():
    model, out, count = sys.argv[2], pathlib.Path(sys.argv[3]), int(sys.argv[4])
    others = dict(given.split("=", 1) for given in sys.argv[5:])
    seed = iter(range(0, 10_000_000, 100_000))
    with Engine(model, []) as reference:
        digest = reference.http.get("/v1/models").json()["data"][0]["digest"]
        machines = [{"machine": name, "gpu": gpu, "answers": rows(name, model, arguments, reference, next(seed), count)}
                    for name, (gpu, arguments) in MACHINES.items()]
        cheaper = {name: (model, arguments) for name, arguments in ALTERNATIVES.items()}
        cheaper |= {name: (folder, []) for name, folder in others.items()}
        alternatives = [{"name": name, "answers": rows(name, folder, arguments, reference, next(seed), count)}
                        for name, (folder, arguments) in cheaper.items()]
    zeros = "sha256:" + "00" * 32
    calibration = {
        "format": "muster/audit-calibration/1", "statistic": "margin", "model": digest if digest.startswith("sha256:") else "sha256:" + digest,
        "engine": zeros, "arguments": zeros, "machines": machines, "alternatives": alternatives,
    }
    out.write_text(json.dumps(calibration, sort_keys=True, separators=(",", ":")))


if __name__ == "__main__":
    main()

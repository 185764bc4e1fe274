#!/usr/bin/env python3
"""A calibration of spot checks from real answers: honest engines as machines, cheaper ones as alternatives.

    python3 calibration.py MUSTER_LLM MODEL OUT ANSWERS [--every] [--class=CLASS] [NAME=FOLDER ...]

Every engine answers ANSWERS prompts of its own, in turns at temperature 1 and 0.3; the reference (f32) scores them. OUT gets the text
of docs/audit-bundle.md, "Calibration": one row of counts for each answer, by entropy and by margin. OUT.surprise gets the same answers as
they look without a seed, those of temperature 1. Each FOLDER is a model of train/skip.py or train/train.py, each NAME its alternative. With `--every` come the
engines that are nearer to the honest ones, a wrong seed and a wrong temperature. CLASS is the executor class of this machine, which the
calibration then states. All engines run on one machine, which takes the place of
several: a calibration that counts against miners comes from several machines.
"""

import concurrent.futures
import json
import math
import pathlib
import sys
import time

from engine import Engine
from margins import LENGTH, PROMPTS

MACHINES = {
    "f32": ("f32", []),
    "f32, batches of 3, 2 threads": ("f32", ["--threads", "2", "--streams", "3", "--kept", "2"]),
    "f16, first half": ("f16", ["--weights", "f16", "--rounding", "f16"]),
    "f16, second half": ("f16", ["--weights", "f16", "--rounding", "f16"]),
    "bf16, first half": ("bf16", ["--weights", "bf16", "--rounding", "bf16"]),
    "bf16, second half": ("bf16", ["--weights", "bf16", "--rounding", "bf16"]),
}
ALTERNATIVES = {"int4": ["--weights", "q4_0"], "int8": ["--weights", "q8_0"]}
NEARER = {"bf16 weights": ["--weights", "bf16"], "KV int8": ["--cache", "int8"]}
# The share of the asked temperature at which the wrong one samples: examples/cheating_llm.rs has it, too.
COOLER = 0.8
STATISTICS = ["margin", "surprise"]
# Upper edges: entropies in millinats, margins in micronats. docs/audit-bundle.md has them, too.
ENTROPIES, MARGINS = [500, 1_500, 3_000], [0, 10_000, 50_000, 200_000, 500_000, 1_000_000, 2_000_000]


def answer(engine, n, cheat):
    """An answer, and what it claims to have been asked for."""
    body = {"prompt": PROMPTS[n % len(PROMPTS)], "max_tokens": LENGTH, "seed": n, "temperature": [1.0, 0.3][n // len(PROMPTS) % 2],
            "return_token_ids": True, "logit_bias": {"0": -100}}
    asked = dict(body)
    if cheat == "wrong sampler":
        asked["seed"] = n + 50_000
    if cheat == "wrong temperature":
        asked["temperature"] *= COOLER
    choice = engine.post("/v1/completions", asked)["choices"][0]
    kept = {name: body[name] for name in ("seed", "temperature", "logit_bias")}
    # The reference refuses ids that are not those of request and text, so a measured answer is one that an audit scores.
    stated = {name: choice[name] for name in ("prompt_token_ids", "token_ids", "text", "finish_reason")}
    return {"request": body, **stated, **kept}


def cell(token, statistic):
    entropy = sum(math.floor(token["entropy"] * 1_000) >= edge for edge in ENTROPIES)
    number = token["margin"] if statistic == "margin" else max(0.0, -token["logprob"] - token["entropy"])
    if number == "impossible":
        return entropy * 9 + 8
    return entropy * 9 + sum(math.ceil(number * 1_000_000) > edge for edge in MARGINS)

# The executor class of this machine, if it was given.
CLASS = {"class": argument.removeprefix("--class=") for argument in sys.argv if argument.startswith("--class=")}


def row(tokens, statistic):
    """The counts of one answer: cell, count, cell, count, in rising order of cells."""
    cells = [cell(token, statistic) for token in tokens]
    return [number for at in sorted(set(cells)) for number in (at, cells.count(at))]


def rows(name, folder, arguments, reference, first, count):
    begun = time.monotonic()
    with Engine(sys.argv[1], folder, arguments) as engine, concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: answer(engine, n, name), range(first, first + count)))
    scored = [reference.post("/v1/score", text)["tokens"] for text in texts]
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    # Without a seed, answers of another temperature look like another model's.
    warm = [tokens for text, tokens in zip(texts, scored) if text["temperature"] == 1.0]
    return {"margin": [row(tokens, "margin") for tokens in scored], "surprise": [row(tokens, "surprise") for tokens in warm]}


def write(out, statistic, digest, machines, alternatives):
    zeros = "sha256:" + "00" * 32
    calibration = {
        "format": "muster/audit-calibration/1", "statistic": statistic, "model": digest if digest.startswith("sha256:") else "sha256:" + digest,
        "engine": zeros, "arguments": zeros,
        "machines": [{"machine": name, "gpu": gpu, "answers": answers[statistic]} | CLASS for name, gpu, answers in machines],
        "alternatives": [{"name": name, "answers": answers[statistic]} for name, answers in alternatives],
    }
    out.write_text(json.dumps(calibration, sort_keys=True, separators=(",", ":")))


def main():
    given = [argument for argument in sys.argv[1:] if argument != "--every" and not argument.startswith("--class=")]
    model, out, count = given[1], pathlib.Path(given[2]), int(given[3])
    others = dict(pair.split("=", 1) for pair in given[4:])
    seed = iter(range(0, 10_000_000, 100_000))
    cheaper = {name: (model, arguments) for name, arguments in ALTERNATIVES.items()}
    cheaper |= {name: (folder, []) for name, folder in others.items()}
    if "--every" in sys.argv:
        cheaper |= {name: (model, arguments) for name, arguments in NEARER.items()}
        cheaper |= {"wrong sampler": (model, []), "wrong temperature": (model, [])}
    with Engine(sys.argv[1], model, []) as reference:
        digest = reference.get("/v1/models")["data"][0]["digest"]
        machines = [(name, gpu, rows(name, model, arguments, reference, next(seed), count)) for name, (gpu, arguments) in MACHINES.items()]
        alternatives = [(name, rows(name, folder, arguments, reference, next(seed), count)) for name, (folder, arguments) in cheaper.items()]
    for statistic in STATISTICS:
        write(out if statistic == "margin" else out.with_suffix(f".{statistic}{out.suffix}"), statistic, digest, machines, alternatives)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What answers of which only the text is known are worth to a spot check.

    python3 texts.py MUSTER_LLM MODEL CALIBRATION ANSWERS [NAME=FOLDER ...]

Every engine answers ANSWERS prompts, in turns at temperature 1 and 0.3; the reference (f32) scores each answer by the ids of its
tokens, and again by its text alone (`POST /v1/score` with `request` and `text`). A line for each engine: the answers whose text is
tokenized again as it was sampled, the tokens that the text tells, the audited answers until the alarm, by ids and by text, as
docs/audit-bundle.md computes it: medians over 200 orders of the answers, the answers whose tokens by text are others, and the time
of scoring by ids and by text over that of writing the answer, with the engine's weights and the reference's. Each FOLDER is a model of train/skip.py, each NAME its row.

The first column needs tokenizers (tests/python/requirements.txt).
"""

import importlib.util
import json
import pathlib
import random
import statistics
import sys
import time

from calibration import cell
from engine import Engine
from margins import LENGTH, PROMPTS

try:
    from tokenizers import Tokenizer
except ImportError:
    Tokenizer = None

ENGINES = {
    "f32": [],
    "f16": ["--weights", "f16", "--rounding", "f16"],
    "bf16": ["--weights", "bf16", "--rounding", "bf16"],
    "int8 (q8_0)": ["--weights", "q8_0"],
    "int4 (q4_0)": ["--weights", "q4_0"],
}
ORDERS, MOST = 200, 400


def replay_program():
    path = pathlib.Path(__file__).parents[3] / "tests/python/replay_audit.py"
    spec = importlib.util.spec_from_file_location("replay_audit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(engine, n):
    request = {"prompt": PROMPTS[n % len(PROMPTS)], "max_tokens": LENGTH, "seed": n, "logit_bias": {"0": -100},
               "temperature": [1.0, 0.3][n // len(PROMPTS) % 2]}
    choice = engine.post("/v1/completions", request | {"return_token_ids": True})["choices"][0]
    return request, choice


def scored(reference, request, choice):
    kept = {name: request[name] for name in ("seed", "temperature", "logit_bias")}
    body = {"request": request, "text": choice["text"], "finish_reason": choice["finish_reason"]}
    began = time.monotonic()
    by_ids = reference.post("/v1/score", kept | body | {name: choice[name] for name in ("prompt_token_ids", "token_ids")})
    between = time.monotonic()
    status, reply = reference.ask("POST", "/v1/score", body)
    by_text = reply["tokens"] if status == 200 else None
    return by_ids["tokens"], by_text, between - began, time.monotonic() - between


def counts(tokens):
    cells = [[0] * 9 for _ in range(4)]
    for token in tokens or []:
        at = cell(token, "margin")
        cells[at // 9][at % 9] += 1
    return cells if tokens else None


def alarms(program, tables, answers):
    numbers, found = random.Random(1), []
    for _ in range(ORDERS):
        run = numbers.choices(answers, k=MOST)
        found.append(program.reached(run, True, program.ALARM, tables) or MOST + 1)
    return found


def shown(found):
    middle, late = statistics.median(found), sorted(found)[int(0.95 * ORDERS)]
    return "not accused" if middle > MOST else f"{middle:.0f}, {late if late <= MOST else 'more'}"


def main():
    model, count = sys.argv[2], int(sys.argv[4])
    program = replay_program()
    with open(sys.argv[3]) as file:
        tables = program.Calibration(json.load(file)).plain
    tokenizer = Tokenizer and Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
    engines = {name: (model, arguments) for name, arguments in ENGINES.items()}
    engines |= {name: (folder, []) for name, folder in (given.split("=", 1) for given in sys.argv[5:])}
    with Engine(sys.argv[1], model, []) as reference:
        for place, (name, (folder, arguments)) in enumerate(engines.items()):
            by_ids, by_text, alike, tokens, told, worse = [], [], 0, 0, 0, 0
            writing = of_ids = of_text = 0.0
            with Engine(sys.argv[1], folder, arguments) as engine:
                for n in range(place * 100_000, place * 100_000 + count):
                    began = time.monotonic()
                    request, choice = answer(engine, n)
                    writing += time.monotonic() - began
                    ids, text, ids_took, text_took = scored(reference, request, choice)
                    of_ids, of_text = of_ids + ids_took, of_text + text_took
                    alike += bool(tokenizer) and tokenizer.encode(choice["text"], add_special_tokens=False).ids == choice["token_ids"]
                    tokens, told = tokens + len(ids), told + len(text or [])
                    sampled = [token["token_id"] for token in ids]
                    traced = [token["token_id"] for token in text or []]
                    # Only the last token may be another one than the sampled, and then its margin is no larger.
                    worse += traced[:-1] != sampled[: max(0, len(traced) - 1)] or any(
                        margin(a) > margin(b) for a, b in zip((text or [])[-1:], ids[len(traced) - 1 : len(traced)]))
                    by_ids.append(counts(ids))
                    by_text.append(counts(text))
            row = [name, f"{100 * alike / count:.0f} %" if tokenizer else "-", f"{100 * told / tokens:.0f} %",
                   shown(alarms(program, tables, by_ids)), shown(alarms(program, tables, by_text)), f"{worse} of {count}",
                   f"{of_ids / writing:.2f}, {of_text / writing:.2f}"]
            print("| " + " | ".join(row) + " |", flush=True)


def margin(token):
    return 1e9 if token["margin"] == "impossible" else token["margin"]


if __name__ == "__main__":
    main()

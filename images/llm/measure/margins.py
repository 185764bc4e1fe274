#!/usr/bin/env python3
"""What margins tell: answers of honest and of cheaper engines, scored by the honest one.

    python3 margins.py MUSTER_LLM MODEL OUT [SMALLER] [FINE_TUNE]

Each variant answers the same prompts under the same seeds; the reference scores what it said. OUT gets margins.json, margins.md (the
table) and margins.svg (the plot): how many tokens differ, the margins' quantiles, and the area under the ROC curve of the mean clipped
margin over so many tokens, honest against variant. The honest runs use other batches and prefixes than the scoring pass.
"""

import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import httpx2

binary, model, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
VARIANTS = {"honest": [], "bf16": ["--weights", "bf16"], "KV int8": ["--cache", "int8"], "int8": ["--weights", "q8_0"], "int4": ["--weights", "q4_0"]}
OTHERS = dict(zip(["smaller model", "fine-tune"], sys.argv[4:6]))
ANSWERS, LENGTH, CLIP, COUNTS = 80, 160, 4.0, [20, 80, 320, 1280]
PROMPTS = ["The", "fn main() {\n", "Returns a", "# Examples\n\n", "An error occurs when", "impl", "Cargo will", "This lint"]


class Engine:
    def __init__(self, folder, arguments):
        self.home = tempfile.TemporaryDirectory()
        socket = pathlib.Path(self.home.name) / "s"
        self.process = subprocess.Popen([binary, "serve", "--model", folder, "--socket", socket, *arguments], env={"RUST_LOG": "error"})
        self.http = httpx2.Client(transport=httpx2.HTTPTransport(uds=str(socket)), base_url="http://engine", timeout=600)
        for _ in range(600):
            try:
                self.http.get("/health").raise_for_status()
                return
            except httpx2.HTTPError:
                time.sleep(0.1)
        raise RuntimeError("the engine does not answer")

    def post(self, path, body):
        answer = self.http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def answer(engine, n):
    body = {"prompt": PROMPTS[n % len(PROMPTS)], "max_tokens": LENGTH, "seed": n, "return_token_ids": True, "logit_bias": {"0": -100}}
    choice = engine.post("/v1/completions", body)["choices"][0]
    return {"prompt_token_ids": choice["prompt_token_ids"], "token_ids": choice["token_ids"], "seed": n, "logit_bias": {"0": -100}}


def margins(name, folder, arguments, reference):
    with Engine(folder, arguments) as engine, concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: answer(engine, n), range(ANSWERS)))
    scored = [reference.post("/v1/score", text)["tokens"] for text in texts]
    # What cannot have been chosen counts as far as can be.
    return [[min(CLIP, CLIP if t["margin"] == "impossible" else t["margin"]) for t in tokens] for tokens in scored]


def auc(honest, other, count, random):
    """How often a sample of the variant has the larger mean; samples are of whole tokens of random answers."""
    def sample(rows):
        picked = []
        while len(picked) < count:
            row = random.choice(rows)
            at = random.randrange(max(1, len(row) - 19))
            picked += row[at : at + 20]
        return sum(picked[:count]) / count

    a, b = ([sample(rows) for _ in range(300)] for rows in (honest, other))
    return sum((y > x) + (y == x) / 2 for x in a for y in b) / len(a) / len(b)


def plot(rows):
    width, height, left, top = 720, 380, 60, 30
    colours = ["#000", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"]
    x = lambda m: left + (width - left - 170) * (m / CLIP)
    y = lambda share: top + (height - top - 50) * (1 - max(0.0, (share and __import__("math").log10(share) + 4)) / 4)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="#fff"/>']
    for power in range(5):
        level = y(10.0**-power)
        parts.append(f'<line x1="{left}" x2="{width - 170}" y1="{level}" y2="{level}" stroke="#ddd"/>'
                     f'<text x="{left - 8}" y="{level + 4}" text-anchor="end">1e-{power}</text>')
    for m in range(int(CLIP) + 1):
        parts.append(f'<text x="{x(m)}" y="{height - 30}" text-anchor="middle">{m}</text>')
    parts.append(f'<text x="{left}" y="18">share of tokens whose margin is larger</text><text x="{x(CLIP / 2)}" y="{height - 10}">margin, nats</text>')
    for i, (name, row) in enumerate(rows.items()):
        flat = sorted(m for tokens in row for m in tokens)
        steps = [k * CLIP / 120 for k in range(120)]
        shares = [sum(m > s for m in flat) / len(flat) for s in steps]
        points = " ".join(f"{x(s):.1f},{y(share):.1f}" for s, share in zip(steps, shares) if share > 0)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[i]}" stroke-width="1.5"/>'
                     f'<text x="{width - 160}" y="{top + 18 * i + 10}" fill="{colours[i]}">{name}</text>')
    return "\n".join(parts + ["</svg>", ""])


def main():
    out.mkdir(parents=True, exist_ok=True)
    with Engine(model, []) as reference:
        rows = {name: margins(name, model, arguments, reference) for name, arguments in VARIANTS.items()}
        rows |= {name: margins(name, folder, [], reference) for name, folder in OTHERS.items()}
        again = margins("honest, again", model, ["--threads", "1", "--streams", "3", "--kept", "2"], reference)
    random.seed(4)
    table = ["| engine | tokens off | mean margin | p99 | p99.9 | " + " | ".join(f"AUC, {n} tokens" for n in COUNTS) + " |",
             "|---|---|---|---|---|" + "---|" * len(COUNTS)]
    for name, row in {**rows, "honest, other batches": again}.items():
        flat = sorted(m for tokens in row for m in tokens)
        at = lambda q: flat[min(len(flat) - 1, int(q * len(flat)))]
        off = sum(m > 0 for m in flat) / len(flat)
        areas = ["–"] * len(COUNTS) if name == "honest" else [f"{auc(rows['honest'], row, n, random):.3f}" for n in COUNTS]
        table.append(f"| {name} | {off:.2%} | {sum(flat) / len(flat):.5f} | {at(0.99):.4f} | {at(0.999):.4f} | " + " | ".join(areas) + " |")
    (out / "margins.md").write_text("\n".join(table) + "\n")
    (out / "margins.svg").write_text(plot(rows))
    (out / "margins.json").write_text(json.dumps({name: [[round(m, 5) for m in tokens] for tokens in row] for name, row in rows.items()}))
    print("\n".join(table))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What margins tell: answers of honest and of cheaper engines, scored by the honest one.

    python3 margins.py MUSTER_LLM MODEL OUT [NAME=FOLDER ...]

Each variant answers the same prompts under the same seeds; the reference scores what it said. OUT gets margins.md (the tables) and
margins.svg (the plots): how many tokens are off, the margins' quantiles, how they depend on the entropy of the distribution, and the
area under the ROC curve of the mean clipped margin over so many tokens, honest against variant. Honest rows beyond the first answer
under other batches, threads and prefixes than the reference scores with: what an audit has to bear. Each FOLDER is a model that
train/train.py or train/skip.py made (README.md says how), each NAME its row.
"""

import concurrent.futures
import datetime
import math
import pathlib
import random
import sys
import time

from engine import Engine

CLIP, COUNTS, SAMPLES = 4.0, [20, 50, 100, 200, 500, 1000, 2000], 300
ANSWERS, LENGTH = 64, 128
HONEST = {
    "honest": [],
    "honest, batches of 3, 2 threads": ["--threads", "2", "--streams", "3", "--kept", "2"],
}
CHEAPER = {
    "f16 engine": ["--weights", "f16", "--rounding", "f16"],
    "bf16 weights": ["--weights", "bf16"],
    "bf16 engine": ["--weights", "bf16", "--rounding", "bf16"],
    "KV cache int8": ["--cache", "int8"],
    "int8 (q8_0)": ["--weights", "q8_0"],
    "int4 (q4_0)": ["--weights", "q4_0"],
}
ENTROPIES = [0.0, 0.5, 1.5, 3.0, math.inf]
PROMPTS = ["The", "fn main() {\n", "Returns a", "# Examples\n\n", "An error occurs when", "impl", "Cargo will", "This lint",
           "A trait is", "let mut x = ", "Unsafe code must", "The compiler", "use std::", "If the value", "Panics if", "When"]
COLOURS = ["#000000", "#888888", "#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499"]


def answer(engine, n):
    body = {"prompt": PROMPTS[n % len(PROMPTS)], "max_tokens": LENGTH, "seed": n, "return_token_ids": True, "logit_bias": {"0": -100}}
    choice = engine.post("/v1/completions", body)["choices"][0]
    return {"prompt_token_ids": choice["prompt_token_ids"], "token_ids": choice["token_ids"], "seed": n, "logit_bias": {"0": -100}}


def measured(name, folder, arguments, reference):
    """One row of (margin, entropy) for each answer."""
    begun = time.monotonic()
    with Engine(sys.argv[1], folder, arguments) as engine, concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: answer(engine, n), range(ANSWERS)))
    scored = [reference.post("/v1/score", text)["tokens"] for text in texts]
    print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    # A token that cannot have been chosen counts as the largest distance.
    far = lambda t: CLIP if t["margin"] == "impossible" else min(CLIP, t["margin"])
    return [[(far(t), t["entropy"]) for t in tokens] for tokens in scored]


def auc(honest, other, count):
    """How often a sample of the variant has the larger mean; a sample is made of stretches of 20 tokens of random answers."""
    def sample(rows):
        picked = []
        while len(picked) < count:
            row = random.choice(rows)
            at = random.randrange(max(1, len(row) - 19))
            picked += row[at : at + 20]
        return sum(margin for margin, _ in picked[:count]) / count

    a, b = ([sample(rows) for _ in range(SAMPLES)] for rows in (honest, other))
    return sum((y > x) + (y == x) / 2 for x in a for y in b) / len(a) / len(b)


def tables(rows, areas):
    lines = ["# Margins of cheaper engines", "", f"{ANSWERS} answers of at most {LENGTH} tokens each at temperature 1; margins in nats, clipped at {CLIP:.0f};"
             f" `measure/margins.py`, {datetime.date.today()}.", "", "![margins and areas](margins.svg)", "",
             "| engine | tokens off | impossible or ≥ 4 | mean margin | p99 | p99.9 |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        flat = sorted(margin for tokens in row for margin, _ in tokens)
        at = lambda q: flat[min(len(flat) - 1, int(q * len(flat)))]
        share = lambda test: sum(test(m) for m in flat) / len(flat)
        lines.append(f"| {name} | {share(lambda m: m > 0):.2%} | {share(lambda m: m >= CLIP):.3%} | {sum(flat) / len(flat):.6f} "
                     f"| {at(0.99):.4f} | {at(0.999):.4f} |")
    lines += ["", "Area under the ROC curve of the mean margin over so many tokens, against the first row:", "",
              "| engine | " + " | ".join(map(str, COUNTS)) + " |", "|---|" + "---|" * len(COUNTS)]
    lines += [f"| {name} | " + " | ".join(f"{area:.3f}" for area in of) + " |" for name, of in areas.items()]
    bins = [f"{low:g} to {high:g}" if high < math.inf else f"{low:g} and more" for low, high in zip(ENTROPIES, ENTROPIES[1:])]
    lines += ["", "Tokens off by the entropy (nats) of the reference's distribution at their place, and how many tokens that is:", "",
              "| engine | " + " | ".join(bins) + " |", "|---|" + "---|" * len(bins)]
    for name, row in rows.items():
        cells = []
        for low, high in zip(ENTROPIES, ENTROPIES[1:]):
            inside = [margin for tokens in row for margin, entropy in tokens if low <= entropy < high]
            off = sum(margin > 0 for margin in inside) / max(1, len(inside))
            cells.append(f"{off:.2%} of {len(inside):,}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(rows, areas):
    width, left, top, inner, high = 980, 60, 30, 340, 290
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top + high + 50}" font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="#fff"/>']

    def line(points, colour):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    def text(x, y, what, anchor="middle", colour="#000"):
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{what}</text>')

    def rule(x, y):
        parts.append(f'<line x1="{x}" x2="{x + inner}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')

    text(left, 18, "share of tokens whose margin is larger", "start")
    y = lambda share: top + high * -math.log10(max(share, 1e-5)) / 5
    for power in range(6):
        rule(left, y(10.0**-power))
        text(left - 8, y(10.0**-power) + 4, f"1e-{power}", "end")
    for m in range(int(CLIP) + 1):
        text(left + inner * m / CLIP, top + high + 18, m)
    text(left + inner / 2, top + high + 36, "margin, nats")
    second = left + inner + 70
    text(second, 18, "area under the ROC curve", "start")
    place = lambda count: second + inner * math.log(count / COUNTS[0]) / math.log(COUNTS[-1] / COUNTS[0])
    level = lambda area: top + high * (1 - max(0.0, area - 0.4) / 0.6)
    for tenth in range(4, 11):
        rule(second, level(tenth / 10))
        text(second - 8, level(tenth / 10) + 4, tenth / 10, "end")
    for count in COUNTS:
        text(place(count), top + high + 18, count)
    text(second + inner / 2, top + high + 36, "tokens")
    for i, (name, row) in enumerate(rows.items()):
        flat = sorted(margin for tokens in row for margin, _ in tokens)
        steps = [k * CLIP / 160 for k in range(160)]
        shares = [(s, sum(m > s for m in flat) / len(flat)) for s in steps]
        line([(left + inner * s / CLIP, y(share)) for s, share in shares if share > 0], COLOURS[i])
        if name in areas:
            line([(place(count), level(area)) for count, area in zip(COUNTS, areas[name])], COLOURS[i])
        text(second + inner + 12, top + 18 * i + 10, name, "start", COLOURS[i])
    parts[0] = parts[0].replace(f'width="{width}"', f'width="{width + 50}"')
    return "\n".join(parts + ["</svg>", ""])


def main():
    model, out = sys.argv[2], pathlib.Path(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    with Engine(sys.argv[1], model, []) as reference:
        rows = {name: measured(name, model, arguments, reference) for name, arguments in (HONEST | CHEAPER).items()}
        for name, folder in (given.split("=", 1) for given in sys.argv[4:]):
            rows[name] = measured(name, folder, [], reference)
    random.seed(4)
    areas = {name: [auc(rows["honest"], row, count) for count in COUNTS] for name, row in rows.items() if name != "honest"}
    (out / "margins.md").write_text(tables(rows, areas))
    (out / "margins.svg").write_text(plot(rows, areas))
    print(tables(rows, areas))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The seeded sampler in integers, a second time: docs/proofs.md, "Audit: the seeded sampler".

    python3 sampler.py OUT      writes the golden vectors

Shares nothing with the engine but the text. Python's integers are unbounded and its >> and // round down, as the text says.
"""

import hashlib
import json
import math
import pathlib
import random
import struct
import sys

M64 = (1 << 64) - 1
LOG2E40 = 1586259972792  # floor(log2(e) · 2^40)
LOG2E62 = 6653256548922161245  # floor(log2(e) · 2^62)
LN2_62 = 3196577161300663914  # floor(ln(2) · 2^62)


def slow_log2(v):
    """log2(v / 2^63) in Q62 for v in [2^63, 2^64), one bit after the other."""
    bits = 0
    for _ in range(62):
        v = v * v >> 63
        bits <<= 1
        if v >> 64:
            bits |= 1
            v >>= 1
    return bits


def reciprocals(unit, scale):
    rows = []
    for i in range(256):
        r = -(-(1 << scale) // (unit + i))
        rows.append((r, 0 if r == 1 << 63 else (1 << 62) - slow_log2(r * 2)))
    return rows


FIRST, SECOND = reciprocals(256, 71), reciprocals(65536, 79)
ROOTS = [1 << 62]
for _ in range(24):
    ROOTS.append(math.isqrt(ROOTS[-1] << 63))


def lg(n):
    """log2(n) in Q48 for 1 <= n < 2^64."""
    exponent = n.bit_length() - 1
    x = n << (63 - exponent)
    r, l1 = FIRST[x >> 55 & 255]
    y = x * r >> 63
    r, l2 = SECOND[y - (1 << 63) >> 47]
    f = (y * r >> 63) - (1 << 63)
    rest = (f - (f * f >> 64)) * LOG2E62 >> 63
    return (exponent << 48) + (l1 + l2 + rest >> 14)


def gumbel(r):
    """-ln(-ln((r | 1) / 2^64)) in Q24."""
    n = r | 1
    m = (1 << 64) - n
    if m < 1 << 52:
        a = ((64 << 48) - lg(m)) * LN2_62 >> 62
        return a - ((m >> 1) + (m * m >> 64) * 5 // 24 >> 16) >> 24
    e = ((64 << 48) - lg(n)) * LN2_62 >> 62
    return (((48 << 48) - lg(e)) * LN2_62 >> 62) >> 24


def philox(counter, key):
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def choice_seed(seed, choice):
    return hashlib.sha256(b"muster/sampler/choice/v1\0" + seed + struct.pack("<I", choice)).digest()


def openai_seed(number):
    return hashlib.sha256(b"muster/sampler/openai-seed/v1\0" + struct.pack("<q", number)).digest()


def draw(seed, position, token):
    s = struct.unpack("<4I", seed[:16])
    o = philox((token >> 1, position, s[2], s[3]), (s[0], s[1]))
    return o[2] | o[3] << 32 if token & 1 else o[0] | o[1] << 32


def q24(value):
    return round(value * 2.0**24)  # half to even; the product is exact


def weight(distance, t):
    """exp(-distance / t) in Q40; distance and t in Q24."""
    e = (distance << 24) // t
    b = e * LOG2E40 >> 40
    whole, part = b >> 24, b & 0xFFFFFF
    if whole > 40:
        return 0
    product = 1 << 63
    for group in (16, 8, 0):
        table = 1 << 63
        for bit in range(7, -1, -1):
            if part >> group >> bit & 1:
                table = table * ROOTS[24 - group - bit] >> 63
        product = product * table >> 63
    return product >> 23 + whole


def adjusted(logits, counts, p):
    """Logits in Q24 after penalties and bias; None where a token is masked."""
    rows = []
    for v, logit in enumerate(logits):
        if math.isnan(logit) or logit == -math.inf:
            rows.append(None)
            continue
        x = q24(max(-16384.0, min(16384.0, logit)))
        n = counts.get(v, 0)
        x -= q24(p["frequency_penalty"]) * n + (q24(p["presence_penalty"]) if n else 0)
        rows.append(x + q24(p["logit_bias"].get(v, 0.0)))
    return rows


def kept(x, p, slack=0, edge=0):
    """The tokens a choice is made among. slack (Q24 share) and edge (Q24 logit) above zero make the set smaller, below zero larger."""
    live = [v for v in range(len(x)) if x[v] is not None]
    order = sorted(live, key=lambda v: (-x[v], v))
    t = q24(p["temperature"])
    if t == 0:
        return order
    best = x[order[0]]
    w = {v: weight(best - x[v], t) for v in order}
    if p["min_p"] > 0:
        least = min(1 << 24, max(0, q24(p["min_p"]) + slack)) << 16
        order = [v for v in order if w[v] >= least]
    k = p["top_k"]
    if 0 < k < len(order):
        if edge > 0:
            order = [v for v in order if v == order[0] or x[v] >= x[order[k]] + edge][:k]
        elif edge < 0:
            order = [v for v in order if x[v] >= x[order[k - 1]] + edge]
        else:
            order = order[:k]
    share = q24(p["top_p"]) - slack if p["top_p"] < 1 else 1 << 24
    if share < 1 << 24:
        total, sum_, prefix = sum(w[v] for v in order), 0, []
        for v in order:
            prefix.append(v)
            sum_ += w[v]
            if sum_ << 24 >= share * total:
                break
        order = prefix
    return order


def scores(x, p, seed, position):
    t = q24(p["temperature"])
    return [None if a is None else a + (t * gumbel(draw(seed, position, v)) >> 24 if t else 0) for v, a in enumerate(x)]


def choose(logits, counts, p, seed, position):
    x = adjusted(logits, counts, p)
    s = scores(x, p, seed, position)
    return min(kept(x, p), key=lambda v: (-s[v], v))


def margin(logits, counts, p, seed, position, token, slack, edge, clip):
    """In Q24; None where the token cannot have been chosen."""
    x = adjusted(logits, counts, p)
    s = scores(x, p, seed, position)
    if token not in kept(x, p, -slack, -edge):
        return None
    return max(0, min(clip, max(s[v] for v in kept(x, p, slack, edge)) - s[token]))


def cases(r):
    off = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}}
    variants = [
        {}, {"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.9}, {"top_k": 3}, {"top_p": 0.8}, {"top_p": 0.35, "temperature": 1.3},
        {"min_p": 0.1}, {"min_p": 0.05, "top_k": 6, "top_p": 0.9, "temperature": 0.8}, {"presence_penalty": 0.7, "frequency_penalty": 0.25},
        {"logit_bias": {2: 5.5, 7: -100.0}}, {"top_p": 0.0}, {"temperature": 0.0, "frequency_penalty": -1.5, "presence_penalty": 2.0},
    ]
    for i in range(60):
        p = {**off, **variants[i % len(variants)]}
        size = r.choice([5, 12, 40])
        spread = r.choice([0.5, 3.0, 12.0])
        logits = [struct.unpack("<f", struct.pack("<f", r.gauss(0, spread)))[0] for _ in range(size)]
        if i % 11 == 3:
            logits[1], logits[3] = -math.inf, math.nan
        if i % 13 == 5:
            logits[0] = logits[4] = max(v for v in logits if v == v)  # a tie
        yield p, logits, {v: r.randint(1, 4) for v in r.sample(range(size), 3)}


def main(out):
    r = random.Random(20260)
    out.mkdir(parents=True, exist_ok=True)
    words = [0, 1, 2, 3, M64, M64 - 1, M64 - 2, 1 << 63, (1 << 64) - (1 << 52), (1 << 64) - (1 << 52) - 2, (1 << 64) - (1 << 52) + 2]
    words += [r.getrandbits(64) >> r.randint(0, 40) for _ in range(100)] + [M64 - (r.getrandbits(64) >> r.randint(0, 60)) for _ in range(100)]
    noise = [{"word": f"{w:016x}", "gumbel_q24": gumbel(w)} for w in words]
    seeds = [openai_seed(n) for n in (0, 1, -1, 2**63 - 1)]
    draws = []
    for n, seed in zip((0, 1, -1, 2**63 - 1), seeds):
        for choice in (0, 1):
            for position, token in ((0, 0), (0, 1), (7, 2047), (511, 128255)):
                c = choice_seed(seed, choice)
                draws.append({"openai_seed": n, "choice": choice, "choice_seed": c.hex(), "position": position, "token": token,
                              "word": f"{draw(c, position, token):016x}"})
    weights = []
    for _ in range(200):
        d, t = r.getrandbits(r.randint(1, 34)), r.randint(1, 2 << 24)
        weights.append({"distance_q24": d, "temperature_q24": t, "weight_q40": weight(d, t)})
    choices = []
    for i, (p, logits, counts) in enumerate(cases(r)):
        seed = choice_seed(seeds[i % 4], 0)
        position, slack, edge, clip = i * 7, 1 << 16, 1 << 20, 16 << 24
        bits = [struct.pack(">f", v).hex() for v in logits]
        margins = [margin(logits, counts, p, seed, position, v, slack, edge, clip) for v in range(len(logits))]
        choices.append({
            "parameters": {**p, "logit_bias": [[v, b] for v, b in p["logit_bias"].items()]}, "logits_f32": bits,
            "counts": sorted(map(list, counts.items())), "seed": seed.hex(), "position": position,
            "token": choose(logits, counts, p, seed, position), "slack_q24": slack, "edge_q24": edge, "clip_q24": clip,
            "margins_q24": margins,
        })
    for name, rows in (("noise", noise), ("draws", draws), ("weights", weights), ("choices", choices)):
        (out / f"{name}.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

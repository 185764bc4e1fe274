"""Yuma consensus in exact fractions, written from its description and not from the Rust beside it.

Usage: reference.py > ../vectors.json

Prints epochs with what must come of them: the columns in parts of 65535, pay as fractions of the amount, bonds in parts of
65535 of their column's largest. Everything is exact until the last line rounds down. The seed is fixed.
"""

import json
import random
from fractions import Fraction as F

PARTS = 65535


def unit(values):
    """The values divided by their sum."""
    whole = sum(values)
    return [F(v) / whole if whole else F(0) for v in values]


def columns(matrix):
    """The matrix with every column divided by its sum."""
    n = len(matrix)
    sums = [sum(matrix[i][j] for i in range(n)) for j in range(n)]
    return [[matrix[i][j] / sums[j] if sums[j] else F(0) for j in range(n)] for i in range(n)]


def supported(column, stake, kappa):
    """The largest weight that at least the majority of stake gives or exceeds; all stake is one together."""
    best = F(0)
    for weight in sorted(set(column)):
        if sum(s for w, s in zip(column, stake) if w >= weight) >= kappa:
            best = weight
    return best


def dense(rows, n):
    matrix = [[F(0)] * n for _ in range(n)]
    for i, row in enumerate(rows):
        for j, value in row:
            matrix[i][j] = F(value)
    return matrix


def epoch(case):
    """What an epoch makes of a subnet."""
    neurons, rules = case["neurons"], case["rules"]
    n = len(neurons)
    stake = unit([v["stake"] if v["stake"] >= rules["stake_threshold"] else 0 for v in neurons])
    active = [v["last_update"] + rules["activity_cutoff"] >= rules["block"] for v in neurons]
    voting = unit([s if a and v["permit"] else 0 for s, a, v in zip(stake, active, neurons)])
    ranked = sorted(range(n), key=lambda i: (stake[i], i), reverse=True)[: rules["max_validators"]]
    permits = [i in ranked and stake[i] > 0 for i in range(n)]

    weights = dense(case["weights"], n)
    for i, validator in enumerate(neurons):
        for j, target in enumerate(neurons):
            seen = validator["last_update"] > target["registered"]
            commit = validator["committed"]
            blind = commit is not None and commit < target["registered"]
            if i == j or not validator["permit"] or not seen or blind:
                weights[i][j] = F(0)
    weights = [unit(row) for row in weights]

    kappa = F(rules["kappa"], PARTS)
    everyone = range(n)
    consensus = [supported([weights[i][j] for i in everyone], voting, kappa) if any(voting) else F(0) for j in everyone]
    clipped = [[min(weights[i][j], consensus[j]) for j in everyone] for i in everyone]
    before = [sum(voting[i] * weights[i][j] for i in everyone) for j in everyone]
    after = [sum(voting[i] * clipped[i][j] for i in everyone) for j in everyone]
    trust = [a / b if b else F(0) for a, b in zip(after, before)]
    incentive = unit(after)

    penalty = F(rules["bonds_penalty"], PARTS)
    aim = [[w + penalty * (c - w) for w, c in zip(*rows)] for rows in zip(weights, clipped)]
    bought = columns([[voting[i] * aim[i][j] for j in everyone] for i in everyone])
    held = dense(case["bonds"], n)
    for j, target in enumerate(neurons):
        if target["registered"] >= rules["bonds_since"]:
            for i in everyone:
                held[i][j] = F(0)
    held = columns(held)
    memory = F(rules["bonds_moving_average"], 1_000_000)
    bonds = columns([[memory * held[i][j] + (1 - memory) * bought[i][j] for j in everyone] for i in everyone])
    dividends = unit([sum(bonds[i][j] * incentive[j] for j in everyone) for i in everyone])

    miners, validators = incentive, dividends
    if not any(incentive) and not any(dividends):
        validators = voting if any(voting) else stake
    pay = [(m + v) / 2 if any(miners) else v for m, v in zip(miners, validators)]
    scores = [m + v for m, v in zip(miners, validators)]
    best = max(scores, default=F(0))
    largest = [max(bonds[i][j] for i in everyone) for j in everyone]
    stored = [[(j, bonds[i][j] / largest[j]) for j in everyone if bonds[i][j]] for i in everyone]

    def parts(values):
        return [int(v * PARTS) for v in values]

    return {
        "active": active, "permit": permits, "stake": parts(stake), "consensus": parts(consensus),
        "incentive": parts(incentive), "trust": parts(trust), "validator_trust": parts(map(sum, clipped)),
        "dividends": parts(dividends), "pruning_score": parts(s / best if best else F(0) for s in scores),
        "pay": [float(p) for p in pay],
        "bonds": [[[j, int(b * PARTS)] for j, b in row] for row in stored],
    }  # fmt: skip


def subnet(rng, n, validators, density, **changes):
    """A subnet by chance: a few validators with stake, the rest miners, some newcomers, some who were silent for long."""
    block = 10_000
    neurons = []
    for uid in range(n):
        stake = rng.randrange(1, 10**12) if uid < validators else rng.choice([0, 0, rng.randrange(1, 10**6)])
        late = rng.random() < 0.15
        neurons.append({
            "stake": stake, "permit": uid < validators and rng.random() < 0.9,
            "last_update": block - rng.randrange(1, 6_000), "registered": block - (rng.randrange(1, 700) if late else 9_000),
            "committed": block - rng.randrange(1, 500) if rng.random() < 0.2 else None,
        })  # fmt: skip
    weights, bonds = [[] for _ in neurons], [[] for _ in neurons]
    for i in range(n):
        if i < validators or rng.random() < 0.2:
            weights[i] = [[j, rng.randrange(1, PARTS + 1)] for j in range(n) if rng.random() < density]
        if i < validators:
            bonds[i] = [[j, rng.randrange(1, PARTS + 1)] for j in range(n) if rng.random() < density]
    rules = {
        "block": block, "bonds_since": block - 360, "activity_cutoff": 5_000, "kappa": 32_767,
        "bonds_moving_average": 900_000, "bonds_penalty": PARTS, "max_validators": 8, "stake_threshold": 0,
    }  # fmt: skip
    return {"neurons": neurons, "weights": weights, "bonds": bonds, "rules": {**rules, **changes}}


def main():
    rng = random.Random(20261121)
    cases = {
        "empty": subnet(rng, 0, 0, 0), "alone": subnet(rng, 1, 1, 1), "two": subnet(rng, 2, 1, 1),
        "small": subnet(rng, 5, 3, 0.9), "no weights": subnet(rng, 6, 3, 0), "no stake": subnet(rng, 4, 0, 0.5),
        "dense": subnet(rng, 16, 8, 1), "sparse": subnet(rng, 32, 12, 0.15),
        "large majority": subnet(rng, 12, 6, 0.8, kappa=50_000), "small majority": subnet(rng, 12, 6, 0.8, kappa=15_000),
        "no penalty": subnet(rng, 12, 6, 0.8, bonds_penalty=0), "half penalty": subnet(rng, 12, 6, 0.8, bonds_penalty=32_768),
        "no memory": subnet(rng, 12, 6, 0.8, bonds_moving_average=0), "threshold": subnet(rng, 12, 6, 0.8, stake_threshold=4 * 10**11),
        "silence": subnet(rng, 12, 6, 0.8, activity_cutoff=1_500), "few seats": subnet(rng, 12, 6, 0.8, max_validators=2),
    }  # fmt: skip
    vectors = [{"name": name, "epoch": case, "outcome": epoch(case)} for name, case in cases.items()]
    print("[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in vectors) + "\n]")


if __name__ == "__main__":
    main()

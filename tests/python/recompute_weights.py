"""Computes the weights of a cycle from its scoring snapshot, by docs/scoring-snapshot.md alone.

Usage: recompute_weights.py FILE... Prints one JSON object a file: the snapshot's digest and the weights as [uid, weight].
Needs nothing but Python's standard library.
"""

import calendar
import hashlib
import json
import re
import sys
import time
import uuid

POINTS = 10**12
DAY_30_US = 2_592_000 * 10**6
MINIMUM_US = 10 * 10**6
LOOKBACK = 7_200
MULTIPLIER = 4
VESTING = 20
MAX_EXECUTORS = 10_000
MAX_WEIGHT = 10**6
# Seconds that a class takes to appear.
SPIN_UP = {
    "spin_up-4min.gpu-24gb": 240,
    "always_on.gpu-24gb": 3,
    "always_on.llm.a6000": 30,
    "always_on.test": 3,
    "always_on.cpu.8c.16gb": 30,
}
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def key(text):
    """The 32 bytes of an SS58 key."""
    number = 0
    for letter in text:
        number = number * 58 + ALPHABET.index(letter)
    return number.to_bytes(35, "big")[1:33]


def micros(text):
    """Microseconds since 1970 of a time."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z", text)
    seconds = calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S"))
    return seconds * 10**6 + int((match.group(2) or "0").ljust(6, "0")[:6])


def amount(text):
    """The executor-microseconds of a score; None if it is no amount."""
    match = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?", text)
    if not match:
        return None
    value = int(match.group(1)) * 10**6 + int((match.group(2) or "0").ljust(6, "0")[:6])
    return value if value < 2**64 else None


def lower_median(values):
    """The lowest value that holders of half of the weight do not exceed."""
    total, below = sum(weight for _, weight in values), 0
    for value, weight in sorted(values):
        below += weight
        if below * 2 >= total:
            return value
    return 0


def acceptance(row):
    if row is None or row["offers"] < 20:
        return 1_000
    refused = min(row["refused"], row["offers"]) * 1_000 // row["offers"]
    return max(0, 1_000 - 4 * max(0, refused - 50))


def agree(snapshot):
    """The graded classes, and (executors, shown, acceptance) by miner and class."""
    inputs = snapshot["capacity"]
    if inputs is None:
        return set(), {}
    usable = {}
    for statement in inputs["statements"]:
        if statement["cycle"] == snapshot["span"]["cycle"]:
            usable.setdefault(statement["validator"], []).append(statement["rows"])
    usable = {validator: rows[0] for validator, rows in usable.items() if all(other == rows[0] for other in rows)}
    stakes = inputs["stakes"]
    total, stated = sum(stakes.values()), sum(stakes.get(validator, 0) for validator in usable)
    if total > 0 and stated * 2 >= total:
        voices = [(stakes.get(validator, 0), rows) for validator, rows in usable.items() if stakes.get(validator, 0)]
    else:
        voices = [(1, usable[snapshot["me"]])] if snapshot["me"] in usable else []
    indexed = []
    for stake, rows in voices:
        best = {}
        for row in rows:
            place = (row["miner"], row["class"], row["kind"])
            if place not in best or (row["executors"], row["credit"]) < (best[place]["executors"], best[place]["credit"]):
                best[place] = row
        indexed.append((stake, best))
    graded, agreed = set(inputs["classes"]), {}
    for miner, kind_of in {(place[0], place[1]) for _, rows in indexed for place in rows}:
        if kind_of not in graded:
            continue
        terms = []
        for kind in inputs["kinds"]:
            if kind == "unannounced" and SPIN_UP[kind_of] >= 60:
                continue
            rows = [(stake, rows.get((miner, kind_of, kind))) for stake, rows in indexed]
            executors = lower_median([(min(row["executors"], MAX_EXECUTORS) if row else 0, stake) for stake, row in rows])
            credit = lower_median([(row["credit"] if row else 0, stake) for stake, row in rows])
            accepted = lower_median([(acceptance(row), stake) for stake, row in rows])
            terms.append((executors, min(credit, executors * 1_000), accepted))
        agreed[miner, kind_of] = tuple(map(min, *terms)) if len(terms) > 1 else (terms or [(0, 0, 0)])[0]
    return graded, agreed


def block_at(epochs, time_us):
    begun = [epoch for epoch in epochs if epoch["first_ms"] <= max(0, time_us) // 1_000]
    if not begun:
        return 0
    epoch = begun[-1]
    since = (max(0, time_us) // 1_000 - epoch["first_ms"]) // max(1, epoch["block_ms"])
    return min(epoch["first_block"] + since, epoch["last_block"])


def allowances(snapshot, receipts):
    """The allowance of each receipt in microseconds."""
    inputs = snapshot["allowance"]
    epochs = [dict(epoch) for epoch in inputs["epochs"]]
    for at, epoch in enumerate(epochs):
        epoch["last_block"] = epochs[at + 1]["first_block"] - 1 if at + 1 < len(epochs) else 2**64
        epoch["before"] = epochs[at - 1]["permitted"] if at else {}
        epoch["executors"] = {(row["miner"], row["class"]): row["executors"] for row in epoch["proven"]}
    named = {}
    for spent in inputs["spent"]:
        group = named.setdefault((spent["validator"], spent["miner"], spent["class"]), {})
        for block in range(spent["first"], spent["last"] + 1):
            group[block] = group.get(block, 0) + 1
    for receipt in receipts:
        group = named.setdefault(receipt["group"], {})
        for block in set(receipt["blocks"]):
            group[block] = group.get(block, 0) + 1
    allowed = []
    for receipt in receipts:
        validator, miner, kind = receipt["group"]
        end = receipt["start"] + min(receipt["score"], max(receipt["took"], MINIMUM_US))
        oldest = max(0, block_at(epochs, receipt["start"]) - LOOKBACK)
        newest = min(block_at(epochs, end), snapshot["span"]["last_block"])
        if len(epochs) > 1 and max(0, end) // 1_000 < epochs[1]["first_ms"]:
            allowed.append(2**64)
            continue
        total = 0
        for block in set(receipt["blocks"]):
            if named[receipt["group"]][block] > 1 or not oldest <= block <= newest:
                continue
            for epoch in epochs:
                if not epoch["first_block"] <= block <= epoch["last_block"]:
                    continue
                stake = min(epoch["permitted"].get(validator, 0), epoch["before"].get(validator, 0))
                stakes = sum(epoch["permitted"].values())
                if stake and stakes:
                    proven = max(1, epoch["executors"].get((miner, kind), 0))
                    total += MULTIPLIER * stake * proven * epoch["block_ms"] * 1_000 // stakes
        allowed.append(total)
    return allowed


def valid_receipts(snapshot, neurons):
    """The receipts that may count, in the order of the snapshot."""
    earliest = snapshot["span"]["earliest"]
    seen, valid = {}, []
    for paid in snapshot["receipts"]:
        receipt = paid["receipt"]
        seen.setdefault((receipt["validator_hotkey"], receipt["job_uuid"]), []).append(receipt)
    counted = set()
    for paid in snapshot["receipts"]:
        receipt = paid["receipt"]
        miner, validator, score = receipt["miner_hotkey"], receipt["validator_hotkey"], amount(receipt["score_str"])
        signed, start, took = micros(receipt["timestamp"]), micros(receipt["time_started"]), receipt["time_took_us"]
        attempt = (validator, receipt["job_uuid"])
        fine = (
            miner in neurons
            and (validator == snapshot["me"] or validator in snapshot["validators"])
            and score
            and score <= DAY_30_US
            and paid["class"]
            and neurons.get(validator, {}).get("coldkey") != neurons[miner]["coldkey"]
            and not (earliest and signed < micros(earliest))
            and start + took <= signed + 60 * 10**6
            and signed - start - min(took, DAY_30_US) <= DAY_30_US
        )
        first = attempt not in counted
        counted.add(attempt)
        if fine and first and all(other == receipt for other in seen[attempt]):
            valid.append({
                "group": (validator, miner, paid["class"]),
                "attempt": uuid.UUID(receipt["job_uuid"]).bytes,
                "start": start,
                "took": took,
                "score": score,
                "blocks": receipt.get("block_numbers", []),
            })
    return valid


def counted_work(snapshot, neurons, graded, agreed):
    """Counted microseconds by class and miner."""
    valid = valid_receipts(snapshot, neurons)
    allowed = allowances(snapshot, valid) if snapshot["allowance"] else [2**64] * len(valid)
    for receipt, allowance in zip(valid, allowed):
        receipt["counted"] = min(receipt["score"], allowance, max(receipt["took"], MINIMUM_US))
    order = lambda receipt: (receipt["start"], key(receipt["group"][0]), receipt["attempt"], receipt["counted"])
    fitting = sorted((receipt for receipt in valid if receipt["counted"] > 0), key=order)
    price, burned = snapshot["rules"]["burn_per_second"], dict(snapshot["burned"])
    if price:
        paid = []
        for receipt in fitting:
            cost = -(-receipt["counted"] * price // 10**6)
            if burned.get(receipt["group"][0], -1) >= cost:
                burned[receipt["group"][0]] -= cost
                paid.append(receipt)
        fitting = paid
    running, work = {}, {}
    for receipt in fitting:
        _, miner, kind = receipt["group"]
        if kind in graded:
            executors = agreed.get((miner, kind), (0, 0, 0))[0]
            place = (miner, kind) if executors else ("coldkey", neurons[miner]["coldkey"], kind)
            ends = [end for end in running.get(place, []) if end > receipt["start"]]
            if len(ends) >= max(1, executors):
                running[place] = ends
                continue
            running[place] = ends + [receipt["start"] + receipt["counted"]]
        by_miner = work.setdefault(kind, {})
        by_miner[miner] = by_miner.get(miner, 0) + receipt["counted"]
    return work


def class_points(snapshot, members, kind, graded):
    """Points by miner and the burned ones, for a weight of 1. Members are (work, credit) by miner."""
    cycle = min(max(1, snapshot["span"]["duration_ms"]), 10**8)
    credits = sum(credit for _, credit in members.values())
    work = {miner: of[0] for miner, of in members.items()}
    fits, worked = credits * cycle // 1_000, sum(work.values())
    if kind in graded and worked > fits:
        work = {miner: ms * fits // worked for miner, ms in work.items()}
        worked = sum(work.values())
    premium = 1_000 - min(1_000, snapshot["rules"]["capacity_per_mille"])
    capacity = credits * cycle
    slow = kind in graded and SPIN_UP[kind] >= 60

    def part(w, c):
        if kind not in graded:
            return POINTS * w // worked if worked else 0
        if not credits:
            return 0
        if slow:
            return POINTS * w * 1_000 // capacity
        return POINTS * (premium * w * credits + (capacity - premium * worked) * c) // (capacity * credits)

    points, through, sums = {}, 0, (0, 0)
    for miner in sorted(members, key=key):
        sums = (sums[0] + work[miner], sums[1] + members[miner][1])
        points[miner] = part(*sums) - through
        through += points[miner]
    return points, POINTS - through if slow and credits else 0


def split(snapshot, earned, neurons):
    """Points by hotkey, once each coldkey's are divided."""
    groups, shares = {}, {}
    for miner, points in earned.items():
        if points:
            groups.setdefault(neurons[miner]["coldkey"], []).append(miner)
    mains = {main["coldkey"]: main for main in snapshot["main_hotkeys"]}
    for coldkey, members in groups.items():
        total = sum(earned[miner] for miner in members)
        own = lambda hotkey: hotkey in neurons and neurons[hotkey]["coldkey"] == coldkey
        main = mains.get(coldkey)
        if main and own(main["main"]):
            if main["before"] and main["before"] != main["main"] and own(main["before"]):
                total += total * snapshot["rules"]["bonus_per_mille"] // 1_000
            members = [miner for miner in members if miner != main["main"]]
            shares[main["main"]] = total * 800 // 1_000 if members else total
            total -= shares[main["main"]]
        members.sort(key=lambda miner: (neurons[miner]["uid"], key(miner)))
        for at, miner in enumerate(members):
            shares[miner] = total // len(members) + (1 if at < total % len(members) else 0)
    return shares


def cycle_points(snapshot, neurons, convicted):
    """The points of this cycle by hotkey."""
    graded, agreed = agree(snapshot)
    work = counted_work(snapshot, neurons, graded, agreed)
    for deferred in snapshot["deferred"]:
        by_miner = work.setdefault(deferred["class"], {})
        by_miner[deferred["miner"]] = by_miner.get(deferred["miner"], 0) + deferred["ms"] * 1_000
    quality = {}
    for factor in snapshot["quality"]:
        quality.setdefault(factor["miner"], min(1_000, factor["per_mille"]))
    scaled = lambda miner, value: value * quality.get(miner, 1_000) // 1_000
    counts = lambda miner: miner in neurons and not convicted(neurons[miner])
    cycle, earned, burned = min(max(1, snapshot["span"]["duration_ms"]), 10**8), {}, 0
    for kind in SPIN_UP:
        members = {}
        for miner, micro in work.get(kind, {}).items():
            if counts(miner):
                _, shown, accepted = agreed.get((miner, kind), (0, 0, 0))
                credit = shown * min(1_000, accepted) // 1_000
                fits = credit * cycle // 1_000 if kind in graded else MAX_EXECUTORS * cycle
                members[miner] = (scaled(miner, min(micro // 1_000, fits)), 0)
        for (miner, of), (_, shown, accepted) in agreed.items():
            credit = shown * min(1_000, accepted) // 1_000
            if of == kind and credit and counts(miner):
                members[miner] = (members.get(miner, (0, 0))[0], scaled(miner, credit))
        weight = min(MAX_WEIGHT, snapshot["rules"]["class_weights"].get(kind, 0))
        points, rest = class_points(snapshot, members, kind, graded)
        burned += rest * weight
        for miner, share in points.items():
            earned[miner] = earned.get(miner, 0) + share * weight
    points = split(snapshot, earned, neurons)
    burner = snapshot["rules"]["burn_hotkey"]
    if burner in neurons:
        points[burner] = points.get(burner, 0) + (burned if points or burned else POINTS)
    return {miner: share for miner, share in points.items() if share}


def listed(snapshot, amounts):
    """The list of weights for amounts by uid, filled up to what the subnet demands."""
    largest = max(amounts.values())
    scaled = {uid: (2 * 65_535 * value + largest) // (2 * largest) for uid, value in amounts.items()}
    scaled = {uid: weight for uid, weight in scaled.items() if weight}
    idle = sorted(neuron["uid"] for neuron in snapshot["neurons"] if neuron["uid"] not in scaled)
    missing = max(0, snapshot["rules"]["min_entries"] - len(scaled))
    scaled.update({uid: 0 for uid in idle[:missing]})
    return sorted(scaled.items())


def standing_weights(snapshot, convicted):
    """The weights that are set in a cycle that pays nobody: none if all may keep what they have, or if nobody burns."""
    by_uid = {}
    for neuron in snapshot["neurons"]:
        by_uid.setdefault(neuron["uid"], neuron)

    def keeps(row):
        now = by_uid.get(row["uid"])
        if now is None or now["hotkey"] != row["hotkey"] or convicted(row) or convicted(now):
            return False
        return not (row["registered"] and now["registered"]) or row["registered"] == now["registered"]

    rows = snapshot.get("standing", [])
    if all(map(keeps, rows)):
        return []
    burners = [
        neuron
        for hotkey in (snapshot["rules"]["burn_hotkey"], snapshot.get("owner"))
        for neuron in sorted(by_uid.values(), key=lambda neuron: neuron["uid"])
        if neuron["hotkey"] == hotkey and not convicted(neuron)
    ]
    if not burners:
        return []
    amounts = {}
    for row in rows:
        uid = row["uid"] if keeps(row) else burners[0]["uid"]
        amounts[uid] = amounts.get(uid, 0) + row["weight"]
    return listed(snapshot, amounts)


def weights(snapshot):
    """The weights as a sorted list of (uid, weight)."""
    neurons = {}
    for neuron in snapshot["neurons"]:
        neurons.setdefault(neuron["hotkey"], neuron)
    keys = {conviction[name] for conviction in snapshot["convictions"] for name in ("coldkey", "hotkey")}
    convicted = lambda neuron: neuron["coldkey"] in keys or neuron["hotkey"] in keys
    points = cycle_points(snapshot, neurons, convicted)
    if not points and not any(map(convicted, snapshot["neurons"])):
        return standing_weights(snapshot, convicted)
    cycles = {cycle["cycle"]: cycle["rows"] for cycle in snapshot["history"]}
    rows = [row for cycle in sorted(cycles)[-(VESTING - 1):] for row in cycles[cycle]]

    def paid(neuron):
        past = sum(
            row["points"]
            for row in rows
            if row["coldkey"] == neuron["coldkey"]
            and (
                (row["uid"], row["registered"]) == (neuron["uid"], neuron["registered"])
                if row["registered"]
                else row["hotkey"] == neuron["hotkey"]
            )
        )
        return (points.get(neuron["hotkey"], 0) + past) // VESTING

    vested = {neuron["uid"]: paid(neuron) for neuron in neurons.values() if not convicted(neuron)}
    largest = max(vested.values(), default=0)
    if not largest:
        return standing_weights(snapshot, convicted)
    return listed(snapshot, vested)


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            text = file.read()
        snapshot = json.loads(text)
        if snapshot["format"] not in ("muster/scoring-snapshot/2", "muster/scoring-snapshot/3"):
            sys.exit(f"this program does not read {snapshot['format']!r}")
        if json.dumps(snapshot, sort_keys=True, separators=(",", ":")).encode("ascii") != text:
            sys.exit(f"{path} is not the canonical text of its snapshot")
        digest = "sha256:" + hashlib.sha256(text).hexdigest()
        print(json.dumps({"snapshot": digest, "weights": weights(snapshot)}))


if __name__ == "__main__":
    main()

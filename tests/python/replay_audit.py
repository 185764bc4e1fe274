#!/usr/bin/env python3
"""Replays bundles of audit evidence from docs/audit-bundle.md alone.

    python3 replay_audit.py --draws FILE BUNDLE...     prints one line of JSON for each

Signatures and the proofs of draws are sr25519's, which Python's library has not: this program checks the digests, places, draws
and sums. It takes the 32 bytes of each draw from FILE (a JSON list with a list of hex texts for each bundle; `muster audit replay
--json` prints them as "draws"), and does not check who signed. Where a bundle shows keys of nonces, their 32 bytes follow those of
the draws ("nonce_keys").
"""

import base64
import hashlib
import hmac
import json
import math
import struct
import sys

BILLION, ONE, CAP = 10**9, 1 << 32, 49570624149
ENTROPIES, MARGINS = [500, 1500, 3000], [0, 10_000, 50_000, 200_000, 500_000, 1_000_000, 2_000_000]
SHARES, ALARM, CONFIRMATION, MOST = [100, 30, 10, 3], 182_500_000, 1_000, 1 << 80


class Refused(Exception):
    pass


def require(holds, why):
    if not holds:
        raise Refused(why)


def sha(raw):
    return hashlib.sha256(raw).digest()


def raw(digest):
    require(digest.startswith("sha256:"), "a digest")
    return bytes.fromhex(digest[7:])


def le64(digest):
    return struct.unpack("<Q", digest[:8])[0]


ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def key(address):
    number = 0
    for character in address:
        number = number * 58 + ALPHABET.index(character)
    return number.to_bytes(35, "big")[1:33]


# Statements.


class Reader:
    def __init__(self, text, tag):
        self.bytes = base64.b64decode(text, validate=True)[:-64]
        require(self.bytes.startswith(tag), "another statement")
        self.digest, self.at = sha(self.bytes), len(tag)

    def take(self, count):
        require(self.at + count <= len(self.bytes), "a statement that ends too early")
        self.at += count
        return self.bytes[self.at - count : self.at]

    def number(self, count):
        return int.from_bytes(self.take(count), "big")

    def text(self):
        return self.take(self.number(2))

    def maybe(self, read):
        return read() if self.number(1) else None


def header(text):
    r = Reader(text, b"muster/audit-bucket/1")
    return {
        "genesis": r.take(32), "netuid": r.number(2), "validator": r.take(32), "bucket": r.number(8), "answers": r.number(8),
        "root": r.take(32), "previous": r.take(32), "shares": r.number(8), "share_root": r.take(32), "canaries": r.take(32),
    }


def attestation(text):
    r = Reader(text, b"muster/attestation/1")
    found = {"digest": r.digest, "session": r.take(16), "session_key": r.take(32)}
    r.take(32)
    found |= {"miner": r.take(32), "audience": r.take(32)}
    r.take(64), r.text(), r.text()
    return found | {"image": r.take(32), "model": r.maybe(lambda: r.take(32))}


def proof(text):
    r = Reader(text, b"muster/response-proof/1")
    found = {"digest": r.digest, "session": r.take(16), "sequence": r.number(8), "previous": r.take(32)}
    r.take(32)
    found |= {"audience": r.take(32), "client": r.maybe(lambda: r.take(32)), "attestation": r.take(32)}
    found |= {"client_nonce": r.maybe(lambda: r.take(32)), "nonce": r.maybe(lambda: r.take(32))}
    r.text(), r.text(), r.take(2), r.maybe(r.text)
    found |= {"scheme": r.number(1), "input": r.take(32)}
    r.take(32), r.take(8), r.take(32), r.take(8), r.maybe(lambda: r.take(8)), r.take(8)
    if r.number(1):
        found |= {"prompt_ids": r.take(32), "prompt_tokens": r.number(4), "output_ids": r.take(32), "tokens": r.number(4)}
    return found


def by_path(leaf, index, count, path):
    """The root over `count` leaves if `leaf` is the `index`th and `path` stands beside it."""
    if count == 1:
        require(index == 0 and not path, "a path that is too long")
        return leaf
    require(path and 0 <= index < count, "a path that is too short, or a place outside the tree")
    split = 1 << (count - 1).bit_length() - 1
    if index < split:
        return sha(b"\1" + by_path(leaf, index, split, path[:-1]) + path[-1])
    return sha(b"\1" + path[-1] + by_path(leaf, index - split, count - split, path[:-1]))


# Sums.


def high(k, n):
    if n == 0:
        return BILLION
    square = -(-k * (n - k) * BILLION**2 // n) + BILLION**2
    root = math.isqrt(square)
    root += root * root < square
    return min(BILLION, -(-((k + 2) * BILLION + 2 * root) // (n + 4)))


def lg(n):
    index = n.bit_length() - 1
    x, digits = n << 63 - index, 0
    for _ in range(32):
        x = x * x >> 63
        digits <<= 1
        if x >> 64:
            digits, x = digits | 1, x >> 1
    return (index << 32) + digits


ROOTS = [1 << 63]
for _ in range(32):
    ROOTS.append(math.isqrt(ROOTS[-1] << 62))


def power(x):
    p = 1 << 62
    for digit in range(32):
        if x >> 31 - digit & 1:
            p = p * ROOTS[digit + 1] >> 62
    whole = x >> 32
    return p << whole >> 30 if whole >= 0 else p >> 30 - whole


def counts(listed):
    cells = [[0] * 9 for _ in range(4)]
    for cell, count in zip(listed[::2], listed[1::2]):
        cells[cell // 9][cell % 9] = count
    return cells


def total(answers):
    return [[sum(answer[e][m] for answer in answers) for m in range(9)] for e in range(4)]


def tails(machines):
    def tail(e, m):
        return max((high(sum(cells[e][m:]), sum(cells[e])) for cells in machines), default=BILLION)

    return [[tail(e, m) for m in range(1, 9)] for e in range(4)]


def widened(bound):
    wide = [[min(BILLION, 3 * tail) for tail in row] for row in bound]
    return [[max(row[0], BILLION // 100)] + row[1:] for row in wide]


def table(bound, alternative):
    logs = []
    for tail, row in zip(bound, alternative):
        tokens = sum(row)
        if tokens == 0:
            logs.append([0] * 9)
            continue
        honest = [a - b for a, b in zip([BILLION] + tail, tail + [0])]
        cheat = [(2 * count + 1) * BILLION // (2 * tokens + 9) for count in row]
        pools = []
        for pool in zip(cheat, honest, [1] * 9):
            while pools and (pools[-1][0] * pool[1] > pool[0] * pools[-1][1] or pools[-1][1] == 0):
                pool = tuple(map(sum, zip(pools.pop(), pool)))
            pools.append(pool)
        logs.append([lg(a) - lg(b) - 2 for a, b, bins in pools for _ in range(bins)])
    return logs


def likelihood(logs, cells):
    return power(min(CAP, sum(count * log for row, counted in zip(logs, cells) for log, count in zip(row, counted))))


def exceeds(values, name):
    if not values:
        return True
    seed, blocks = sha(b"muster/audit-bootstrap/1" + name.encode()), -(-len(values) // 8)
    sums = [sum(values[(start + i) % len(values)] for i in range(8)) for start in range(len(values))]
    draws = iter(range(1000 * blocks))
    means = sorted(
        sum(sums[le64(sha(seed + struct.pack("<Q", next(draws)))) % len(values)] for _ in range(blocks)) // (8 * blocks)
        for _ in range(1000)
    )
    return means[950] > ONE


class Calibration:
    def __init__(self, given):
        self.machines = [(one["machine"], one["gpu"], [counts(row) for row in one["answers"]]) for one in given["machines"]]
        totals = [total(answers) for _, _, answers in self.machines]
        alternatives = {one["name"]: total([counts(row) for row in one["answers"]]) for one in given["alternatives"]}
        failed = set()
        for at, (machine, _, answers) in enumerate(self.machines):
            others = tails(totals[:at] + totals[at + 1 :])
            for name, cells in alternatives.items():
                logs = table(others, cells)
                if exceeds([likelihood(logs, answer) for answer in answers], f"{machine}\n{name}"):
                    failed.add(name)
        self.tested = [name for name in alternatives if name not in failed]
        gpus = {gpu for _, gpu, _ in self.machines}
        self.level = 0 if len(self.machines) < 2 or not self.tested else 1 if len(self.machines) < 5 or len(gpus) < 2 else 2
        bound = tails(totals)
        self.plain = [table(bound, alternatives[name]) for name in self.tested]
        bound = bound if self.level == 2 else widened(bound)
        self.convicting = [table(bound, alternatives[name]) for name in self.tested]


def reached(answers, restart, threshold, tables):
    """The number of answers after which the mean wealth reaches the threshold; an answer without a score is None."""
    wealth = [ONE] * (len(tables) * 4)
    for place, cells in enumerate(answers, 1):
        for at, logs in enumerate(tables):
            ratio = 0 if cells is None else likelihood(logs, cells)
            for x, share in enumerate(SHARES):
                before = wealth[4 * at + x]
                before = max(ONE, before) if restart else before
                wealth[4 * at + x] = min(MOST, before * (((100 - share) * ONE + share * ratio) // 100) >> 32)
        if wealth and sum(wealth) // len(wealth) // ONE >= threshold:
            return place
    return None


def test(answers, tables):
    alarm = reached([first for first, _ in answers], True, ALARM, tables)
    found = {"answers": len(answers), "alarm": alarm, "rescored": False, "fresh": False}
    if alarm:
        found["rescored"] = reached([second for _, second in answers[:alarm]], True, ALARM, tables) is not None
        found["fresh"] = reached([second for _, second in answers[alarm:]], False, CONFIRMATION, tables) is not None
    return found


# Bundles.


def cells_of(tokens):
    cells = [[0] * 9 for _ in range(4)]
    for margin, entropy in tokens:
        m = 8 if margin == -1 else sum(margin > edge for edge in MARGINS)
        cells[sum(entropy >= edge for edge in ENTROPIES)][m] += 1
    return cells


def check_buckets(bundle, draws):
    buckets, last = {}, -1
    require(len(draws) == len(bundle["buckets"]), "a draw for each bucket")
    for given, draw in zip(bundle["buckets"], draws):
        h = header(given["header"])
        ours = h["genesis"] == raw(bundle["genesis"]) and h["netuid"] == bundle["netuid"] and h["validator"] == key(bundle["validator"])
        require(ours and h["bucket"] > last, "a header of another subnet, or out of order")
        last, h["draw"], h["ppm"] = h["bucket"], bytes.fromhex(draw), {}
        for share in given["shares"]:
            name = bundle["model"].encode()
            leaf = b"muster/audit-share/1" + key(share["miner"]) + struct.pack(">H", len(name)) + name + struct.pack(">I", share["ppm"])
            path = [raw(digest) for digest in share["path"]]
            require(by_path(sha(b"\0" + leaf), share["position"], h["shares"], path) == h["share_root"], "a share")
            h["ppm"][key(share["miner"])] = share["ppm"]
        buckets[h["bucket"]] = h
    return buckets


def check_canary(origin, h, p, seen):
    if not isinstance(origin, dict):
        return False
    canary = origin["canary"]
    request = base64.b64decode(canary["request"], validate=True)
    path = [raw(digest) for digest in canary["path"]]
    leaf = sha(b"\0" + bytes.fromhex(canary["salt"]) + request)
    require(by_path(leaf, canary["position"], canary["length"], path) == h["canaries"], "a prompt of another list")
    require(p["scheme"] == 0, "this program knows the hash scheme raw-http only")
    require(sha(request) == p["input"] and (h["canaries"], canary["position"]) not in seen, "a prompt that was not answered, or twice")
    seen.add((h["canaries"], canary["position"]))
    return True


def ids_digest(ids):
    return sha(b"".join(struct.pack(">I", one) for one in ids))


def check_words(given, p):
    words = given.get("words")
    if words is None:
        return
    require("output_ids" in p and len(words["output"]) <= 131_072, "words without ids in the proof")
    for name, digest, count in ("prompt", "prompt_ids", "prompt_tokens"), ("output", "output_ids", "tokens"):
        require(len(words[name]) == p[count] and ids_digest(words[name]) == p[digest], "words of another answer")
    if isinstance(given["origin"], dict):
        require(words.get("request") is None, "a request that the opened prompt has")
        return
    require(p["scheme"] == 0, "this program knows the hash scheme raw-http only")
    require(given["origin"] == "consenting" and words.get("request") is not None, "the words of a user")
    require(sha(base64.b64decode(words["request"], validate=True)) == p["input"], "another request")


def equal_facts(p):
    return p["client"], p["client_nonce"], p["input"]


def is_derived(p, nonce_key, ordinals):
    """Whether the key gives the proof's nonce for one of so many ordinals."""
    maybe = b"\0" if p["client_nonce"] is None else b"\1" + p["client_nonce"]
    facts = b"muster/gateway-nonce/1" + p["attestation"] + p["client"] + maybe + p["input"]
    return any(hmac.digest(nonce_key, facts + struct.pack(">Q", ordinal), "sha256") == p["nonce"] for ordinal in range(ordinals))


def nonce_state(given, p, keys, equal):
    ended = given["bucket"] // 12
    of_time = [keys.get(period) for period in (ended, ended - 1) if period >= 0]
    own, ordinals = True, min(equal, 64)
    if isinstance(given["origin"], dict):
        client = sha(b"muster/own-client/1" + bytes.fromhex(given["origin"]["canary"]["salt"]))
        own, ordinals = p["client"] == client and p["client_nonce"] is None, 1
    if own and any(nonce_key is not None and is_derived(p, nonce_key, ordinals) for nonce_key in of_time):
        return "derived"
    return "unchecked" if None in of_time else "foreign"


def check_log(bundle, buckets, keys):
    answers, unlogged, places, prompts = [], 0, set(), set()
    for session in bundle["sessions"]:
        a = attestation(session["attestation"])
        model = a["model"] is None or a["model"] == raw(bundle["calibration"]["model"])
        ours = a["miner"] in map(key, bundle["miners"]) and a["audience"] == key(bundle["validator"])
        require(ours and model and a["image"] == raw(bundle["calibration"]["engine"]), "an attestation of another miner, model or engine")
        previous, equal = a["digest"], {}
        numbered = [(proof(given["proof"]), given) for given in session["answers"]] + [(proof(text), None) for text in session.get("others", [])]
        for p, _ in numbered:
            equal[equal_facts(p)] = equal.get(equal_facts(p), 0) + 1
        for sequence, (p, given) in enumerate(sorted(numbered, key=lambda one: one[0]["sequence"])):
            fits = p["session"] == a["session"] and p["sequence"] == sequence and p["previous"] == previous and p["audience"] == a["audience"]
            require(fits and p["attestation"] == a["digest"], "a proof of another session, or a gap")
            previous = p["digest"]
            if given is None:
                unlogged += p["client"] is not None
                continue
            h = buckets.get(given["bucket"])
            require(h is not None and p["client"] is not None, "a bucket that is not there")
            numbers = struct.pack(">Q", sequence) + p["digest"] + struct.pack(">QQ", given["output_tokens"], given["earned"])
            leaf = b"muster/answer-leaf/1" + p["session"] + numbers + p["client"]
            path = [raw(digest) for digest in given["path"]]
            place = given["bucket"], given["position"]
            require(by_path(sha(b"\0" + leaf), given["position"], h["answers"], path) == h["root"] and place not in places, "a leaf")
            places.add(place)
            canary = check_canary(given["origin"], h, p, prompts)
            require(a["miner"] in h["ppm"], "a bucket without the miner's share")
            check_words(given, p)
            drawn = le64(sha(b"muster/draw/1" + h["draw"] + p["digest"])) * 10**6 < h["ppm"][a["miner"]] << 64
            nonce = nonce_state(given, p, keys, equal[equal_facts(p)])
            answers.append((place, given, p, canary or drawn, nonce))
    return sorted(answers, key=lambda answer: answer[0]), unlogged


def scores(given, p, nonce):
    outcome = given.get("outcome")
    by_reference = (outcome or {}).get("scored", [])
    require(len(by_reference) <= 2, "more scores than references")
    by_reference = by_reference + [None] * (2 - len(by_reference))
    for tokens in by_reference:
        require(tokens is None or (0 < len(tokens) <= 131_072 and len(tokens) == p.get("tokens", len(tokens))), "another number of tokens")
    return [None if tokens is None or nonce == "foreign" else cells_of(tokens) for tokens in by_reference]


def replay(text, draws):
    bundle = json.loads(text)
    answers = [answer for session in bundle["sessions"] for answer in session["answers"]]
    has_words = any(answer.get("words") is not None for answer in answers)
    shown = bundle.get("nonce_keys", [])
    plain = bundle["format"] == "muster/audit-bundle/1" and not has_words and not shown
    require(plain or bundle["format"] == "muster/audit-bundle/2", "another format")
    require(bundle["calibration"]["format"] == "muster/audit-calibration/1", "another format of the calibration")
    first, second = bundle["references"]
    differ = (first["machine"], first["engine"]) != (second["machine"], second["engine"])
    require(differ and first["engine"] == bundle["calibration"]["engine"], "references that are one, or of another engine")
    draws, nonce_keys = draws[: len(bundle["buckets"])], draws[len(bundle["buckets"]) :]
    periods = [one["period"] for one in shown]
    require(len(nonce_keys) == len(shown) and periods == sorted(set(periods)), "a key for each period, in rising order")
    keys = dict(zip(periods, map(bytes.fromhex, nonce_keys)))
    logged, unlogged = check_log(bundle, check_buckets(bundle, draws), keys)
    audited = [answer for answer in logged if answer[3]]
    clients, tested, nonces = {}, [], {"derived": 0, "foreign": 0, "unchecked": 0}
    for place, given, p, _, nonce in audited:
        stratum = p["client"], place[0] // 288
        clients[stratum] = clients.get(stratum, 0) + 1
        if clients[stratum] <= 4:
            tested.append((given["origin"] == "user", scores(given, p, nonce)))
            nonces[nonce] += 1
    calibration = Calibration(bundle["calibration"])
    everything = test([cells for _, cells in tested], calibration.plain)
    public = test([cells for private, cells in tested if not private], calibration.convicting)
    private = test([cells for private, cells in tested if private], calibration.convicting)
    scored = sum(any(cells) for _, cells in tested)
    confirmed = lambda found: found["rescored"] and found["fresh"]
    discriminates = bool(confirmed(private) and not public["alarm"] and public["answers"] >= private["alarm"])
    if calibration.level == 0:
        verdict = "unproven(no calibration)"
    elif scored == 0:
        verdict = "unproven(no scored answers)"
    elif not (everything["alarm"] or public["alarm"] or private["alarm"]):
        verdict = "consistent"
    elif bundle["calibration"]["statistic"] == "surprise":
        verdict = "weak"
    else:
        verdict = "convicted" if confirmed(public) else "suspect"
    quality = 0 if verdict == "convicted" else 500 if verdict == "suspect" and discriminates else 1000
    return ({"nonces": nonces} if shown else {}) | {
        "bundle": "sha256:" + hashlib.sha256(text.encode()).hexdigest(), "verdict": verdict, "discriminates": discriminates,
        "quality_per_mille": quality, "level": str(calibration.level), "alternatives": calibration.tested,
        "counts": {
            "logged": len(logged), "unlogged": unlogged, "audited": len(audited), "beyond_client": len(audited) - len(tested), "scored": scored,
            "unscored": len(tested) - scored,
        },
        "tests": {"all": everything, "public": public, "private": private},
    }


def main(arguments):
    require(len(arguments) > 2 and arguments[0] == "--draws", "usage: replay_audit.py --draws FILE BUNDLE...")
    with open(arguments[1]) as file:
        draws = json.load(file)
    for file, drawn in zip(arguments[2:], draws, strict=True):
        with open(file) as opened:
            text = opened.read()
        try:
            print(json.dumps(replay(text, drawn), sort_keys=True))
        except Refused as why:
            print(json.dumps({"refused": str(why)}))


if __name__ == "__main__":
    main(sys.argv[1:])

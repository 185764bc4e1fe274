#!/usr/bin/env python3
"""Replays bundles of audit evidence from docs/audit-bundle.md alone.

    python3 replay_audit.py --draws FILE BUNDLE...     prints one line of JSON for each

Signatures and the proofs of draws are sr25519's, which Python's library has not: this program checks the digests, places, draws
and sums. It takes the 32 bytes of each draw from FILE (a JSON list with a list of hex texts for each bundle; `muster audit replay
--json` prints them as "draws"), and does not check who signed. Where a bundle shows keys of nonces, their 32 bytes follow those of
the draws ("nonce_keys"), and those of the keys of its own prompts ("own_keys") come last.
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
# The formats that show commitments to lists of own prompts, and missing answers.
COMMITTING = ("muster/audit-bundle/3", "muster/audit-bundle/4", "muster/audit-bundle/5")
# Of these, the formats whose leaves commit to clients, and the one whose headers name heads of lists.
TO_CLIENTS, TO_HEADS = COMMITTING[1:], COMMITTING[2]
# In the place of an answer's counts: its session signed false ids.
FALSE = "false ids"


class Refused(Exception):
    pass


def require(holds, why):
    if not holds:
        raise Refused(why)


def sha(raw):
    return hashlib.sha256(raw).digest()


def hexes(text, count):
    require(isinstance(text, str) and len(text) == 2 * count and set(text) <= set("0123456789abcdefABCDEF"), "hexadecimal digits")
    return bytes.fromhex(text)


def raw(digest):
    require(isinstance(digest, str) and digest.startswith("sha256:") and digest == digest.lower(), "a digest")
    return hexes(digest[7:], 32)


def base64_bytes(text):
    decoded = base64.b64decode(text, validate=True)
    require(base64.b64encode(decoded).decode() == text, "base64 that is not written in one way only")
    return decoded


def le64(digest):
    return struct.unpack("<Q", digest[:8])[0]


# The last codes of hash schemes and of ends of streams.
SCHEMES, ENDS = 1, 5
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def key(address):
    require(isinstance(address, str) and address[:1] == "5" and len(address) <= 64, "an address of the prefix 42")
    number = 0
    for character in address:
        number = number * 58 + ALPHABET.index(character)
    decoded = number.to_bytes(35, "big")
    checksum = hashlib.blake2b(b"SS58PRE" + decoded[:33]).digest()[:2]
    require(decoded[0] == 42 and decoded[33:] == checksum, "an address with a wrong checksum")
    return decoded[1:33]


# Statements.


class Reader:
    def __init__(self, text, tag):
        require(isinstance(text, str) and len(text) <= 65_536, "a statement")
        decoded = base64_bytes(text)
        require(len(decoded) > 64 and decoded.startswith(tag), "another statement")
        self.bytes = decoded[:-64]
        self.digest, self.at = sha(self.bytes), len(tag)

    def take(self, count):
        require(self.at + count <= len(self.bytes), "a statement that ends too early")
        self.at += count
        return self.bytes[self.at - count : self.at]

    def number(self, count):
        return int.from_bytes(self.take(count), "big")

    def text(self):
        count = self.number(2)
        require(count <= 4_096, "a text that is too long")
        return self.take(count).decode()

    def maybe(self, read):
        flag = self.number(1)
        require(flag <= 1, "a flag")
        return read() if flag else None

    def code(self, most):
        code = self.number(1)
        require(code <= most, "a code")
        return code

    def done(self, found):
        require(self.at == len(self.bytes), "a statement that ends too late")
        return found


def header(text):
    r = Reader(text, b"muster/audit-bucket/1")
    return r.done({
        "digest": r.digest, "genesis": r.take(32), "netuid": r.number(2), "validator": r.take(32), "bucket": r.number(8), "answers": r.number(8),
        "root": r.take(32), "previous": r.take(32), "shares": r.number(8), "share_root": r.take(32), "canaries": r.take(32),
    })


def attestation(text):
    r = Reader(text, b"muster/attestation/1")
    found = {"digest": r.digest, "session": r.take(16), "session_key": r.take(32)}
    r.take(32)
    found |= {"miner": r.take(32), "audience": r.take(32)}
    r.take(64), r.text(), r.text()
    found |= {"image": r.take(32), "model": r.maybe(lambda: r.take(32))}
    r.code(SCHEMES), r.take(32)
    return r.done(found)


def proof(text):
    r = Reader(text, b"muster/response-proof/1")
    found = {"digest": r.digest, "session": r.take(16), "sequence": r.number(8), "previous": r.take(32)}
    r.take(32)
    found |= {"audience": r.take(32), "client": r.maybe(lambda: r.take(32)), "attestation": r.take(32)}
    found |= {"client_nonce": r.maybe(lambda: r.take(32)), "nonce": r.maybe(lambda: r.take(32))}
    found |= {"method": r.text(), "path": r.text(), "status": r.number(2)}
    r.maybe(r.text)
    found |= {"scheme": r.code(SCHEMES), "input": r.take(32)}
    found |= {"body": r.take(32), "body_bytes": r.number(8)}
    r.take(32), r.take(8), r.maybe(lambda: r.take(8)), r.take(8)
    found |= r.maybe(lambda: {"prompt_ids": r.take(32), "prompt_tokens": r.number(4), "output_ids": r.take(32), "tokens": r.number(4)}) or {}
    r.maybe(lambda: r.take(96))
    found |= {"end": r.code(ENDS)}
    return r.done(found)


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


# Shapes: what the fields of a bundle may hold.

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1


def whole(most, least=0):
    def check(value):
        require(isinstance(value, int) and not isinstance(value, bool) and least <= value <= most, "a whole number")

    return check


def text_of(most):
    return lambda value: require(isinstance(value, str) and len(value.encode()) <= most, "a text, or one that is too long")


def one_of(*values):
    return lambda value: require(isinstance(value, str) and value in values, "another word")


def listed(check, most=None):
    def check_all(value):
        require(isinstance(value, list) and (most is None or len(value) <= most), "a list, or one that is too long")
        for one in value:
            check(one)

    return check_all


def maybe(check):
    return lambda value: value is None or check(value)


def flag(value):
    require(isinstance(value, bool), "true or false")


def fields(needed, optional=None, only=False):
    def check(value):
        require(isinstance(value, dict) and needed.keys() <= value.keys(), "a map with all of its fields")
        require(not only or value.keys() <= needed.keys(), "a field too many")
        for name, of_field in (needed | (optional or {})).items():
            if name in value:
                of_field(value[name])

    return check


def cells(value):
    listed(whole(U32))(value)
    least = 0
    require(len(value) % 2 == 0, "a cell without a count")
    for cell, count in zip(value[::2], value[1::2]):
        require(least <= cell < 36 and count > 0, "cells rise, and counts begin at 1")
        least = cell + 1


def token(value):
    require(isinstance(value, list) and len(value) == 2, "a token")
    whole(U32, -1)(value[0]), whole(U32)(value[1])


REASONS = (
    "no_token_ids", "no_seed", "truncated_body", "other_tokenizer", "beyond_context", "session_expired", "reference_died",
    "reference_stalled", "reference_self_test", "reference_refused", "not_audited",
)
ANY_TEXT = text_of(1 << 30)
DIGEST_PATH = listed(raw)
IDS = listed(whole(U32))


def tagged(kinds):
    def check(value):
        require(isinstance(value, dict) and len(value) == 1 and next(iter(value)) in kinds, "another kind")
        kind, content = next(iter(value.items()))
        kinds[kind](content)

    return check


def origin_shape(value):
    if isinstance(value, str):
        return one_of("user", "consenting")(value)
    needed = {"position": whole(U64), "length": whole(U64), "salt": ANY_TEXT, "request": ANY_TEXT, "path": DIGEST_PATH}
    tagged({"canary": fields(needed, {"list": maybe(raw)})})(value)


CALIBRATION = fields({
    "format": ANY_TEXT, "statistic": one_of("margin", "surprise"), "model": raw, "engine": raw, "arguments": raw,
    "machines": listed(fields({"machine": text_of(256), "gpu": text_of(256), "answers": listed(cells)}, {"class": maybe(text_of(256))}), 64),
    "alternatives": listed(fields({"name": text_of(256), "answers": listed(cells)}), 16),
}, {
    "reference": maybe(fields({"engine": raw, "arguments": raw})),
    "sampler": maybe(fields({"engine": one_of("llama.cpp", "vllm"), "version": text_of(256)}, only=True)),
    "known_answers": listed(fields({"request": text_of(65_536), "prompt": IDS, "output": IDS}, only=True), 64),
})
WORDS = fields({"prompt": IDS, "output": IDS}, {"request": maybe(ANY_TEXT), "response": maybe(ANY_TEXT)})
UNPROVEN = fields({"bucket": whole(U64), "after": whole(U64)}, {"client": maybe(raw)})
SCORED = listed(maybe(listed(token)))
ANSWER = fields(
    {
        "proof": ANY_TEXT, "output_tokens": whole(U64), "earned": whole(U64), "bucket": whole(U64), "position": whole(U64),
        "path": DIGEST_PATH, "origin": origin_shape,
    },
    {
        "outcome": maybe(tagged({
            "scored": SCORED, "unseeded": SCORED, "false_ids": listed(maybe(one_of("response", "prompt", "text", "end"))),
            "unusable": one_of(*REASONS),
        })),
        "words": maybe(WORDS),
        "cut": flag,
        "client": maybe(tagged({"sealed": raw, "opened": fields({"label": raw, "salt": raw})})),
        "beyond": flag,
    },
)
SHARE = fields({"miner": key, "ppm": whole(U32), "position": whole(U64), "path": DIGEST_PATH})
LIST = tagged({
    "sealed": fields({"subject": raw, "terms": raw}),
    "opened": fields({"miner": key, "salt": ANY_TEXT, "session": raw, "length": whole(U64), "root": raw}),
})
COMMITMENT = fields({"header": ANY_TEXT}, {"block_hash": maybe(raw), "key": maybe(lambda value: hexes(value, 96)), "lists": listed(LIST)})
BUNDLE = fields(
    {
        "format": ANY_TEXT, "genesis": raw, "netuid": whole(U16), "validator": key, "coldkey": key, "miners": listed(key, 256),
        "model": text_of(256), "calibration": CALIBRATION,
        "references": listed(fields({"machine": text_of(256), "gpu": text_of(256), "engine": raw})),
        "buckets": listed(fields({"header": ANY_TEXT, "block_hash": raw, "draw": lambda value: hexes(value, 96), "shares": listed(SHARE)})),
        "sessions": listed(fields({"attestation": ANY_TEXT, "answers": listed(ANSWER)}, {"others": listed(ANY_TEXT), "unproven": listed(UNPROVEN)})),
    },
    {
        "nonce_keys": listed(fields({"period": whole(U64), "block_hash": raw, "proof": lambda value: hexes(value, 96)})),
        "commitments": listed(COMMITMENT),
        "unseeded": maybe(CALIBRATION),
    },
)


def once(pairs):
    found = dict(pairs)
    require(len(found) == len(pairs), "a field that is there twice")
    return found


def read_bundle(text):
    require(len(text.encode()) <= 64 << 20, "a bundle that is too long")
    bundle = json.loads(text, object_pairs_hook=once)
    BUNDLE(bundle)
    for calibration in bundle["calibration"], bundle.get("unseeded"):
        check_size(calibration or {})
    return bundle


def check_size(calibration):
    for kind in "machines", "alternatives":
        require(sum(len(one["answers"]) for one in calibration.get(kind, [])) <= 16_384, "too many measured answers")
    for known in calibration.get("known_answers", []):
        require(len(known["prompt"]) + len(known["output"]) <= 131_072, "a known answer that is too long")


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
    if cells is FALSE:
        return power(CAP)
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


def holds_by_token(totals, alternative):
    """Whether the likelihood of a token of each left-out machine has a mean of at most 1 at each entropy."""
    for at, machine in enumerate(totals):
        logs = table(widened(tails(totals[:at] + totals[at + 1 :])), alternative)
        for row, tail in zip(logs, tails([machine])):
            masses = [a - b for a, b in zip([BILLION] + tail, tail + [0])]
            if sum(max(0, mass) * power(log) for mass, log in zip(masses, row)) // BILLION > ONE:
                return False
    return True


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
        bound, wide = bound if self.level == 2 else widened(bound), widened(bound)
        self.convicting = [table(bound, alternatives[name]) for name in self.tested]
        holding = [name for name in self.tested if self.level and holds_by_token(totals, alternatives[name])]
        self.adopting = [table(wide, alternatives[name]) for name in holding]


def reached(answers, restart, threshold, tables):
    """The number of answers after which the mean evidence reaches the threshold; an answer without a score is None."""
    evidence = [ONE] * (len(tables) * 4)
    for place, cells in enumerate(answers, 1):
        for at, logs in enumerate(tables):
            ratio = 0 if cells is None else likelihood(logs, cells)
            for x, share in enumerate(SHARES):
                before = evidence[4 * at + x]
                before = max(ONE, before) if restart else before
                evidence[4 * at + x] = min(MOST, before * (((100 - share) * ONE + share * ratio) // 100) >> 32)
        if evidence and sum(evidence) // len(evidence) // ONE >= threshold:
            return place
    return None


def test(answers, tables):
    alarm = reached([first for first, _ in answers], True, ALARM, tables)
    found = {"answers": len(answers), "alarm": alarm, "rescored": False, "fresh": False}
    if alarm:
        again = reached([second for _, second in answers], True, ALARM, tables)
        found["rescored"] = again is not None
        later = [second for _, second in answers[max(alarm, again):]] if again else []
        found["fresh"] = reached(later, False, CONFIRMATION, tables) is not None
    return found


def forecast(runs, tables):
    """What an adopter finds whose scores are those of the bundle, and who saw every header in time. A run has the cells of the answer
    at each of its positions, or None."""
    own = sum(runs, [])
    starts = [sum(map(len, runs[:at])) for at in range(len(runs))]

    def run(threshold):
        for start, part in zip(starts, runs):
            last = reached(part, True, threshold, tables)
            if last is not None:
                return range(start + last - (reached(part[:last][::-1], False, threshold, tables) or last), start + last)
        return None

    span = run(64 * ALARM * CONFIRMATION) or run(ALARM * CONFIRMATION) or range(0)
    worst = {at: max((likelihood(logs, own[at]) for logs in tables), default=0) for at in span if own[at] is not None}
    chosen = sorted((at for at in worst if worst[at] > ONE), key=lambda at: -worst[at])[:16]
    scored = [[cells if start + at in chosen else None for at, cells in enumerate(part)] for start, part in zip(starts, runs)]
    convicts = any(reached(part, True, ALARM * CONFIRMATION, tables) is not None for part in scored)
    return {"positions": len(own), "chosen": len(chosen), "convicts": convicts}


def own_runs(bundle, lists, answered):
    """The positions of own prompts in the order of their commitment: one run for each chain of headers."""
    judged = {list_subject(key(miner), bundle["model"]) for miner in bundle["miners"]}
    runs, anew, before = [], True, None
    for h in lists["headers"]:
        anew = anew or before is None or h["previous"] != before
        before = h["digest"]
        for subject, digest, length in h["lists"]:
            if subject not in judged:
                continue
            if length is None:
                anew = True
                continue
            for position in range(length):
                if anew:
                    runs.append([])
                anew = False
                runs[-1].append(answered.get((digest, position)))
    return runs


# Fields of a request that choose no token, and those that choose none at a number.
FREE = (
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options", "seed", "return_token_ids",
    "logprobs", "top_logprobs", "user",
)
NEUTRAL = {"n": 1, "top_p": 1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0}


def is_plain(message):
    """Whether a message has a known speaker, a text, and nothing else."""
    fields = dict(message) if isinstance(message, Pairs) else {}
    plain = len(fields) == 2 and isinstance(fields.get("content"), str)
    return plain and fields.get("role") in ("system", "user", "assistant")


def is_measured(path, request):
    """Whether a request at a path leaves its answers like those of a calibration, and every engine reads it alike."""
    asked = read_fields(request)
    if asked is None:
        return False
    prompt, messages = asked.get("prompt"), asked.get("messages")
    if path == "/v1/completions":
        if not isinstance(prompt, str) or messages is not None:
            return False
    elif path == "/v1/chat/completions":
        listed = isinstance(messages, list) and not isinstance(messages, Pairs) and messages
        if prompt is not None or not listed or not all(map(is_plain, messages)) or dict(messages[-1])["role"] != "user":
            return False
    else:
        return False
    for name, value in asked.items():
        if value is None or name in FREE:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not 0.3 <= value <= 1 if name == "temperature" else value != NEUTRAL.get(name):
            return False
    return True


def own_cells(given, cells):
    """The cells by the first reference of an answer to an own prompt that others can score again, or None."""
    words = given.get("words")
    shown = words is not None and ("scored" in (given.get("outcome") or {}) or words.get("response") is not None)
    return cells[0] if shown and not is_unseeded(given) else None


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
            require(key(share["miner"]) not in h["ppm"], "two shares of one miner")
            h["ppm"][key(share["miner"])] = share["ppm"]
        buckets[h["bucket"]] = h
    return buckets


def list_subject(miner, model):
    return sha(b"muster/own-list-subject/1" + miner + model.encode())


def check_commitments(bundle, own_keys):
    """The lists by their digests (since the fifth format) or roots, and the headers in their order."""
    lists, last, own_keys, positions = {"by_digest": {}, "by_root": {}, "headers": []}, -1, list(own_keys), 0
    for given in bundle.get("commitments", []):
        h = header(given["header"])
        ours = h["genesis"] == raw(bundle["genesis"]) and h["netuid"] == bundle["netuid"] and h["validator"] == key(bundle["validator"])
        require(ours and h["bucket"] > last, "a commitment of another subnet, or out of order")
        last, block_hash, shown = h["bucket"], given.get("block_hash"), given.get("lists", [])
        if bundle["format"] != TO_HEADS:
            require(h["canaries"] not in lists["by_root"] and not shown and given.get("key") is None, "a second commitment, or one of another format")
            lists["by_root"][h["canaries"]] = h["bucket"], raw(block_hash)
            continue
        opens = any("opened" in one for one in shown)
        require((block_hash is not None) == opens == (given.get("key") is not None), "a key without lists, or lists without one")
        own_key, digests, h["lists"] = bytes.fromhex(own_keys.pop(0)) if opens else None, [], []
        for one in shown:
            if "sealed" in one:
                subject, terms, length = raw(one["sealed"]["subject"]), raw(one["sealed"]["terms"]), None
            else:
                opened, length = one["opened"], one["opened"]["length"]
                numbers = raw(opened["session"]) + struct.pack(">Q", length) + raw(opened["root"])
                subject = list_subject(key(opened["miner"]), bundle["model"])
                terms = sha(b"muster/own-list-terms/1" + hexes(opened["salt"], 32) + numbers)
            digests.append(sha(b"\0" + b"muster/own-list/1" + subject + terms))
            h["lists"].append((subject, digests[-1], length))
            if length is not None:
                require(digests[-1] not in lists["by_digest"], "a list with two headers")
                lists["by_digest"][digests[-1]] = h["bucket"], raw(block_hash), own_key, one["opened"]
                positions += length
        require(tree(digests) == h["canaries"] and positions <= 65_536, "other lists than the header commits to, or too many prompts")
        lists["headers"].append(h)
    require(not own_keys, "a key for each header with opened lists")
    return lists


def tree(leaves):
    if len(leaves) <= 1:
        return leaves[0] if leaves else sha(b"")
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha(b"\1" + tree(leaves[:split]) + tree(leaves[split:]))


def filled(request, own_key, name):
    """The request with the seed of its position in the place of a blank."""
    mac = hmac.digest(own_key, b"muster/own-seed/1" + name, "sha256")
    for blank in b'"seed":null', b'"seed": null':
        start = request.find(blank)
        if start >= 0:
            end = start + len(blank)
            return request[: end - 4] + b"%d" % (int.from_bytes(mac[:4], "big") >> 1) + request[end:]
    return request


def leaf_client(given, p):
    """What the leaf has of the client, and the label of which four answers a day are tested."""
    client = given.get("client")
    if client is None:
        return p["client"], p["client"]
    if "sealed" in client:
        return raw(client["sealed"]), None
    opened = client["opened"]
    return sha(b"muster/leaf-client/1" + raw(opened["salt"]) + raw(opened["label"])), raw(opened["label"])


def asked_by(canary, block_hash, p, seen):
    """Whether a prompt was asked under its pseudonym, which no other prompt has, and with its client's nonce or without."""
    salt = hexes(canary["salt"], 32)
    client = sha(b"muster/own-client/2" + salt + block_hash)
    nonce = sha(b"muster/own-nonce/1" + salt + block_hash) if salt[0] >= 128 else None
    own = p["client"] == client and p["client_nonce"] == nonce and client not in seen
    seen.add(client)
    return own


def read_fields(request):
    """The fields of a request, or None if it is no JSON object whose fields have different names."""
    try:
        text = request.decode("utf-8")
        pairs = json.loads(text, object_pairs_hook=Pairs, parse_int=finite, parse_float=finite, parse_constant=finite)
        text.encode("utf-8"), json.dumps(pairs, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError, Refused):
        return None
    return dict(pairs) if isinstance(pairs, Pairs) and len({name for name, _ in pairs}) == len(pairs) else None


class Pairs(list):
    """The fields of an object, in their order."""


def finite(text):
    require(math.isfinite(float(text)), "a number that is too large")
    return int(text) if text.lstrip("-").isdigit() else float(text)


def names_no_seed(request):
    fields = read_fields(request)
    return fields is not None and fields.get("seed") is None


def is_seeded(request, own_key, numbered):
    """Whether a request names the seed of its position and no other one."""
    seed = int.from_bytes(hmac.digest(own_key, b"muster/own-seed/1" + numbered, "sha256")[:4], "big") >> 1
    named = (read_fields(request) or {}).get("seed")
    return isinstance(named, int) and not isinstance(named, bool) and named == seed


def check_origin(bundle, given, h, p, lists, seen, repeated, miner):
    """Whether the prompt is the validator's own, and whether the answer can convict."""
    origin = given["origin"]
    p["position"] = p["request"] = None
    if not isinstance(origin, dict):
        return False, False
    canary = origin["canary"]
    request = base64_bytes(canary["request"])
    path = [raw(digest) for digest in canary["path"]]
    leaf = sha(b"\0" + hexes(canary["salt"], 32) + request)
    require(p["scheme"] == 0, "this program knows the hash scheme raw-http only")
    of_head = bundle["format"] == TO_HEADS
    require((canary.get("list") is not None) == of_head, "a prompt of a list of another format")
    name = raw(canary["list"]) if of_head else h["canaries"]
    place = name, canary["position"]
    require(place not in seen, "a prompt that is answered twice")
    seen.add(place)
    if of_head:
        require(name in lists["by_digest"], "a prompt of a list without a commitment")
        committed, block_hash, own_key, head = lists["by_digest"][name]
        root, numbered = raw(head["root"]), name + struct.pack(">Q", canary["position"])
        p["position"] = place
        if bundle["calibration"].get("sampler"):
            blank, request = request, filled(request, own_key, numbered)
        else:
            blank = request
        fits = names_no_seed(request) if request == blank else is_seeded(request, own_key, numbered)
        require(fits, "a prompt with another seed than its position's")
        nonce = hmac.digest(own_key, b"muster/own-gateway-nonce/1" + numbered, "sha256")
        named = p["attestation"] == raw(head["session"]) and miner == key(head["miner"]) and canary["length"] == head["length"]
        require(named and p["nonce"] == nonce and not repeated, "a prompt of another session or nonce, or one that was asked before")
    else:
        root = h["canaries"]
    p["request"] = request
    require(by_path(leaf, canary["position"], canary["length"], path) == root, "a prompt of another list")
    require(sha(request) == p["input"], "a prompt that was not answered")
    if not of_head:
        if root not in lists["by_root"]:
            require(bundle["format"] not in COMMITTING, "a prompt of a list without a commitment")
            return True, False
        committed, block_hash = lists["by_root"][root]
    own = asked_by(canary, block_hash, p, seen)
    require(committed < given["bucket"] and own, "a prompt that was asked before its list was committed to, or by another client")
    return True, True


def ids_digest(ids):
    return sha(b"".join(struct.pack(">I", one) for one in ids))


def check_words(given, p):
    words = given.get("words")
    if words is None:
        return
    response = words.get("response")
    outcome = given.get("outcome") or {}
    if response is None:
        require("output_ids" in p and len(words["output"]) <= 131_072, "words without ids in the proof")
    else:
        by_text = "scored" in outcome and "output_ids" not in p and isinstance(given["origin"], dict)
        require(by_text or ("false_ids" in outcome and "output_ids" in p), "a response beside ids that are not false")
        require(not words["prompt"] and not words["output"], "a response beside ids")
        require(p["scheme"] == 0, "this program knows the hash scheme raw-http only")
        body = base64_bytes(response)
        require(sha(body) == p["body"] and len(body) == p["body_bytes"], "another response")
    for name, digest, count in ("prompt", "prompt_ids", "prompt_tokens"), ("output", "output_ids", "tokens"):
        require(response is not None or (len(words[name]) == p[count] and ids_digest(words[name]) == p[digest]), "words of another answer")
    if isinstance(given["origin"], dict):
        require(words.get("request") is None, "a request that the opened prompt has")
        return
    require(p["scheme"] == 0, "this program knows the hash scheme raw-http only")
    require(given["origin"] == "consenting" and words.get("request") is not None, "the words of a user")
    require(sha(base64_bytes(words["request"])) == p["input"], "another request")


def equal_facts(p):
    return p["client"], p["client_nonce"], p["input"]


def is_derived(p, nonce_key, ordinals):
    """Whether the key gives the proof's nonce for one of so many ordinals."""
    maybe = b"\0" if p["client_nonce"] is None else b"\1" + p["client_nonce"]
    facts = b"muster/gateway-nonce/1" + p["attestation"] + p["client"] + maybe + p["input"]
    return any(hmac.digest(nonce_key, facts + struct.pack(">Q", ordinal), "sha256") == p["nonce"] for ordinal in range(ordinals))


def nonce_state(given, p, keys, equal):
    if p["position"] is not None:
        return "derived"
    ended = given["bucket"] // 12
    of_time = [keys.get(period) for period in (ended, ended - 1) if period >= 0]
    ordinals = 1 if isinstance(given["origin"], dict) else min(equal, 64)
    if any(nonce_key is not None and is_derived(p, nonce_key, ordinals) for nonce_key in of_time):
        return "derived"
    return "unchecked" if None in of_time else "foreign"


# Ends of responses, and the causes of missing answers.
COMPLETED, ENGINE_FAILED, ENGINE_SILENT = 0, 1, 2
# In the place of a client: the validator has counted four of its answers before.
BEYOND = "beyond"
CAUSES = ["no_token_ids", "broken_off", "cut", "unproven"]


def asks_for_ids(request):
    try:
        asked = json.loads(request)
    except ValueError:
        return False
    return isinstance(asked, dict) and asked.get("return_token_ids") is True


def delivery(given, p):
    """The cause for which an answer in the log is missing, "whole", or None if nothing can be said."""
    if p["end"] in (ENGINE_FAILED, ENGINE_SILENT):
        return "broken_off"
    if given.get("cut", False):
        return "cut"
    if p["end"] != COMPLETED:
        return None
    asked = isinstance(given["origin"], dict) and asks_for_ids(base64_bytes(given["origin"]["canary"]["request"]))
    return "no_token_ids" if asked and 200 <= p["status"] < 300 and "tokens" not in p else "whole"


def session_trials(session, logged, counts_itself):
    """The answers of one session that the test of missing ones takes: (place, client, delivery); no client if the validator has counted."""
    unproven, trials = list(session.get("unproven", [])), []
    for ended in range(len(logged) + 1):
        while unproven and unproven[0]["after"] == ended:
            one = unproven.pop(0)
            trials.append(((one["bucket"], 2**64 - 1), raw(one["client"]) if one.get("client") else None, "unproven"))
        if ended < len(logged):
            place, given, p, *_ = logged[ended]
            counted = None if counts_itself else p["client"]
            trials.append((place, BEYOND if given.get("beyond", False) else counted, delivery(given, p)))
    require(not unproven, "an answer without a proof at no place")
    tested, event = [], None
    for place, client, end in trials:
        if end is None:
            continue
        if end == "whole":
            event = None
        elif event == place[0]:
            continue
        else:
            event = place[0]
        tested.append((place, client, end))
    return tested


def missing_test(trials):
    """At most four answers of a client and day, in the order of the log; 1 % missing against 5 %."""
    clients, evidence, found = {}, [ONE] * 4, {"answers": 0, "missing": dict.fromkeys(CAUSES, 0), "alarm": None}
    for place, client, end in sorted(trials, key=lambda trial: trial[0]):
        stratum = client, place[0] // 288
        clients[stratum] = clients.get(stratum, 0) + 1
        if client == BEYOND or client is not None and clients[stratum] > 4:
            continue
        found["answers"] += 1
        ratio = 95 * ONE // 99
        if end != "whole":
            found["missing"][end] += 1
            ratio = 5 * ONE
        for x, share in enumerate(SHARES):
            evidence[x] = min(MOST, max(ONE, evidence[x]) * (((100 - share) * ONE + share * ratio) // 100) >> 32)
        if found["alarm"] is None and sum(evidence) // 4 // ONE >= ALARM:
            found["alarm"] = found["answers"]
    return found


def missing_quality(found):
    if found["alarm"] is None or found["answers"] < 200:
        return 1000
    share = sum(found["missing"].values()) * 1000 // found["answers"]
    return max(500, 1000 - 4 * max(0, share - 10))


def check_log(bundle, buckets, keys, lists):
    answers, unlogged, places, prompts, proofs, answered, trials = [], 0, set(), set(), set(), set(), []
    for session in bundle["sessions"]:
        a = attestation(session["attestation"])
        model = a["model"] is None or a["model"] == raw(bundle["calibration"]["model"])
        ours = a["miner"] in map(key, bundle["miners"]) and a["audience"] == key(bundle["validator"])
        require(ours and model and a["image"] == raw(bundle["calibration"]["engine"]), "an attestation of another miner, model or engine")
        previous, equal, checked, nonces = a["digest"], {}, [], set()
        logged = [(proof(given["proof"]), given) for given in session["answers"]]
        others = [(proof(text), None) for text in session.get("others", [])]
        for p, _ in logged + others:
            equal[equal_facts(p)] = equal.get(equal_facts(p), 0) + 1
        for sequence in range(len(logged) + len(others)):
            # Both lists are in the order of their numbers.
            of_log = logged and (not others or logged[0][0]["sequence"] == sequence)
            p, given = (logged if of_log else others).pop(0)
            fits = p["session"] == a["session"] and p["sequence"] == sequence and p["previous"] == previous and p["audience"] == a["audience"]
            require(fits and p["attestation"] == a["digest"], "a proof of another session, or a gap")
            previous = p["digest"]
            require(p["digest"] not in proofs, "a proof that stands in the bundle twice")
            proofs.add(p["digest"])
            repeated = p["nonce"] is not None and p["nonce"] in nonces
            nonces.add(p["nonce"])
            if given is None:
                unlogged += p["client"] is not None
                continue
            h = buckets.get(given["bucket"])
            require(h is not None and p["client"] is not None, "a bucket that is not there")
            numbers = struct.pack(">Q", sequence) + p["digest"] + struct.pack(">QQ", given["output_tokens"], given["earned"])
            stratum, label = leaf_client(given, p)
            leaf = b"muster/answer-leaf/1" + p["session"] + numbers + stratum
            path = [raw(digest) for digest in given["path"]]
            place = given["bucket"], given["position"]
            require(by_path(sha(b"\0" + leaf), given["position"], h["answers"], path) == h["root"] and place not in places, "a leaf")
            places.add(place)
            own, convicts = check_origin(bundle, given, h, p, lists, prompts, repeated, a["miner"])
            require(a["miner"] in h["ppm"], "a bucket without the miner's share")
            check_words(given, p)
            drawn = le64(sha(b"muster/draw/1" + h["draw"] + p["digest"])) * 10**6 < h["ppm"][a["miner"]] << 64
            nonce = nonce_state(given, p, keys, equal[equal_facts(p)])
            require(given.get("client") is None or (label is not None) == (own or drawn), "a client that is hidden or shown against the rule")
            checked.append((place, given, p, own or drawn, nonce, convicts, label))
        if checked or session.get("unproven"):
            answered.add(a["miner"])
        answers += checked
        trials += session_trials(session, checked, bundle["format"] in TO_CLIENTS)
    require(sorted(map(key, bundle["miners"])) == sorted(answered), "miners without an answer, or named twice")
    return sorted(answers, key=lambda answer: answer[0]), unlogged, trials


def names_seed(engine, request):
    """Whether a request names a seed for which the engine does not draw one by itself."""
    try:
        seed = json.loads(request).get("seed")
    except (ValueError, AttributeError):
        return False
    if not isinstance(seed, int) or isinstance(seed, bool):
        return False
    return 0 <= seed < U32 if engine == "llama.cpp" else -(1 << 63) <= seed < 1 << 63 and seed != -1


def is_unseeded(given):
    return "unseeded" in (given.get("outcome") or {})


def scores(given, p, nonce, calibration):
    outcome = given.get("outcome") or {}
    if "scored" in outcome and calibration.get("sampler") and isinstance(given["origin"], dict):
        fixed = p["position"] is None or p["request"] != base64_bytes(given["origin"]["canary"]["request"])
        require(fixed and names_seed(calibration["sampler"]["engine"], p["request"]), "margins of an own prompt that names no seed, or its own")
    by_reference = outcome.get("scored", []) + outcome.get("unseeded", []) + outcome.get("false_ids", [])
    require(len(outcome) <= 1 and len(by_reference) <= 2, "more scores than references")
    by_reference = by_reference + [None] * (2 - len(by_reference))
    if "false_ids" in outcome:
        require("output_ids" in p, "false ids of a proof that states none")
        return [None if found is None or nonce == "foreign" else FALSE for found in by_reference]
    for tokens in by_reference:
        require(tokens is None or (0 < len(tokens) <= 131_072 and len(tokens) == p.get("tokens", len(tokens))), "another number of tokens")
    return [None if tokens is None or nonce == "foreign" else cells_of(tokens) for tokens in by_reference]


def check_calibration(given):
    others = given.get("reference"), given.get("sampler"), given.get("known_answers")
    if given["format"] == "muster/audit-calibration/1":
        require(not any(others), "fields of another format")
        return
    require(given["format"] == "muster/audit-calibration/2", "another format of the calibration")
    require(others[0] is not None and len(others[2] or []) <= 64, "no reference, or too many known answers")
    require((others[1] is not None) == (given["statistic"] == "margin"), "margins need a sampler, and nothing else has one")


def reference_engine(calibration):
    return (calibration.get("reference") or calibration)["engine"]


def check_calibrations(bundle, has_unseeded):
    calibration, unseeded = bundle["calibration"], bundle.get("unseeded")
    check_calibration(calibration)
    referenced = calibration.get("reference") is not None
    if unseeded is None:
        require(not has_unseeded, "answers without seeds, and no calibration of them")
        return
    check_calibration(unseeded)
    fits = unseeded["statistic"] == "surprise" and calibration["statistic"] == "margin" and unseeded.get("reference") is not None
    of = lambda one: (one["model"], one["engine"], one["reference"]["engine"])
    require(fits and referenced and of(unseeded) == of(calibration), "answers without seeds are judged by another engine")


def replay(text, draws):
    bundle = read_bundle(text)
    answers = [answer for session in bundle["sessions"] for answer in session["answers"]]
    has_words = any(answer.get("words") is not None for answer in answers)
    has_false = any("false_ids" in (answer.get("outcome") or {}) for answer in answers)
    shown = bundle.get("nonce_keys", [])
    shows_missing = any(session.get("unproven") for session in bundle["sessions"]) or any(answer.get("cut") for answer in answers)
    referenced = bundle["calibration"].get("reference") is not None or bundle.get("unseeded") is not None
    opens = any((answer.get("words") or {}).get("response") is not None for answer in answers)
    earlier = not bundle.get("commitments", []) and not referenced and not has_false and not opens and not shows_missing
    plain = bundle["format"] == "muster/audit-bundle/1" and earlier and not has_words and not shown
    second = bundle["format"] == "muster/audit-bundle/2" and earlier
    tests_missing = bundle["format"] in COMMITTING
    missing = [one for session in bundle["sessions"] for one in session.get("unproven", [])]
    if bundle["format"] in TO_CLIENTS:
        require(all(one.get("client") is None for one in missing), "a missing answer that names its client")
    else:
        named = all(one.get("client") is not None for one in missing)
        hidden = any(answer.get("client") is not None or answer.get("beyond", False) for answer in answers)
        require(named and not hidden, "clients of another format")
    require(plain or second or tests_missing, "another format")
    check_calibrations(bundle, any(is_unseeded(answer) for answer in answers))
    first, second = bundle["references"]
    differ = (first["machine"], first["engine"]) != (second["machine"], second["engine"])
    require(differ and first["engine"] == reference_engine(bundle["calibration"]), "references that are one, or of another engine")
    draws, other_keys = draws[: len(bundle["buckets"])], draws[len(bundle["buckets"]) :]
    nonce_keys, own_keys = other_keys[: len(shown)], other_keys[len(shown) :]
    periods = [one["period"] for one in shown]
    require(len(nonce_keys) == len(shown) and periods == sorted(set(periods)), "a key for each period, in rising order")
    keys = dict(zip(periods, map(bytes.fromhex, nonce_keys)))
    lists = check_commitments(bundle, own_keys)
    logged, unlogged, trials = check_log(bundle, check_buckets(bundle, draws), keys, lists)
    audited = [answer for answer in logged if answer[3]]
    clients, tested, unseeded, nonces = {}, [], [], {"derived": 0, "foreign": 0, "unchecked": 0}
    for place, given, p, _, nonce, convicts, label in audited:
        stratum = label, place[0] // 288
        if not convicts:
            clients[stratum] = clients.get(stratum, 0) + 1
        if convicts or clients[stratum] <= 4:
            cells = scores(given, p, nonce, bundle["calibration"])
            if is_unseeded(given):
                unseeded.append(cells)
            else:
                tested.append((not convicts, cells))
            nonces[nonce] += 1
    calibration = Calibration(bundle["calibration"])
    without_seed = None
    if bundle.get("unseeded") is not None:
        other = Calibration(bundle["unseeded"])
        without_seed = test(unseeded, other.plain if other.level > 0 else [])
    answered = {
        p["position"]: own_cells(given, scores(given, p, nonce, bundle["calibration"]))
        if p["end"] == COMPLETED and p["scheme"] == 0 and p["method"] == "POST" and is_measured(p["path"], p["request"])
        else None
        for _, given, p, _, nonce, _, _ in logged
        if p["position"] is not None
    }
    own = own_runs(bundle, lists, answered)
    everything = test([cells for _, cells in tested], calibration.plain)
    public = test([cells for private, cells in tested if not private], calibration.convicting)
    private = test([cells for private, cells in tested if private], calibration.convicting)
    all_tested = [cells for _, cells in tested] + unseeded
    scored = sum(any(cells) for cells in all_tested)
    false = sum(any(one is FALSE for one in cells) for cells in all_tested)
    confirmed = lambda found: found["rescored"] and found["fresh"]
    discriminates = bool(confirmed(private) and not public["alarm"] and public["answers"] >= private["alarm"])
    if calibration.level == 0:
        verdict = "unproven(no calibration)"
    elif scored == 0:
        verdict = "unproven(no scored answers)"
    elif not (everything["alarm"] or public["alarm"] or private["alarm"]):
        verdict = "weak" if without_seed and without_seed["alarm"] else "consistent"
    elif bundle["calibration"]["statistic"] == "surprise":
        verdict = "weak"
    else:
        verdict = "convicted" if confirmed(public) else "suspect"
    quality = 0 if verdict == "convicted" else 500 if verdict == "suspect" and discriminates else 1000
    missing = missing_test(trials)
    if tests_missing and missing["alarm"]:
        verdict = "convicted" if verdict == "convicted" else "suspect"
        quality = min(quality, missing_quality(missing))
    return ({"missing": missing} if tests_missing else {}) | ({"nonces": nonces} if shown else {}) | {
        "bundle": "sha256:" + hashlib.sha256(text.encode()).hexdigest(), "verdict": verdict, "discriminates": discriminates,
        "quality_per_mille": quality, "level": str(calibration.level), "alternatives": calibration.tested,
        "counts": {
            "logged": len(logged), "unlogged": unlogged, "audited": len(audited), "beyond_client": len(audited) - len(all_tested), "scored": scored,
            "unscored": len(all_tested) - scored,
        } | ({"false_ids": false} if false else {}),
    } | ({"adoption": forecast(own, calibration.adopting)} if own else {}) | {
        "tests": {"all": everything, "public": public, "private": private} | ({"unseeded": without_seed} if without_seed else {}),
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
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, AttributeError, RecursionError, struct.error) as error:
            # A malformed bundle is refused, wherever it is found to be one.
            print(json.dumps({"refused": f"it cannot be read: {error}"}))


if __name__ == "__main__":
    main(sys.argv[1:])

#!/usr/bin/env python3
"""MATMUL and WALK in plain Python, written from docs/proofs.md alone.

    python3 crates/grading/hardware-proof/reference/reference.py > tests/vectors/proofs.json

Every step has its vectors there, so that a prover on another device can be compared with them bit for bit.
"""

import hashlib
import json
import struct

DOMAIN = b"muster-proofs/1\0"
B, A, BOUND, LABELS, START, DRAW, PRINT = range(1, 8)
ZERO = bytes(32)
M32 = 0xFFFFFFFF


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def le(number, size):
    return number.to_bytes(size, "little")


# ChaCha8 ----------------------------------------------------------------------------------------------------------


def quarter(s, a, b, c, d):
    for left, right in ((16, 12), (8, 7)):
        s[a] = (s[a] + s[b]) & M32
        s[d] ^= s[a]
        s[d] = ((s[d] << left) | (s[d] >> (32 - left))) & M32
        s[c] = (s[c] + s[d]) & M32
        s[b] ^= s[c]
        s[b] = ((s[b] << right) | (s[b] >> (32 - right))) & M32


def column_round(s):
    for i in range(4):
        quarter(s, i, 4 + i, 8 + i, 12 + i)


def diagonal_round(s):
    for i in range(4):
        quarter(s, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)


def initial(key, counter, stream):
    return list(struct.unpack("<16I", b"expand 32-byte k" + key + le(counter, 8) + le(stream, 8)))


def forward(state):
    s = list(state)
    for _ in range(4):
        column_round(s)
        diagonal_round(s)
    return [(x + y) & M32 for x, y in zip(s, state)]


def words(state):
    return struct.pack("<16I", *state)


def stream(key, number, length):
    out = b""
    counter = 0
    while len(out) < length:
        out += words(forward(initial(key, counter, number)))
        counter += 1
    return out[:length]


# Keys, draws, trees -----------------------------------------------------------------------------------------------


def derive(session, purpose, number, previous):
    return sha(DOMAIN, le(purpose, 4), session, le(number, 4), previous)


def key_print(session, key):
    return derive(session, PRINT, 0, key)[:16]


class Draws:
    def __init__(self, key):
        self.key, self.words, self.counter = key, [], 0

    def below(self, bound):
        whole = (1 << 32) // bound * bound
        while True:
            if not self.words:
                self.words = forward(initial(self.key, self.counter, 0))
                self.counter += 1
            word = self.words.pop(0)
            if word < whole:
                return word % bound


def draws(session, digest, entropy):
    return Draws(derive(session, DRAW, 0, sha(digest, entropy)))


def leaf_hash(leaf):
    return sha(b"\0", leaf)


def node_hash(left, right):
    return sha(b"\1", left, right)


def levels(hashes):
    out = [hashes]
    while len(out[-1]) > 1:
        below = out[-1]
        out.append([node_hash(below[i], below[i + 1]) for i in range(0, len(below), 2)])
    return out


def path(tree, index):
    return b"".join(level[(index >> i) ^ 1] for i, level in enumerate(tree[:-1]))


# Messages ---------------------------------------------------------------------------------------------------------


def frame(kind, session, *parts):
    return bytes([1, kind, 0, 0]) + session + b"".join(parts)


def commitment_digest(seed, message):
    return sha(DOMAIN, seed, message)


# WALK -------------------------------------------------------------------------------------------------------------


def walk_spec(ident, blocks, work, log2_walks, log2_leaves, count):
    return DOMAIN + bytes([2, log2_walks, log2_leaves, 0]) + le(count, 2) + bytes(2) + le(work, 4) + le(blocks, 8) + ident


def label_block(key, index, work):
    out = b""
    for word in range(16 * index, 16 * index + 16):
        state = initial(key, word, 0)
        for _ in range(work):
            state = forward(state)
        out += words(state)
    return out


def address(random, blocks):
    return (random * blocks) >> 64


def step(walk, number, state, block):
    s = initial(state, walk, number)
    for i in range(16):
        s = [x ^ y for x, y in zip(s, struct.unpack("<16I", block[64 * i : 64 * i + 64]))]
        (column_round if i % 2 == 0 else diagonal_round)(s)
    return words(forward(s))[:32]


def walk_vectors(ident):
    blocks, work, log2_walks, log2_leaves, count = 100, 3, 2, 1, 6
    walks, steps = 1 << log2_walks, 32 << log2_leaves
    spec = walk_spec(ident, blocks, work, log2_walks, log2_leaves, count)
    session = sha(spec)
    labels = derive(session, LABELS, 0, ZERO)
    memory = [label_block(labels, i, work) for i in range(blocks)]
    seed, entropy = sha(b"seed"), sha(b"walk entropy")
    start_key = derive(session, START, 0, seed)
    states, leaves = [], []
    for walk in range(walks):
        chain = [words(forward(initial(start_key, 0, walk)))[:32]]
        for number in range(steps):
            where = address(int.from_bytes(chain[-1][:8], "little"), blocks)
            chain.append(step(walk, number, chain[-1], memory[where]))
        states.append(chain)
        leaves += [b"".join(chain[i : i + 32]) for i in range(1, steps + 1, 32)]
    tree = levels([leaf_hash(leaf) for leaf in leaves])
    commitment = frame(4, session, key_print(session, start_key), tree[-1][0])
    digest = commitment_digest(seed, commitment)
    draw = draws(session, digest, entropy)
    places = [(draw.below(walks), draw.below(steps)) for _ in range(count)]
    # A position at the border of two leaves, which a draw may miss.
    border = (1, 32)

    def opened(place):
        walk, number = place
        index = walk * (steps // 32) + number // 32
        out = le(walk, 4) + le(number, 8) + leaves[index] + path(tree, index)
        if number % 32 == 0 and number > 0:
            out += leaves[index - 1] + path(tree, index - 1)
        return out

    opening = frame(6, session, digest, b"".join(map(opened, places)))
    return {
        "spec": spec.hex(),
        "session": session.hex(),
        "label_key": labels.hex(),
        "blocks": [{"index": i, "bytes": memory[i].hex()} for i in (0, 1, 99)],
        "memory_sha256": sha(*memory).hex(),
        "filled": frame(2, session, key_print(session, labels)).hex(),
        "seed": seed.hex(),
        "start_key": start_key.hex(),
        "states": [[s.hex() for s in chain[:4]] + [chain[-1].hex()] for chain in states],
        "leaf_hashes": [h.hex() for h in tree[0]],
        "root": tree[-1][0].hex(),
        "commitment": commitment.hex(),
        "commitment_digest": digest.hex(),
        "entropy": entropy.hex(),
        "places": places,
        "border": {"place": border, "bytes": opened(border).hex()},
        "opening_sha256": sha(opening).hex(),
        "opening_bytes": len(opening),
    }, {"session": session, "blocks": blocks, "work": work, "memory": memory}


# MATMUL -----------------------------------------------------------------------------------------------------------


def chain_spec(ident, numbers, log2_n, rounds, entries, bound):
    head = DOMAIN + bytes([1, numbers, log2_n, 0]) + le(rounds, 2) + le(entries, 2) + ident
    if bound is None:
        return head + bytes(48)
    per_row, memory = bound
    return head + le(per_row, 2) + bytes(2) + le(memory["work"], 4) + le(memory["blocks"], 8) + memory["session"]


def entries_of(numbers, raw):
    if numbers == 0:
        return struct.unpack("<%db" % len(raw), raw)
    return [x >> 7 for x in struct.unpack("<%dh" % (len(raw) // 2), raw)]


def wrap(number):
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def chain_vectors(ident, numbers, log2_n, rounds, count, bound=None):
    n = 1 << log2_n
    length = n * (1 + numbers)
    spec = chain_spec(ident, numbers, log2_n, rounds, count, bound)
    session = sha(spec)
    b_key = derive(session, B, 0, ZERO)
    columns = [entries_of(numbers, stream(b_key, j, length)) for j in range(n)]
    previous, out, trees, products = ZERO, [], [], []
    for k in range(rounds):
        a_key = derive(session, A, k, previous)
        rows = []
        for i in range(n):
            raw = bytearray(stream(a_key, i, length))
            if bound is not None:
                per_row, memory = bound
                places = stream(derive(session, BOUND, k, previous), i, 8 * per_row)
                for c in range(per_row):
                    where = address(int.from_bytes(places[8 * c : 8 * c + 8], "little"), memory["blocks"])
                    for x in range(1024):
                        raw[1024 * c + x] ^= memory["memory"][where][x]
            rows.append(bytes(raw))
        numbers_of_rows = [entries_of(numbers, raw) for raw in rows]
        c = [[wrap(sum(map(int.__mul__, row, column))) for column in columns] for row in numbers_of_rows]
        leaves = [struct.pack("<256i", *row[j : j + 256]) for row in c for j in range(0, n, 256)]
        tree = levels([leaf_hash(leaf) for leaf in leaves])
        trees.append(tree)
        products.append(leaves)
        out.append(
            {
                "a_key": a_key.hex(),
                "row_0": rows[0][:64].hex(),
                "rows_sha256": sha(*rows).hex(),
                "c_0_0": c[0][0],
                "c_last": c[-1][-1],
                "leaf_hash_0": tree[0][0].hex(),
                "root": tree[-1][0].hex(),
            }
        )
        previous = tree[-1][0]
    roots = b"".join(tree[-1][0] for tree in trees)
    commitment = frame(4, session, key_print(session, b_key), roots)
    digest = commitment_digest(ZERO, commitment)
    entropy = sha(b"chain entropy")
    draw = draws(session, digest, entropy)
    places = [(i if i < rounds else draw.below(rounds), draw.below(n), draw.below(n)) for i in range(count)]

    def opened(place):
        k, i, j = place
        index = i * (n // 256) + j // 256
        return le(k, 4) + le(i, 4) + le(j, 4) + products[k][index] + path(trees[k], index)

    opening = frame(6, session, digest, b"".join(map(opened, places)))
    return {
        "spec": spec.hex(),
        "session": session.hex(),
        "b_key": b_key.hex(),
        "column_0": stream(b_key, 0, 64).hex(),
        "columns_sha256": sha(*(stream(b_key, j, length) for j in range(n))).hex(),
        "challenge": frame(1, session, spec).hex(),
        "rounds": out,
        "commitment": commitment.hex(),
        "commitment_digest": digest.hex(),
        "entropy": entropy.hex(),
        "places": places,
        "first_opening": opened(places[0]).hex(),
        "opening_sha256": sha(opening).hex(),
        "opening_bytes": len(opening),
    }


def main():
    assert stream(ZERO, 0, 16).hex() == "3e00ef2f895f40d67f5bb8e81f09a5a1", "ChaCha8 of the published vector"
    ident = bytes(range(16)) + sha(b"executor") + sha(b"nonce")
    key = bytes(range(32))
    walk, memory = walk_vectors(ident)
    bounds = Draws(key)
    print(
        json.dumps(
            {
                "chacha": {
                    "key": key.hex(),
                    "blocks": [
                        {"counter": c, "stream": s, "bytes": words(forward(initial(key, c, s))).hex()}
                        for c, s in ((0, 0), (1, 0), (1 << 32, 7), (5, (1 << 64) - 1))
                    ],
                },
                "draws": {"key": key.hex(), "bounds": [7, 8192, 3 << 30], "values": [[bounds.below(b) for _ in range(9)] for b in (7, 8192, 3 << 30)]},
                "merkle": {
                    "leaf": leaf_hash(bytes(1024)).hex(),
                    "node": node_hash(ZERO, sha(b"right")).hex(),
                    "root_of_4": levels([leaf_hash(bytes([i]) * 1024) for i in range(4)])[-1][0].hex(),
                },
                "step": {
                    "walk": 3,
                    "number": 1 << 33,
                    "state": key.hex(),
                    "block": "".join(sha(le(i, 1)).hex() for i in range(32)),
                    "next": step(3, 1 << 33, key, b"".join(sha(le(i, 1)) for i in range(32))).hex(),
                },
                "int8": chain_vectors(ident, 0, 8, 3, 5),
                "fp16": chain_vectors(ident, 1, 8, 2, 4),
                "bound": chain_vectors(ident, 1, 9, 1, 2, (1, memory)),
                "walk": walk,
            },
            indent=1,
        )
    )


main()

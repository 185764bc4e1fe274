"""Golden vectors for the chain client: tests/vectors/chain.json and tests/vectors/timelock.json.

timelock.json is made by bittensor-core, the official client's library, in an environment with `pip install
bittensor==11.3.0`: timelocked ciphertexts with the payload of weights, and the beacon's round that the library chooses for a
schedule of epochs. chain.json is written out by hand in SCALE: call bytes as the public network's runtime (spec 365) reads
them, and the hash of a salted commit.

    python tests/python/make_chain_vectors.py

Ciphertexts are random and rounds depend on the second at which they were asked for; both are recorded as they came.
"""

import hashlib
import json
import pathlib
import time

import bittensor_core as core

VECTORS = pathlib.Path(__file__).parent.parent / "vectors"
NETUID = 0x0102
UIDS = [3, 0x0405]
VALUES = [65535, 1]
SALT = [1, 2, 3, 4, 5, 6, 7, 0xFFFF]
HOTKEY = bytes([9] * 32)

# Facts that drand publishes: https://api.drand.sh/52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971
GENESIS, PERIOD = 1_692_803_367, 3
ROUND = 1000
SIGNATURE = "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"


def compact(number):
    """SCALE's compact form of a small number."""
    return bytes([number << 2]) if number < 64 else (number << 2 | 1).to_bytes(2, "little")


def numbers(values):
    return compact(len(values)) + b"".join(value.to_bytes(2, "little") for value in values)


def little(number, size):
    return number.to_bytes(size, "little")


def blob(raw):
    return compact(len(raw)) + raw


def calls():
    """Call bytes in SCALE written out by hand, since no library here reads metadata of version 16: pallet and call by the
    numbers of the public network's runtime, then the arguments in its order. netuid is a u16, mecid a u8."""
    netuid, mecid, version_key = little(NETUID, 2), bytes([0]), little(7, 8)
    weights = numbers(UIDS) + numbers(VALUES) + version_key
    axon = netuid + little(1, 4) + little(0x01020304, 16) + little(258, 2) + bytes([4, 4, 0, 0])
    axon_v6 = netuid + little(1, 4) + little(0x20010DB8 << 96 | 1, 16) + little(258, 2) + bytes([6, 4, 0, 0])
    sealed = blob(bytes([5] * 300)) + little(0x010203040506, 8) + little(4, 2)
    # A compact number of four bytes ends in the bits 10.
    amount = little(1_500_000_000 << 2 | 2, 4) if 1_500_000_000 < 1 << 30 else bytes([3]) + little(1_500_000_000, 4)
    made = {
        "set_weights": (7, 0, netuid + weights),
        "set_mechanism_weights": (7, 119, netuid + mecid + weights),
        "set_no_weights": (7, 119, netuid + mecid + numbers([]) + numbers([]) + little(0, 8)),
        "commit_weights": (7, 96, netuid + bytes([0xAB] * 32)),
        "reveal_weights": (7, 97, netuid + numbers(UIDS) + numbers(VALUES) + numbers(SALT) + version_key),
        "commit_timelocked_weights": (7, 113, netuid + sealed),
        "commit_timelocked_mechanism_weights": (7, 118, netuid + mecid + sealed),
        "serve_axon": (7, 4, axon),
        "serve_axon_v6": (7, 4, axon_v6),
        "serve_axon_tls": (7, 40, axon + blob(bytes([8] * 65))),
        "burned_register": (7, 7, netuid + HOTKEY),
        # MultiAddress::Id is variant 0.
        "transfer_keep_alive": (5, 3, bytes([0]) + HOTKEY + amount),
        # One field; Raw6 is the variant after None and Raw0 to Raw5.
        "set_commitment": (18, 0, netuid + compact(1) + bytes([7]) + b"<M:T1>"),
    }
    return {name: (bytes([pallet, call]) + arguments).hex() for name, (pallet, call, arguments) in made.items()}


def commit_hash(hotkey, netuid, uids, values, salt, version_key):
    """BlakeTwo256 of the SCALE tuple, written out by hand: no encoder of anyone's."""
    scale = hotkey + netuid.to_bytes(2, "little") + numbers(uids) + numbers(values) + numbers(salt)
    return hashlib.blake2b(scale + version_key.to_bytes(8, "little"), digest_size=32).hexdigest()


def schedule(**changes):
    """A ciphertext of weights, and the round that the library chose, for a schedule of epochs."""
    given = dict(last_epoch_block=100, pending_epoch_at=0, subnet_epoch_index=7, tempo=20, current_block=105,
                 subnet_reveal_period_epochs=1, block_time=12.0, **{})
    given.update(changes)
    given["blocks_since_last_step"] = given["current_block"] - given["last_epoch_block"]
    while True:
        # The library asks the clock itself: only a call within one second says which second it saw.
        before = int(time.time())
        sealed, chosen = core.get_encrypted_commit_v2(
            uids=UIDS, weights=VALUES, version_key=7, hotkey=HOTKEY, **given)
        if int(time.time()) == before:
            return dict(given, now=before, round=chosen, bytes=len(sealed))


def timelock():
    payload = compact(32) + HOTKEY + numbers(UIDS) + numbers(VALUES) + (7).to_bytes(8, "little")
    opened = []
    for message in (payload, b"", b"x" * 1000):
        whole, _ = core.encrypt_at_round(message, ROUND)
        opened.append({"message": message.hex(), "ciphertext": bytes(core.inner_ciphertext(whole)).hex()})
        assert core.decrypt_with_signature(whole, SIGNATURE) == message
    schedules = [schedule(current_block=block) for block in (105, 118, 119, 120, 125)]
    schedules += [schedule(subnet_reveal_period_epochs=period) for period in (2, 3)]
    schedules += [schedule(pending_epoch_at=block) for block in (104, 106, 108, 119, 130)]
    schedules += [schedule(tempo=tempo) for tempo in (1, 2, 360)]
    schedules += [schedule(block_time=seconds) for seconds in (0.25, 1.0, 3.0)]
    return {"round": ROUND, "signature": SIGNATURE, "genesis": GENESIS, "period": PERIOD,
            "weights": {"hotkey": HOTKEY.hex(), "uids": UIDS, "values": VALUES, "version_key": 7},
            "sealed": opened, "schedules": schedules}


def main():
    hashes = [
        dict(hotkey=HOTKEY.hex(), netuid=NETUID, uids=UIDS, values=VALUES, salt=SALT, version_key=7,
             hash=commit_hash(HOTKEY, NETUID, UIDS, VALUES, SALT, 7)),
        dict(hotkey="00" * 32, netuid=0, uids=[], values=[], salt=[], version_key=0,
             hash=commit_hash(bytes(32), 0, [], [], [], 0)),
        dict(hotkey="ff" * 32, netuid=65535, uids=list(range(256)), values=[65535] * 256, salt=SALT, version_key=2**64 - 1,
             hash=commit_hash(bytes([255] * 32), 65535, list(range(256)), [65535] * 256, SALT, 2**64 - 1)),
    ]
    library = f"bittensor-core {core.__core_version__}"
    chain = {"made_by": "tests/python/make_chain_vectors.py", "calls": calls(), "commit_hashes": hashes}
    (VECTORS / "chain.json").write_text(json.dumps(chain, indent=1) + "\n")
    (VECTORS / "timelock.json").write_text(json.dumps({"made_by": library, **timelock()}, indent=1) + "\n")


main()

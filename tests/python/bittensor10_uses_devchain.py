"""Uses a fresh local chain with the official client 10.5.0: reads, serves, registers, transfers, sets weights.

Usage: bittensor10_uses_devchain.py WS_URL

Expects the chain's default specification (subnet 1 with direct weights, subnet 2 with commits; on both Alice is a validator
and Bob a miner) and blocks sealed by time. Prints one line per step and exits with 1 at the first that fails. Set HOME to a
directory of its own: the client keeps wallets and metadata there.
"""

import os
import sys

import bittensor
from bittensor.utils.balance import Balance
from bittensor_wallet import Wallet

NETUID = 1
COMMIT_NETUID = 2


def wallet(cold, hot=None):
    """A development account as a wallet on disk, which is the only kind that this client takes."""
    made = Wallet(name=cold.strip("/"), hotkey="default", path=os.path.join(os.environ["HOME"], "wallets"))
    made.create_coldkey_from_uri(cold, use_password=False, overwrite=True, suppress=True)
    made.create_hotkey_from_uri(hot or cold, use_password=False, overwrite=True, suppress=True)
    return made


def step(name, ok, seen):
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {seen}", flush=True)
    if not ok:
        sys.exit(1)


def outcome(response):
    return response.success, response.message or "included"


def main(url):
    alice, bob, charlie = wallet("//Alice"), wallet("//Bob"), wallet("//Charlie", "//Charlie//hot")
    chain = bittensor.Subtensor(network=url)

    def stored(name, *keys):
        """What the storage says, without the views in between."""
        found = chain.query_subtensor(name, params=list(keys))
        return getattr(found, "value", found)

    graph = chain.metagraph(NETUID, lite=False)
    step("metagraph", graph.hotkeys[:2] == [alice.hotkey.ss58_address, bob.hotkey.ss58_address], graph.hotkeys)
    step("permits", [bool(p) for p in graph.validator_permit[:2]] == [True, False], list(graph.validator_permit))
    neurons = chain.neurons(NETUID)
    step("neurons", [n.uid for n in neurons[:2]] == [0, 1], neurons[0])
    step("neurons, lite", len(chain.neurons_lite(NETUID)) == len(neurons), len(neurons))
    hyper = chain.get_subnet_hyperparameters(NETUID)
    step("hyperparameters", hyper.tempo == stored("Tempo", NETUID) == 20, hyper)

    # Stake grows with each epoch, which may end between two reads.
    before = int(stored("TotalHotkeyAlpha", alice.hotkey.ss58_address, NETUID))
    stake = chain.get_stake(alice.coldkeypub.ss58_address, alice.hotkey.ss58_address, NETUID)
    after = int(stored("TotalHotkeyAlpha", alice.hotkey.ss58_address, NETUID))
    step("stake read", 0 < before * 0.99 < stake.rao < after * 1.01, f"{stake}, stored {before} to {after}")

    axon = bittensor.Axon(wallet=bob, ip="10.1.2.3", port=8091, external_ip="10.1.2.3", external_port=8091)
    step("serve axon", *outcome(chain.serve_axon(netuid=NETUID, axon=axon)))
    served = stored("Axons", NETUID, bob.hotkey.ss58_address)
    step("axon stored", (served["ip"], served["port"]) == (0x0A010203, 8091), served)
    read = chain.metagraph(NETUID).axons[1]
    step("axon read", (read.ip, read.port) == ("10.1.2.3", 8091), read)

    # Before anybody is paid: who has stake after an epoch has a permit.
    refused = chain.set_weights(bob, NETUID, uids=[0, 1], weights=[1.0, 1.0], max_attempts=1)
    step("weights without permit refused", not refused.success, refused.message)
    step("set weights", *outcome(chain.set_weights(alice, NETUID, uids=[0, 1], weights=[0.5, 1.0])))
    row = [tuple(map(int, pair)) for pair in stored("Weights", NETUID, 0)]
    shares = {uid: weight / sum(weight for _, weight in row) for uid, weight in row}
    step("weights stored", abs(shares[0] - 1 / 3) < 1e-3 and abs(shares[1] - 2 / 3) < 1e-3, row)
    step("weights read", [(u, [tuple(p) for p in w]) for u, w in chain.weights(NETUID)] == [(0, row)], row)
    step("timelocked commit", *outcome(chain.set_weights(alice, COMMIT_NETUID, uids=[1], weights=[1.0])))
    commits = chain.get_timelocked_weight_commits(COMMIT_NETUID)
    step("timelocked commit read", any(c[0] == alice.hotkey.ss58_address for c in commits), commits)

    before = chain.get_balance(charlie.coldkeypub.ss58_address)
    step("register", *outcome(chain.burned_register(charlie, NETUID, mev_protection=False)))
    hotkey = charlie.hotkey.ss58_address
    step("registration stored", stored("Uids", NETUID, hotkey) == 2, stored("Uids", NETUID, hotkey))
    after = chain.get_balance(charlie.coldkeypub.ss58_address)
    step("registration paid", before.rao - after.rao >= 1_000_000, f"{before} -> {after}")
    step("publish a commitment", *outcome(chain.set_commitment(charlie, NETUID, "hello")))
    step("commitment read", chain.get_commitment(NETUID, 2) == "hello", chain.get_commitment(NETUID, 2))

    sent = chain.transfer(alice, hotkey, Balance.from_tao(1.5), wait_for_finalization=True)
    step("transfer", *outcome(sent))
    held = chain.get_balance(hotkey)
    step("transfer read", held.rao == 1_500_000_000, held)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Uses a fresh local chain with the official client 11.3.0: reads, serves, registers, transfers, sets weights.

Usage: bittensor11_uses_devchain.py WS_URL

Expects the chain's default specification (subnet 1 with direct weights, subnet 2 with commits; on both Alice is a validator
and Bob a miner) and blocks sealed by time. Prints one
line per step and exits with 1 at the first that fails. Set HOME to a directory of its own.
"""

import asyncio
import sys

import bittensor
from bittensor import storage
from bittensor.sp_core import Keypair

NETUID = 1
COMMIT_NETUID = 2


class Keys:
    """A development account as coldkey and hotkey."""

    def __init__(self, cold, hot=None):
        self.coldkey = self.coldkeypub = Keypair.create_from_uri(cold)
        self.hotkey = Keypair.create_from_uri(hot or cold)


def step(name, ok, seen):
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {seen}", flush=True)
    if not ok:
        sys.exit(1)


def outcome(result):
    return result.success, result.message or "included"


async def main(url):
    alice, bob, charlie = Keys("//Alice"), Keys("//Bob"), Keys("//Charlie", "//Charlie//hot")
    async with bittensor.Client(url, fallback_endpoints=[], archive_endpoints=[]) as client:

        async def execute(intent, wallet):
            return outcome(await client.execute(intent, wallet))

        async def call(call, wallet, signer):
            return outcome(await client.submit_call(call, wallet, signer=signer))

        async def stored(item, *keys):
            """What the storage says, without the views in between."""
            return await (await client.at()).query(item, list(keys))

        module = bittensor.calls.SubtensorModule
        kept = storage.SubtensorModule
        graph = await client.subnets.metagraph(NETUID)
        step("metagraph", graph.hotkeys[:2] == [alice.hotkey.ss58_address, bob.hotkey.ss58_address], graph)
        neurons = await client.neurons.all(NETUID)
        step("neurons", [n.validator_permit for n in neurons[:2]] == [True, False], [n.uid for n in neurons])
        full = await client.neurons.all(NETUID, lite=False)
        step("neurons with weights", len(full) == len(neurons), len(full))
        hyper = await client.subnets.subnet_hyperparameters(NETUID)
        step("hyperparameters", hyper["tempo"] == 20, hyper)
        epoch = await client.epochs.epoch_status(NETUID)
        step("epoch", epoch["next_epoch_start_block"] >= epoch["block"], epoch)

        step("serve axon", *await execute(bittensor.ServeAxon(netuid=NETUID, ip="10.1.2.3", port=8091), bob))
        graph = await client.subnets.metagraph(NETUID)
        step("axon read", graph.neuron(1).axon == "10.1.2.3:8091", graph.neuron(1).axon)
        axon = await stored(kept.Axons, NETUID, bob.hotkey.ss58_address)
        step("axon stored", (axon["ip"], axon["port"]) == (0x0A010203, 8091), axon)

        # Stake grows with each epoch, which may end between two reads.
        before = int(await stored(kept.TotalHotkeyAlpha, alice.hotkey.ss58_address, NETUID))
        stake = await client.staking.stake(alice.coldkey.ss58_address, alice.hotkey.ss58_address, NETUID)
        after = int(await stored(kept.TotalHotkeyAlpha, alice.hotkey.ss58_address, NETUID))
        step("stake read", 0 < before * 0.99 < stake.rao < after * 1.01, f"{stake}, stored {before} to {after}")
        position = await client.staking.stake_for_coldkey(alice.coldkey.ss58_address)
        step("all stake read", {NETUID, COMMIT_NETUID} <= {p.netuid for p in position}, position)

        # Before anybody is paid: who has stake after an epoch has a permit.
        ok, why = await execute(bittensor.SetWeights(netuid=NETUID, weights={0: 1.0, 1: 1.0}), bob)
        step("weights without permit refused", not ok, why)
        step("set weights", *await execute(bittensor.SetWeights(netuid=NETUID, weights={0: 0.5, 1: 1.0}), alice))
        weights = await client.weights.weights(NETUID)
        step("weights read", abs(weights[0][1] - 2 / 3) < 1e-4, weights)
        row = await stored(kept.Weights, NETUID, 0)
        step("weights stored", [tuple(map(int, pair)) for pair in row] == [(0, 32768), (1, 65535)], row)
        step("timelocked commit", *await execute(bittensor.SetWeights(netuid=COMMIT_NETUID, weights={1: 1.0}), alice))
        commits = await client.weights.timelocked_weight_commits(COMMIT_NETUID)
        mine = [c for epoch in commits.values() for c in epoch if c["hotkey"] == alice.hotkey.ss58_address]
        step("timelocked commit read", bool(mine), commits)

        # The client's own intent insists on the pallet MevShield, which hides a transaction from block authors.
        try:
            ok, why = await execute(bittensor.BurnedRegister(netuid=NETUID), charlie)
        except Exception as error:  # of the client's transport, which has no public name
            ok, why = False, str(error)
        step("the intent to register names what is missing", not ok and "MevShield" in why, why)
        before = await client.balances.get(charlie.coldkey.ss58_address)
        hotkey = charlie.hotkey.ss58_address
        step("register", *await call(module.burned_register(netuid=NETUID, hotkey=hotkey), charlie, "coldkey"))
        after = await client.balances.get(charlie.coldkey.ss58_address)
        uid = await stored(kept.Uids, NETUID, hotkey)
        step("registration stored", uid == 2, uid)
        step("registration paid", before.rao - after.rao >= 1_000_000, f"{before} -> {after}")
        served = bittensor.ServeAxon(netuid=NETUID, ip="10.1.2.4", port=8092)
        step("a hotkey without balance serves", *await execute(served, charlie))
        info = {"fields": [[{"Raw5": b"hello"}]]}
        published = bittensor.calls.Commitments.set_commitment(netuid=NETUID, info=info)
        step("publish a commitment", *await call(published, charlie, "hotkey"))
        graph = await client.subnets.metagraph(NETUID)
        read = graph.by_hotkey(hotkey).commitment
        step("commitment read", read is not None and read.value == "hello", read)

        transfer = bittensor.Transfer(dest_ss58=hotkey, amount_tao=1.5)
        step("transfer", *await execute(transfer, alice))
        held = await client.balances.get(hotkey)
        step("transfer read", held.rao == 1_500_000_000, held)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Reads a validator's weight row with the official client, as anybody who watches the subnet would.

Usage: bittensor_reads_weight.py WS_URL NETUID VALIDATOR_HOTKEY MINER_HOTKEY

Prints one JSON object: the miner's uid, its weight as stored (u16, the largest of the row being 65535), the whole row, and
the block of the reading. Exits with 1 and says why when a hotkey is not registered or the miner has no weight, and with 2
on wrong arguments. Set HOME to a directory of its own: the client caches chain metadata there.
"""

import asyncio
import json
import sys

import bittensor
from bittensor import storage


class Absent(Exception):
    """What was looked for is not on the chain."""


async def read(url, netuid, validator, miner):
    async with bittensor.Client(url, fallback_endpoints=[], archive_endpoints=[]) as client:
        view = await client.at()
        uids = {}
        for role, hotkey in (("validator", validator), ("miner", miner)):
            uid = await view.query(storage.SubtensorModule.Uids, [netuid, hotkey])
            if uid is None:
                raise Absent(f"the {role} {hotkey} is not registered on subnet {netuid} at block {view.block}")
            uids[role] = int(uid)
        row = await view.query(storage.SubtensorModule.Weights, [netuid, uids["validator"]])
        weights = [[int(uid), int(weight)] for uid, weight in row or []]
        if not weights:
            raise Absent(f"the validator {validator} has set no weights on subnet {netuid} by block {view.block}")
        weight = dict(map(tuple, weights)).get(uids["miner"])
        if not weight:
            raise Absent(f"the validator {validator} gives the miner {miner} no weight at block {view.block}: {weights}")
        return {"uid": uids["miner"], "weight": weight, "weights": weights, "block": int(view.block)}


def main(arguments):
    if len(arguments) != 4 or not arguments[1].isdecimal():
        print("usage: bittensor_reads_weight.py WS_URL NETUID VALIDATOR_HOTKEY MINER_HOTKEY", file=sys.stderr)
        return 2
    url, netuid, validator, miner = arguments
    try:
        print(json.dumps(asyncio.run(read(url, int(netuid), validator, miner))))
    except Absent as absent:
        print(f"bittensor_reads_weight: {absent}", file=sys.stderr)
        return 1
    except Exception as problem:  # whatever the client raises is the answer to "can it be read"
        print(f"bittensor_reads_weight: reading from {url} failed: {type(problem).__name__}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

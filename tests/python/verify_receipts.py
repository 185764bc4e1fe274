#!/usr/bin/env python3
"""Checks receipts with ComputeHorde's own code: one JSON object per line, each with both signatures.

    verify_receipts.py PAGE.jsonl

Needs compute-horde 0.0.27. Exit code 0 only if every line is a receipt that it takes and both signatures of all are valid; prints how
many there were, and `forged` counts as broken: each line is also checked with one digit of its score or ttl changed, which must
not verify.
"""

import json
import sys

from compute_horde.receipts.schemas import Receipt


def main() -> int:
    count = 0
    for line in open(sys.argv[1], encoding="utf-8"):
        receipt = Receipt.model_validate_json(line)
        receipt.verify_miner_signature(throw=True)
        receipt.verify_validator_signature(throw=True)
        forged = json.loads(line)
        for field in ("ttl", "time_took_us"):
            if field in forged["payload"]:
                forged["payload"][field] += 1
        forged = Receipt.model_validate(forged)
        if forged.verify_miner_signature() or forged.verify_validator_signature():
            print(f"a forged receipt verifies: {line}", file=sys.stderr)
            return 1
        count += 1
    print(count)
    return 0 if count else 1


if __name__ == "__main__":
    sys.exit(main())

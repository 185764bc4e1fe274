"""A real EVM (py-evm) behind JSON-RPC, with the collateral contract of tests/evm deployed: for tests.

Usage: evm_node.py PORT NETUID TRUSTEE-ADDRESS
Prints one line of JSON once it serves: the contract's address, the chain's id and the addresses of funded accounts,
which `eth_sendTransaction` may use. Ends with its standard input.
"""

import ast
import json
import os
import pathlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import vyper
from eth_utils import to_hex
from web3 import EthereumTesterProvider, Web3
from web3.exceptions import ContractLogicError, TransactionNotFound

SOURCE = pathlib.Path(__file__).parent.parent / "evm" / "Collateral.vy"
ONE_TAO = 10**18


def deploy(web3, netuid, trustee):
    compiled = vyper.compile_code(SOURCE.read_text(), output_formats=["abi", "bytecode"])
    contract = web3.eth.contract(abi=compiled["abi"], bytecode=compiled["bytecode"])
    sender = web3.eth.accounts[0]
    sent = contract.constructor(netuid, trustee, 10**15, 60).transact({"from": sender})
    address = web3.eth.wait_for_transaction_receipt(sent)["contractAddress"]
    web3.eth.send_transaction({"from": sender, "to": trustee, "value": ONE_TAO})
    return address


def number(value):
    """A number that came as `0x1f`."""
    return int(value, 16) if isinstance(value, str) else value


def transaction(web3, fields):
    """The fields of a call or a transaction as web3 takes them. A node takes calls without a sender."""
    kept = {key: fields[key] for key in ("to", "data") if fields.get(key)}
    kept["from"] = Web3.to_checksum_address(fields.get("from") or web3.eth.accounts[0])
    kept["to"] = Web3.to_checksum_address(kept["to"])
    for key in ("value", "gas"):
        if key in fields:
            kept[key] = number(fields[key])
    return kept


def receipt(web3, hash_):
    try:
        found = web3.eth.get_transaction_receipt(hash_)
    except TransactionNotFound:
        return None
    return {
        "transactionHash": to_hex(found["transactionHash"]),
        "blockNumber": hex(found["blockNumber"]),
        "status": hex(found["status"]),
    }


def methods(web3):
    eth, address = web3.eth, Web3.to_checksum_address
    return {
        "eth_chainId": lambda: hex(eth.chain_id),
        "eth_blockNumber": lambda: hex(eth.block_number),
        "eth_getBlockByNumber": lambda tag, _: {"number": hex(eth.get_block(tag)["number"])},
        "eth_gasPrice": lambda: hex(eth.gas_price),
        "eth_getCode": lambda of, tag: to_hex(eth.get_code(address(of), tag)),
        "eth_getTransactionCount": lambda of, tag: hex(eth.get_transaction_count(address(of), tag)),
        "eth_call": lambda call, tag: to_hex(eth.call(transaction(web3, call), tag)),
        "eth_estimateGas": lambda call: hex(eth.estimate_gas(transaction(web3, call))),
        "eth_sendTransaction": lambda call: to_hex(eth.send_transaction(transaction(web3, call))),
        "eth_sendRawTransaction": lambda raw: to_hex(eth.send_raw_transaction(raw)),
        "eth_getTransactionReceipt": lambda hash_: receipt(web3, hash_),
    }


def answer(known, lock, request):
    reply = {"jsonrpc": "2.0", "id": request.get("id")}
    try:
        with lock:
            reply["result"] = known[request["method"]](*request.get("params", []))
    except KeyError:
        reply["error"] = {"code": -32601, "message": "the method is not known"}
    except ContractLogicError as error:
        reply["error"] = {"code": 3, "message": "execution reverted", "data": revert_data(error)}
    except Exception as error:  # What the EVM raises becomes an error of JSON-RPC, as nodes do it.
        if type(error).__name__ == "TransactionFailed":
            reply["error"] = {"code": 3, "message": "execution reverted", "data": revert_data(error)}
        else:
            reply["error"] = {"code": -32000, "message": f"{type(error).__name__}: {error}"}
    return reply


def revert_data(error):
    """The bytes of a custom error. The tester gives them as bytes, as text of bytes, or in hexadecimal."""
    for told in (getattr(error, "data", None), *error.args):
        if isinstance(told, (bytes, bytearray)):
            return to_hex(told)
        if isinstance(told, str) and told.startswith("0x"):
            return told
        if isinstance(told, str) and ": b'" in told:
            return to_hex(ast.literal_eval(told[told.index("b'") :]))
    return None


def main():
    port, netuid, trustee = int(sys.argv[1]), int(sys.argv[2]), Web3.to_checksum_address(sys.argv[3])
    web3 = Web3(EthereumTesterProvider())
    address = deploy(web3, netuid, trustee)
    known, lock = methods(web3), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reply = json.dumps(answer(known, lock, json.loads(body))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", port), Handler)
    facts = {
        "contract": address,
        "chain_id": web3.eth.chain_id,
        "accounts": list(web3.eth.accounts),
        "port": server.server_address[1],
    }
    print(json.dumps(facts), flush=True)

    def end_with_input():
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_input, daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()

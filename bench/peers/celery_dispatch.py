#!/usr/bin/env python3
"""Celery with Redis, the peer of `cargo xtask bench dispatch`: tasks that do nothing, from `delay` to their first line.

    MUSTER_BENCH_CELERY_PYTHON=/path/to/venv/bin/python cargo xtask bench dispatch

Needs celery 5.7 and redis (`pip install celery redis`) and `redis-server` on the path. Starts a Redis of its own without persistence
(Celery's own default, and faster) and one worker with two threads. Reads commands from stdin, one line each, and answers with
one number: `latency N` the median of N tasks one after another, in ms; `rate N` tasks a second of N at once.
"""

import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import celery
import redis


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PORT = free_port()
app = celery.Celery("peer", broker=f"redis://127.0.0.1:{PORT}/0")
app.conf.update(worker_hijack_root_logger=False, task_ignore_result=True, broker_connection_retry_on_startup=True)
begun, lock, arrived = {}, threading.Lock(), threading.Condition()


@app.task(name="peer.nothing")
def nothing(number: int) -> None:
    now = time.monotonic()
    with arrived:
        begun[number] = now
        arrived.notify_all()


def wait_for(numbers) -> None:
    with arrived:
        if not arrived.wait_for(lambda: all(number in begun for number in numbers), timeout=120):
            raise SystemExit("a task did not begin within two minutes")


def latency(count: int, first: int) -> float:
    spans = []
    for number in range(first, first + count):
        sent = time.monotonic()
        nothing.delay(number)
        wait_for([number])
        spans.append((begun[number] - sent) * 1000)
    return statistics.median(spans)


def rate(count: int, first: int) -> float:
    numbers = range(first, first + count)
    sent = time.monotonic()
    for number in numbers:
        nothing.delay(number)
    wait_for(numbers)
    return count / (max(begun[number] for number in numbers) - sent)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["redis-server", "--port", str(PORT), "--save", "", "--appendonly", "no", "--dir", folder]
        server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis(port=PORT)
            for _ in range(500):
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.02)
            worker = threading.Thread(
                target=lambda: app.Worker(pool="threads", concurrency=2, loglevel="ERROR", quiet=True).start(), daemon=True
            )
            worker.start()
            nothing.delay(-1)
            wait_for([-1])
            print(f"celery {celery.__version__}, redis {client.info()['redis_version']}", flush=True)
            first = 0
            for line in sys.stdin:
                what, count = line.split()
                count = int(count)
                print({"latency": latency, "rate": rate}[what](count, first), flush=True)
                first += count
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Celery with Redis, the peer of `cargo xtask bench dispatch`: tasks that do nothing, from `delay` to their first line.

    MUSTER_BENCH_CELERY_PYTHON=/path/to/venv/bin/python cargo xtask bench dispatch

Needs celery with redis (`pip install 'celery[redis]==5.7.0' packaging`) and `redis-server` on the path. Starts a Redis of its own
without persistence (Celery's own default, and faster; with the argument `durable`, one that answers only for what is on disk) and
one worker of two processes. Reads commands from stdin, one line each, and
answers with one number: `latency N` the median of N tasks one after another, in ms; `rate N` tasks a second of N at once. A task
notes the machine's monotonic clock in its first line and hands the note over afterwards.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import celery
import redis

PORT = int(os.environ.get("CELERY_DISPATCH_PORT", "0"))
app = celery.Celery("celery_dispatch", broker=f"redis://127.0.0.1:{PORT}/0")
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
notes = redis.Redis(port=PORT, socket_timeout=90)


@app.task(name="celery_dispatch.nothing")
def nothing(number: int) -> None:
    now = time.monotonic()
    notes.lpush("begun", f"{number} {now!r}")


def begun() -> tuple[int, float]:
    note = notes.brpop("begun", timeout=60)
    if note is None:
        raise SystemExit("a task did not begin within a minute")
    number, at = note[1].decode().split()
    return int(number), float(at)


def latency(count: int) -> float:
    spans = []
    for number in range(count):
        sent = time.monotonic()
        nothing.delay(number)
        spans.append((begun()[1] - sent) * 1000)
    return statistics.median(spans)


def rate(count: int) -> float:
    sent = time.monotonic()
    for number in range(count):
        nothing.delay(number)
    return count / (max(begun()[1] for _ in range(count)) - sent)


def work() -> None:
    for _ in range(500):
        try:
            notes.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.02)
    arguments = ["-m", "celery", "-A", "celery_dispatch", "worker", "--concurrency", "2", "--loglevel", "ERROR"]
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}
    worker = subprocess.Popen(
        [sys.executable, *arguments], cwd=Path(__file__).parent, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        nothing.delay(-1)
        begun()
        print(f"celery {celery.__version__}, redis {notes.info()['redis_version']}", flush=True)
        for line in sys.stdin:
            what, count = line.split()
            print({"latency": latency, "rate": rate}[what](int(count)), flush=True)
    finally:
        worker.terminate()
        worker.wait()


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = ["--appendonly", "yes", "--appendfsync", "always"] if "durable" in sys.argv else ["--appendonly", "no"]
        arguments = ["redis-server", "--port", str(port), "--save", "", *log, "--dir", folder]
        server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        try:
            # The port has to be known before Celery reads its configuration.
            environment = os.environ | {"CELERY_DISPATCH_PORT": str(port)}
            subprocess.run([sys.executable, __file__], env=environment, check=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    work() if PORT else main()

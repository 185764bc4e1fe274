"""A muster-llm of a measurement: started, asked over its socket, and ended with it. Standard library only."""

import http.client
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time

# Seconds that an engine may take to read its model and to listen.
PATIENCE = 120


class EngineFailed(Exception):
    """The engine refused, or ended."""


class SocketConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("engine", timeout=600)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Engine:
    """`binary` serves the model in `folder`, with one thread unless `arguments` has --threads; `environment` comes on top."""

    def __init__(self, binary, folder, arguments, environment=None):
        self.home = tempfile.TemporaryDirectory()
        self.socket = str(pathlib.Path(self.home.name) / "s")
        threads = [] if "--threads" in arguments else ["--threads", "1"]
        self.log = open(pathlib.Path(self.home.name) / "log", "w+")
        self.process = subprocess.Popen([binary, "serve", "--model", folder, "--socket", self.socket, *threads, *arguments],
                                        env={"RUST_LOG": "error", **self._inherited(), **(environment or {})}, stdout=subprocess.DEVNULL, stderr=self.log)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise

    @staticmethod
    def _inherited():
        names = ("LD_LIBRARY_PATH", "PATH", "CUDA_VISIBLE_DEVICES")
        return {name: os.environ[name] for name in names if name in os.environ}

    def _wait(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise EngineFailed(f"the engine ended with {self.process.returncode}: {self.said()}")
            try:
                return self.get("/health")
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
        raise EngineFailed(f"the engine does not listen after {PATIENCE} s: {self.said()}")

    def said(self):
        """The end of what the engine wrote to stderr, as one line."""
        self.log.seek(0)
        return " ".join(self.log.read().split())[-1500:] or "it wrote nothing"

    def get(self, path):
        return self._read(path, *self.ask("GET", path))

    def post(self, path, body):
        return self._read(path, *self.ask("POST", path, body))

    @staticmethod
    def _read(path, status, answer):
        if status != 200:
            raise EngineFailed(f"{path} answered {status}: {json.dumps(answer)[:500]}")
        return answer

    def ask(self, method, path, body=None):
        """The status and the JSON of an answer, which may be a refusal."""
        connection = SocketConnection(self.socket)
        try:
            connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.home.cleanup()

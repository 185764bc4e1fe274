"""Asks llama.cpp's server directly and through a subnet, by clients that others wrote, and compares the answers.

openai_differential.py BASE KEY MODEL MUSTER DOCS

Each request goes once to a server of our own on a socket and once to BASE. Status, body and events must be equal but for ids and times,
or the shape stands in the table of DOCS with both statuses. Every answer of the engine has a proof, checked with the client's own bytes.
Prints how many shapes agreed, and every difference.
"""

import base64
import gzip
import http.client
import http.server
import json
import os
import pathlib
import queue
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.parse

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
import openai

BASE, KEY, MODEL, MUSTER, DOCS = sys.argv[1:]
PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))
HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
# Ids, times, and what the engine remembers of earlier prompts.
VOLATILE = {"id", "created", "timings", "cached_tokens", "prompt_tokens_details"}


class SocketConnection(http.client.HTTPConnection):
    """HTTP over the engine's Unix socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(ENGINE)


class Recorder(http.server.BaseHTTPRequestHandler):
    """Passes requests on to the engine or to the subnet as they are, and keeps both bodies."""

    protocol_version = "HTTP/1.1"
    exchanges = queue.Queue()

    def answer(self):
        _, side, path = self.path.split("/", 2)
        path = "/" + path
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection", "content-length")}
        if side == "direct":
            connection = SocketConnection("engine", timeout=PATIENCE)
        else:
            connection = http.client.HTTPConnection(urllib.parse.urlsplit(BASE).netloc, timeout=PATIENCE)
        connection.request(self.command, path, body if length else None, headers)
        answer = connection.getresponse()
        seen = {"side": side, "method": self.command, "path": path, "request": body, "status": answer.status,
                "headers": {name.lower(): value for name, value in answer.getheaders()}, "response": b""}
        self.send_response(answer.status)
        for name in ("content-type", "retry-after", "x-request-id"):
            if name in seen["headers"]:
                self.send_header(name, seen["headers"][name])
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(65536):
            seen["response"] += piece
            self.pass_on(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.pass_on(b"0\r\n\r\n")
        connection.close()
        Recorder.exchanges.put(seen)

    def pass_on(self, chunk):
        try:
            self.wfile.write(chunk)
        except OSError:
            # Clients leave behind the last event; the rest of the answer is read all the same.
            self.close_connection = True

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that goes away is none."""


def events(body):
    """The events of a stream, by the letter of HTML's section 9.2.6: a block without the empty line behind it is no event."""
    text = body.decode("utf-8", "replace")
    text = text[1:] if text.startswith("\ufeff") else text
    lines = re.split("\r\n|\n|\r", text)
    data, kind, last, found = [], "", "", []
    # Behind the last line end there is no line.
    for line in lines[:-1]:
        if line == "":
            if data:
                found.append((kind or "message", last, "\n".join(data)))
            data, kind = [], ""
            continue
        if line.startswith(":"):
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last = value
    return found


def scrub(value):
    if isinstance(value, dict):
        return {name: scrub(inner) for name, inner in value.items() if name not in VOLATILE}
    return [scrub(inner) for inner in value] if isinstance(value, list) else value


def read(text):
    try:
        return scrub(json.loads(text))
    except ValueError:
        return text if isinstance(text, str) else text.decode("utf-8", "replace")


def by_choice(found):
    """Events in their order; those of several choices by their choice, since an engine makes them at once."""
    def place(event):
        choices = event[2].get("choices") if isinstance(event[2], dict) else None
        return choices[0]["index"] if choices else len(found)
    several = {place(event) for event in found} - {len(found)}
    return sorted(found, key=place) if len(several) > 1 else found


def shown(seen):
    """An exchange as it is compared."""
    kind = seen["headers"].get("content-type", "").split(";")[0]
    if kind == "text/event-stream":
        return seen["status"], kind, by_choice([(event, number, read(data)) for event, number, data in events(seen["response"])])
    return seen["status"], kind, read(seen["response"])


# === clients ===


def curl(side, method, path, body, headers=()):
    command = ["curl", "-sS", "--max-time", str(PATIENCE), "-X", method, f"{LOCAL}/{side}{path}", "-H", f"authorization: Bearer {KEY}"]
    if body is not None:
        command += ["--data-binary", "@-"]
    for header in headers or ["content-type: application/json"]:
        command += ["-H", header]
    subprocess.run(command, input=body, check=True, stdout=subprocess.PIPE)


def by_openai(call):
    def ask(side):
        with openai.OpenAI(base_url=f"{LOCAL}/{side}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as client:
            return told(lambda: call(client))
    return ask


def by_litellm(**wish):
    def ask(side):
        wish.setdefault("messages", CHAT)
        return told(lambda: litellm.completion(
            model=f"openai/{MODEL}", api_base=f"{LOCAL}/{side}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE, **wish))
    return ask


def told(call):
    """The answer as the client gives it to its program, or the error that it raises."""
    try:
        answer = call()
        if hasattr(answer, "model_dump"):
            return scrub(answer.model_dump())
        return [scrub(chunk.model_dump()) for chunk in answer]
    except (openai.APIError, litellm.exceptions.APIError) as error:
        return type(error).__name__, getattr(error, "status_code", None)


def by_curl(path, body=None, method="POST", headers=()):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    return lambda side: curl(side, method, path, body, headers)


# === shapes ===

CHAT = [{"role": "user", "content": "The borrow checker"}]
LONG = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "fn main"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "The borrow"}, {"type": "text", "text": " checker"}]}]
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
TOOL = [{"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
GREEDY = {"model": MODEL, "temperature": 0, "seed": 1, "max_tokens": 6}
USAGE = {"include_usage": True}


def chat(**more):
    return by_curl("/v1/chat/completions", {**GREEDY, "messages": CHAT, **more})


def text(**more):
    return by_curl("/v1/completions", {**GREEDY, "prompt": "let mut x", **more})


def sdk(**more):
    return by_openai(lambda client: client.chat.completions.create(**{**GREEDY, "messages": CHAT, **more}))


def sdk_text(**more):
    return by_openai(lambda client: client.completions.create(**{**GREEDY, "prompt": "let mut x", **more}))


def lite(**more):
    return by_litellm(**{"temperature": 0, "seed": 1, "max_tokens": 6, **more})


PLAIN = json.dumps({**GREEDY, "messages": CHAT}).encode()
CHATS = "/v1/chat/completions"
JSON_TYPE = "content-type: application/json"
SHAPES = {
    "chat": chat(),
    "chat stream": chat(stream=True),
    "chat stream with usage": chat(stream=True, stream_options=USAGE),
    "chat stream without usage": chat(stream=True, stream_options={"include_usage": False}),
    "chat stream null options": chat(stream=True, stream_options=None),
    "chat parts": chat(messages=PARTS),
    "chat history": chat(messages=LONG),
    "chat n": chat(n=2),
    "chat n stream": chat(n=2, stream=True),
    "chat stop": chat(stop="e", max_tokens=30),
    "chat stop list": chat(stop=["zzz", "a"], max_tokens=30, stream=True),
    "chat max_completion_tokens": by_curl(CHATS, {"model": MODEL, "temperature": 0, "messages": CHAT, "max_completion_tokens": 3}),
    "chat both limits": chat(max_tokens=9, max_completion_tokens=3),
    "chat zero tokens": chat(max_tokens=0),
    "chat seed": chat(temperature=1, seed=77),
    "chat seed stream": chat(temperature=1, seed=77, stream=True),
    "chat penalties": chat(presence_penalty=1.5, frequency_penalty=0.5, max_tokens=12),
    "chat logit_bias": chat(logit_bias={"5": -100}),
    "chat logprobs": chat(logprobs=True, top_logprobs=2, max_tokens=3),
    "chat logprobs stream": chat(logprobs=True, top_logprobs=2, max_tokens=3, stream=True),
    "chat json_object": chat(response_format={"type": "json_object"}, max_tokens=12),
    "chat json_schema": chat(response_format=SCHEMA, max_tokens=12),
    "chat unknown response_format": chat(response_format={"type": "poem"}),
    "chat tools": chat(tools=TOOL, tool_choice="none", max_tokens=4),
    "chat required tool": chat(tools=TOOL, tool_choice="required", max_tokens=24),
    "chat metadata": chat(user="u" * 3000, metadata={"k": "v" * 3000}, store=False),
    "chat unknown field": chat(no_such_field={"a": [1]}),
    "chat picture": chat(messages=PICTURE),
    "chat no messages": by_curl(CHATS, GREEDY),
    "chat wrong messages": chat(messages="text"),
    "chat wrong temperature": chat(temperature="hot"),
    "chat too long": chat(messages=[{"role": "user", "content": "word " * 3000}]),
    "chat too long stream": chat(messages=[{"role": "user", "content": "word " * 3000}], stream=True),
    "chat other letters": chat(messages=[{"role": "user", "content": "Größe 猫 🐈 \u0000"}]),
    "chat byte order mark": by_curl(CHATS, b"\xef\xbb\xbf" + PLAIN),
    "chat typed as a form": by_curl(CHATS, PLAIN, headers=["content-type: application/x-www-form-urlencoded"]),
    "chat with a charset": by_curl(CHATS, PLAIN, headers=["content-type: application/json; charset=utf-8"]),
    "chat chunked": by_curl(CHATS, PLAIN, headers=[JSON_TYPE, "accept: text/event-stream"]),
    "text": text(),
    "text stream": text(stream=True),
    "text stream with usage": text(stream=True, stream_options=USAGE),
    "text list": text(prompt=["let mut x", "fn main"]),
    "text ids": text(prompt=[5, 6, 7]),
    "text stop": text(stop=["\n"], max_tokens=30),
    "text logprobs": text(logprobs=2, max_tokens=3),
    "text echo": text(echo=True),
    "embeddings": by_curl("/v1/embeddings", {"model": MODEL, "input": "a"}),
    "embeddings list": by_curl("/v1/embeddings", {"model": MODEL, "input": ["a", "b"]}),
    "openai chat": sdk(),
    "openai chat stream": sdk(stream=True),
    "openai chat stream with usage": sdk(stream=True, stream_options=USAGE),
    "openai n and stop": sdk(n=2, stop=["e"]),
    "openai logprobs": sdk(logprobs=True, top_logprobs=1, max_tokens=2),
    "openai tools": sdk(tools=TOOL, tool_choice="none", max_tokens=4),
    "openai parts": sdk(messages=PARTS, stream=True),
    "openai picture": sdk(messages=PICTURE),
    "openai text": sdk_text(),
    "openai text stream": sdk_text(stream=True),
    "openai embeddings": by_openai(lambda client: client.embeddings.create(model=MODEL, input="a")),
    "litellm chat": lite(),
    "litellm stream": lite(stream=True),
    "litellm stream with usage": lite(stream=True, stream_options=USAGE),
    "litellm n": lite(n=2),
    "litellm stop": lite(stop=["e"], max_tokens=20),
    "litellm json": lite(response_format={"type": "json_object"}),
    "litellm picture": lite(messages=PICTURE),
    # Those that differ, each with its reason in the table.
    "unknown model": chat(model="no-such-model"),
    "no model": by_curl(CHATS, {"messages": CHAT, "max_tokens": 2, "temperature": 0}),
    "broken JSON": by_curl(CHATS, b'{"model":'),
    "a list for a request": by_curl(CHATS, b"[]"),
    "stream as a text": chat(stream="yes"),
    "compressed request": by_curl(CHATS, gzip.compress(PLAIN), headers=[JSON_TYPE, "content-encoding: gzip"]),
    "list of models": by_curl("/v1/models", method="GET"),
    "one model": by_curl(f"/v1/models/{MODEL}", method="GET"),
    "unknown path": by_curl("/v1/no/such/path", {}),
    "audio": by_curl("/v1/audio/speech", {"model": MODEL, "input": "a"}),
    "wrong method": by_curl(CHATS, method="DELETE"),
    "responses": by_curl("/v1/responses", {"model": MODEL, "input": "a", "max_output_tokens": 2}),
    "messages": by_curl("/v1/messages", {"model": MODEL, "messages": CHAT, "max_tokens": 2}),
}
# Requests for one answer cost the same, whichever way it comes.
PRICES = [
    ["chat", "chat stream", "chat stream with usage", "chat stream without usage", "chat stream null options", "chat metadata"],
    ["text", "text stream", "text stream with usage"],
    ["openai chat", "openai chat stream", "openai chat stream with usage"],
    ["litellm chat", "litellm stream", "litellm stream with usage"],
]


# === checks ===


def documented():
    """The table of the shapes that differ: the statuses of the engine and of the subnet."""
    table = pathlib.Path(DOCS).read_text().split("<!-- differences: begin -->")[1].split("<!-- differences: end -->")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \| (\d+) \| .+ \|$", table, re.M)
    return {name: (int(engine), int(here)) for name, engine, here in rows}


def checked_proof(seen, folder):
    """The gateway's record of an answer whose proof holds for the client's own bytes."""
    number = seen["headers"]["x-request-id"]
    waited_until = time.monotonic() + PATIENCE
    while True:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(BASE).netloc, timeout=PATIENCE)
        connection.request("GET", f"/v1/proofs/{number}", headers={"authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        record = json.loads(answer.read())
        # The answer is stored a moment after its last byte.
        if answer.status != 404 or time.monotonic() > waited_until:
            break
        time.sleep(0.02)
    assert answer.status == 200 and record["verdict"] == "proven", record
    record["words"] = {
        "method": seen["method"], "path": seen["path"], "request": base64.b64encode(seen["request"]).decode(),
        "status": seen["status"], "content_type": seen["headers"].get("content-type"),
        "response": base64.b64encode(seen["response"]).decode(), "client_nonce": None,
        "asked_at": record["asked_at"], "ended_at": record["ended_at"]}
    file = pathlib.Path(folder, "record.json")
    file.write_text(json.dumps(record))
    verified = subprocess.run([MUSTER, "proof", "verify", str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert verified.returncode == 0 and verified.stdout.startswith("proven\n"), verified.stdout
    return record


def compare(name, ask, table, folder, report):
    sides = {}
    for side in ("direct", "muster"):
        client = ask(side)
        sides[side] = (Recorder.exchanges.get(timeout=PATIENCE), client)
        assert Recorder.exchanges.empty(), f"{name} asks twice"
    (direct, by_engine), (muster, by_subnet) = sides["direct"], sides["muster"]
    statuses = (direct["status"], muster["status"])
    if name in table:
        if statuses != table[name]:
            report["differences"].append([name, "the table has other statuses", statuses])
        error = read(muster["response"])
        if muster["status"] >= 400 and set(error["error"]) != {"message", "type", "param", "code"}:
            report["differences"].append([name, "an error is not in OpenAI's form", error])
        report["listed"] += 1
        return None
    if shown(direct) == shown(muster) and by_engine == by_subnet:
        report["equal"] += 1
    else:
        report["differences"].append([name, shown(direct), shown(muster), by_engine, by_subnet])
    if "x-request-id" not in muster["headers"]:
        report["differences"].append([name, "no proof", shown(muster)])
        return None
    record = checked_proof(muster, folder)
    report["proven"] += 1
    return record["usage"]


def main():
    table, report = documented(), {"equal": 0, "listed": 0, "proven": 0, "shapes": len(SHAPES), "differences": []}
    unknown = set(table) - set(SHAPES)
    if unknown:
        report["differences"].append(["shapes of the table that nobody asks", sorted(unknown)])
    with tempfile.TemporaryDirectory() as folder:
        used = {name: compare(name, ask, table, folder, report) for name, ask in SHAPES.items()}
    for group in PRICES:
        if len({json.dumps(used[name], sort_keys=True) for name in group}) != 1 or used[group[0]] is None:
            report["differences"].append(["prices", {name: used[name] for name in group}])
    print(json.dumps(report))


with tempfile.TemporaryDirectory() as place:
    ENGINE, weights = f"{place}/http.sock", f"{place}/model.gguf"
    llm = ROOT / "images/llm"
    subprocess.run([sys.executable, llm / "tests/python/to_gguf.py", llm / "model", weights, "f16"], check=True, stdout=subprocess.DEVNULL)
    serve = [sys.executable, HERE.with_name("llama_cpp_serves.py"), sysconfig.get_path("platlib"), weights, ENGINE]
    with open(f"{place}/log", "wb") as log, subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=log) as engine:
        try:
            # The engine says where it listens once it does.
            while line := engine.stdout.readline():
                if line.startswith(b"listens on"):
                    break
            threading.Thread(target=engine.stdout.read, daemon=True).start()
            local = Server(("127.0.0.1", 0), Recorder)
            threading.Thread(target=local.serve_forever, daemon=True).start()
            LOCAL = f"http://127.0.0.1:{local.server_port}"
            main()
        finally:
            engine.terminate()

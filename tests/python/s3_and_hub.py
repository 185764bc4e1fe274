#!/usr/bin/env python3
"""An S3 that nobody here wrote (moto) and as much of the Hugging Face hub as one repository needs, until stdin ends.

Prints one line of JSON with their addresses and with presigned URLs for `in.txt` (which is there), `words.json` (PUT) and
`printed.txt` (POST). For each line on stdin it prints what the bucket holds by then: {"key": "text", ...}.
"""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "owner/texts"
FILES = {"sub/hub.txt": b"hub hub hub hub", "left/out.txt": b"out"}


def git_name(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.split("?")[0]
        api, files = f"/api/models/{REPOSITORY}", f"/{REPOSITORY}/resolve/{COMMIT}/"
        if path.startswith(f"{api}/revision/"):
            self.answer(json.dumps({"id": REPOSITORY, "sha": COMMIT, "private": False, "tags": []}).encode())
        elif path == f"{api}/tree/{COMMIT}":
            entries = [
                {"type": "file", "oid": git_name(content), "size": len(content), "path": name}
                for name, content in FILES.items()
            ]
            self.answer(json.dumps(entries).encode())
        elif path.startswith(files) and path.removeprefix(files) in FILES:
            self.answer(FILES[path.removeprefix(files)])
        else:
            self.send_error(404)

    def answer(self, body: bytes):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{git_name(body)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    s3 = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    s3.create_bucket(Bucket="jobs")
    s3.put_object(Bucket="jobs", Key="in.txt", Body=b"fetched fetched fetched")

    def presigned(method, key):
        return s3.generate_presigned_url(method, {"Bucket": "jobs", "Key": key})

    places = {
        "hub": f"http://127.0.0.1:{hub.server_port}",
        "repository": REPOSITORY,
        "get": presigned("get_object", "in.txt"),
        "put": presigned("put_object", "words.json"),
        "post": s3.generate_presigned_post("jobs", "printed.txt"),
    }
    print(json.dumps(places), flush=True)
    for _ in sys.stdin:
        held = {}
        for entry in s3.list_objects_v2(Bucket="jobs").get("Contents", []):
            held[entry["Key"]] = s3.get_object(Bucket="jobs", Key=entry["Key"])["Body"].read().decode()
        print(json.dumps(held), flush=True)


if __name__ == "__main__":
    main()

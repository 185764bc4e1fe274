"""A collector of spans on this machine: reads OTLP with the classes of opentelemetry-proto, and prints each span.

The first line is the address. Then each span is a line of JSON, in the order in which requests came.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

lock = threading.Lock()


def text_of(attributes):
    return {each.key: each.value.string_value or each.value.int_value for each in attributes}


def lines_of(request):
    for of_resource in request.resource_spans:
        resource = text_of(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield {
                    "service": resource.get("service.name"),
                    "scope": of_scope.scope.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "name": span.name,
                    "kind": span.kind,
                    "began": span.start_time_unix_nano,
                    "ended": span.end_time_unix_nano,
                    "error": span.status.message if span.status.code == 2 else None,
                    "attributes": text_of(span.attributes),
                }


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
            self.send_error(415)
            return
        request = ExportTraceServiceRequest.FromString(body)
        with lock:
            for line in lines_of(request):
                print(json.dumps(line), flush=True)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *ignored):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
# The collector lives as long as the test that started it.
sys.stdin.read()

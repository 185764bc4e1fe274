"""llama.cpp's server as the program of a streaming job: llama_cpp_serves.py PACKAGES GGUF SOCKET

Serves OpenAI's interface on a Unix socket and nowhere else, until it is told to stop.
"""

import signal
import sys
import threading

packages, weights, socket = sys.argv[1:]
sys.path.append(packages)

import xllamacpp

stop = threading.Event()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())

params = xllamacpp.CommonParams()
params.model.path, params.model_alias = weights, {"tiny-llama"}
params.hostnames = [socket]
params.n_ctx, params.n_parallel, params.n_threads_http, params.warmup = 1024, 2, 4, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
# The template is the model's own, which its file names.
params.use_jinja = True
server = xllamacpp.Server(params)
print("listens on", server.listening_address, flush=True)
stop.wait()

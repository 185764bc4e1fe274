"""llama.cpp's server and the engine on the same GGUF: llama_cpp.py SOCKET GGUF KIND

Greedy tokens are equal and log-probabilities differ by no more than TOLERANCE, which is what was measured, doubled. Where a text's two
likeliest tokens are closer than that, the rest of the text is another text and is not compared.
"""

import json
import os
import sys

import httpx2
import xllamacpp

TOLERANCE = {"f32": 0.0001, "f16": 0.004, "q8_0": 0.09}[sys.argv[3]]
PROMPTS = ["fn main() {\n", "The ownership rules of Rust", "Returns the", "error[E0308]: mismatched types", "```rust\nuse std::", "To install Cargo, "]
COUNT = 32
# Seconds, as in tests/it/wait.rs.
PATIENCE = float(os.environ.get("MUSTER_TEST_PATIENCE", "240"))

params = xllamacpp.CommonParams()
params.model.path = sys.argv[2]
params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
peer = xllamacpp.Server(params)
ours = httpx2.Client(transport=httpx2.HTTPTransport(uds=sys.argv[1]), base_url="http://engine", timeout=PATIENCE)

worst, compared = 0.0, 0
for prompt in PROMPTS:
    mine = ours.post("/v1/completions", json={
        "prompt": prompt, "max_tokens": COUNT, "temperature": 0, "logprobs": 2, "return_token_ids": True, "logit_bias": {"0": -100}}).json()
    choice = mine["choices"][0]
    theirs = peer.handle_completions({
        "prompt": choice["prompt_token_ids"], "max_tokens": COUNT, "temperature": 0, "logprobs": 2, "n_probs": 2, "logit_bias": [[0, -100]]})
    theirs = theirs["choices"][0]["logprobs"]["content"]
    assert len(theirs) == COUNT == len(choice["token_ids"]), (len(theirs), choice)
    for i, (token, their) in enumerate(zip(choice["token_ids"], theirs)):
        logprobs = choice["logprobs"]
        if token != their["id"]:
            gap = logprobs["token_logprobs"][i] - min(logprobs["top_logprobs"][i].values())
            assert gap <= 2 * TOLERANCE, (prompt, i, token, their, gap)
            break
        worst = max(worst, abs(logprobs["token_logprobs"][i] - their["logprob"]))
        compared += 1
assert compared >= len(PROMPTS) * COUNT // 2, compared
assert worst <= TOLERANCE, worst
print(json.dumps({"kind": sys.argv[3], "equal_greedy_tokens": compared, "of": len(PROMPTS) * COUNT, "largest_logprob_difference": worst}))

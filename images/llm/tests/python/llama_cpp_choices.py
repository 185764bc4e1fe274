"""Golden answers of llama.cpp's own sampler: llama_cpp_choices.py GGUF OUT

Each row is an answer under a seed and parameters, as llama.cpp's server gave it; the parameters that it would otherwise choose itself are
stated. A replay that knows the seed finds no token of it off, but for what two programs' sums differ by.
"""

import json
import pathlib
import sys

import xllamacpp

COUNT = 64
# "fn main() {\n", "The ownership rules of Rust", "Returns the" and others, as the model's tokenizer has them.
PROMPTS = [[470, 545, 320, 319, 202], [385, 1167, 1943, 413, 1425, 313, 584], [1100, 269], [577, 62, 40, 19, 22, 19, 27, 64, 29, 284, 276, 1736, 278, 795], [67, 67, 67, 905, 202, 414, 456, 294], [1625, 734, 501, 884, 15, 224]]
# Temperature, top_k, top_p, min_p: all candidates in the order of their ids; sorted ones; the server's usual ones; few, and often one.
PARAMETERS = [(1.0, 0, 1.0, 0.0), (1.0, 40, 1.0, 0.0), (0.8, 40, 0.95, 0.05), (0.6, 0, 0.7, 0.0), (1.0, 0, 1.0, 0.2), (1.2, 3, 0.6, 0.1)]

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)

rows = []
for n, prompt in enumerate(PROMPTS):
    for m, (temperature, top_k, top_p, min_p) in enumerate(PARAMETERS):
        seed = [0, 1, 77, 2**32 - 2, 123_456_789, 42][(n + m) % 6]
        said = server.handle_completions({
            "prompt": prompt, "max_tokens": COUNT, "seed": seed, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "logprobs": 1, "logit_bias": [[0, -100]], "cache_prompt": False, "samplers": ["top_k", "top_p", "min_p", "temperature"]})
        rows.append({"prompt": prompt, "seed": seed, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                     "tokens": [token["id"] for token in said["choices"][0]["logprobs"]["content"]]})
        assert len(rows[-1]["tokens"]) == COUNT, rows[-1]
pathlib.Path(sys.argv[2]).write_text(json.dumps(rows) + "\n")
print(len(rows), "answers of xllamacpp", xllamacpp.__version__)

#!/usr/bin/env python3
"""A model of random weights that fits no cache, to measure speed with: larger.py MODEL OUT [LAYERS]

It has the tokenizer of MODEL, width 1024, 16 query and 4 key heads of 64, feed-forward 2816, and some 11 million parameters a block.
"""

import json
import pathlib
import sys

import numpy as np
import safetensors.numpy

model, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
layers = int(sys.argv[3]) if len(sys.argv) > 3 else 8
out.mkdir(parents=True, exist_ok=True)
config = json.loads((model / "config.json").read_text())
config |= {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64}
(out / "config.json").write_text(json.dumps(config))
for name in ("tokenizer.json", "tokenizer_config.json"):
    (out / name).write_bytes((model / name).read_bytes())
random = np.random.default_rng(1)
matrix = lambda rows, columns: (random.standard_normal((rows, columns), np.float32) / columns**0.5).astype(np.float16)
tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], 1024), "model.norm.weight": np.ones(1024, np.float16)}
for layer in range(layers):
    of = f"model.layers.{layer}."
    for name, rows, columns in [("self_attn.q_proj", 1024, 1024), ("self_attn.k_proj", 256, 1024), ("self_attn.v_proj", 256, 1024),
                                ("self_attn.o_proj", 1024, 1024), ("mlp.gate_proj", 2816, 1024), ("mlp.up_proj", 2816, 1024), ("mlp.down_proj", 1024, 2816)]:
        tensors[f"{of}{name}.weight"] = matrix(rows, columns)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{of}{name}.weight"] = np.ones(1024, np.float16)
safetensors.numpy.save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
print(sum(tensor.size for tensor in tensors.values()), "parameters")

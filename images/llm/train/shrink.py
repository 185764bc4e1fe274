#!/usr/bin/env python3
"""A smaller model out of a larger one, without training: shrink.py MODEL OUT BLOCKS FFN

Keeps the first BLOCKS - 1 blocks and the last one, and in each the FFN units of the feed-forward layer with the largest weights. The result
is the same on every machine. It is a worse model than a trained one of its size (train.py), and what a cheater has who prunes.

Needs safetensors and numpy (requirements.txt).
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import safetensors.numpy

model, out, blocks, ffn = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
config = json.loads((model / "config.json").read_text())
layers = config["num_hidden_layers"]
assert 1 <= blocks <= layers and 1 <= ffn <= config["intermediate_size"], "not more than the model has"
given = safetensors.numpy.load_file(str(model / "model.safetensors"))
kept = {name: values for name, values in given.items() if ".layers." not in name}
for at, block in enumerate([*range(blocks - 1), layers - 1]):
    part = lambda name: given[f"model.layers.{block}.{name}.weight"]
    put = lambda name, values: kept.update({f"model.layers.{at}.{name}.weight": np.ascontiguousarray(values)})
    size = sum((part(f"mlp.{name}").astype(np.float64) ** 2).sum(axis=1) for name in ("gate_proj", "up_proj"))
    # The largest, in their order; the earlier one of two that are equal.
    units = np.sort(np.argsort(-size, kind="stable")[:ffn])
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        put(name, part(name)[units])
    put("mlp.down_proj", part("mlp.down_proj")[:, units])
    for name in [key.removeprefix(f"model.layers.{block}.").removesuffix(".weight") for key in given if key.startswith(f"model.layers.{block}.")]:
        if not name.startswith("mlp."):
            put(name, part(name))
config["num_hidden_layers"], config["intermediate_size"] = blocks, ffn
out.mkdir(parents=True, exist_ok=True)
safetensors.numpy.save_file(kept, str(out / "model.safetensors"), metadata={"format": "pt"})
(out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(model / name, out / name)
print(sum(values.size for values in kept.values()), "parameters")

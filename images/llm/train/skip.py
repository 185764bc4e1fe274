#!/usr/bin/env python3
"""A model without one of its blocks: what a cheater has who skips a part of the work. skip.py MODEL OUT BLOCK

Needs safetensors and numpy (requirements.txt).
"""

import json
import pathlib
import shutil
import sys

import safetensors.numpy

model, out, block = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
config = json.loads((model / "config.json").read_text())
kept = {}
for name, values in safetensors.numpy.load_file(str(model / "model.safetensors")).items():
    parts = name.split(".")
    if parts[1] == "layers":
        at = int(parts[2])
        if at == block:
            continue
        parts[2] = str(at - (at > block))
    kept[".".join(parts)] = values
config["num_hidden_layers"] -= 1
out.mkdir(parents=True, exist_ok=True)
safetensors.numpy.save_file(kept, str(out / "model.safetensors"), metadata={"format": "pt"})
(out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(model / name, out / name)

"""Golden numbers of vLLM's noise: triton_noise.py OUT

Triton's interpreter runs its own `randint` and `rand` the way vLLM's newer runner for GPUs calls them: a key of 32 bits out of the seed of
the request at the position, then a number of each token. The noise is -log(-log1p(-u)) in f32, with u at least Triton's smallest number.
Each row of OUT also has logits (in 64ths) and the token that wins among them: its logit divided by the temperature, plus the noise, is the largest.

Needs triton and numpy, no torch and no GPU.
"""

import json
import os
import pathlib
import sys

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton
import triton.language as tl

TOKENS = 256


class Array:
    """As much of a tensor as the interpreter asks for, around an array of numpy's."""

    def __init__(self, array):
        self.array, self.dtype, self.device = array, {"int64": "int64", "float32": "float32"}[str(array.dtype)], "cpu"

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return self

    def storage_offset(self):
        return 0

    def size(self):
        return self.array.shape

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        return self

    def set_(self, *_):
        return self

    def copy_(self, *_):
        return self

    def is_contiguous(self):
        return True


@triton.jit
def noise(seed_at, position_at, bits_at, uniform_at, COUNT: tl.constexpr):
    key = tl.randint(tl.load(seed_at), tl.load(position_at))
    tokens = tl.arange(0, COUNT)
    tl.store(bits_at + tokens, tl.randint(key, tokens).to(tl.int64))
    tl.store(uniform_at + tokens, tl.rand(key, tokens))


rows = []
random = np.random.default_rng(5)
for seed, position in [(0, 0), (1, 0), (1, 1), (7, 300), (-1, 12), (2**63 - 1, 99_999), (-(2**63), 5), (123_456_789_012_345, 2**33 + 7)]:
    bits, uniform = np.zeros(TOKENS, np.int64), np.zeros(TOKENS, np.float32)
    noise[(1,)](Array(np.array([seed])), Array(np.array([position])), Array(bits), Array(uniform), COUNT=TOKENS)
    drawn = -np.log(-np.log1p(-np.maximum(uniform, np.float32(4.6566127342e-10))))
    assert drawn.dtype == np.float32 and np.isfinite(drawn).all()
    for temperature in (1.0, 0.5):
        logits = np.round(random.normal(0, 3, TOKENS) * 64).astype(np.float32) / np.float32(64)
        winner = int(np.argmax(logits / np.float32(temperature) + drawn))
        rows.append({"seed": seed, "position": position, "temperature": temperature, "logits": [int(x * 64) for x in logits], "winner": winner,
                     "bits": [int(n) for n in bits[:8]], "noise": [float(x) for x in drawn[:8]]})
pathlib.Path(sys.argv[1]).write_text(json.dumps(rows) + "\n")
print(len(rows), "rows of triton", triton.__version__)

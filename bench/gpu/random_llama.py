"""A Llama of random weights in bf16, made in seconds with the standard library alone: for speed and for numbers, never for a calibration.

A weight has a random sign and a random low byte, so its size lies between 2**k and 2**(k + 2). The norm before the head carries the
scale that gives the distributions of the next token the wanted entropy: logits of random weights are normal, so that scale is
worked out without running the model.
"""

import concurrent.futures
import json
import math
import pathlib
import random
import shutil
import struct

CHUNK = 1 << 22


def rms(high):
    """The root of the mean square of bf16 numbers with the high byte `high` and any low byte."""
    def number(low):
        bits = high << 8 | low
        return (1 + (bits & 0x7F) / 128) * 2.0 ** ((bits >> 7) - 127)
    return math.sqrt(sum(number(low) ** 2 for low in range(256)) / 256)


def high_byte(inputs):
    """The high byte whose numbers come nearest to a standard deviation of 1/sqrt(inputs)."""
    return min(range(0x30, 0x40), key=lambda high: abs(math.log(rms(high) * math.sqrt(inputs))))


def spread_for_entropy(vocabulary, nats):
    """The standard deviation of normal logits over `vocabulary` tokens whose softmax has the mean entropy `nats`."""
    numbers = random.Random(1)
    draws = [[numbers.gauss(0, 1) for _ in range(vocabulary)] for _ in range(max(4, 100_000 // vocabulary))]

    def entropy(spread):
        total = 0.0
        for draw in draws:
            most = max(draw)
            weights = [math.exp(spread * (one - most)) for one in draw]
            whole = sum(weights)
            total += math.log(whole) - sum(w * spread * (one - most) for w, one in zip(weights, draw)) / whole
        return total / len(draws)

    low, high = 0.0, 30.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(middle) > nats else (low, middle)
    return (low + high) / 2


def shard(path, seed, tensors):
    """Writes one safetensors file. A tensor is a name, a shape, and a number that all its entries have, or None for random ones."""
    header, at = {}, 0
    for name, shape, constant in tensors:
        size = math.prod(shape) * (2 if constant is None else 4)
        header[name] = {"dtype": "BF16" if constant is None else "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    numbers = random.Random(seed)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape, constant in tensors:
            count = math.prod(shape)
            if constant is not None:
                file.write(struct.pack("<f", constant) * count)
                continue
            high = high_byte(shape[1])
            signs = bytes(high | (0x80 if byte & 1 else 0) for byte in range(256))
            for first in range(0, count, CHUNK):
                many = min(CHUNK, count - first)
                both = bytearray(2 * many)
                both[0::2] = numbers.randbytes(many)
                both[1::2] = numbers.randbytes(many).translate(signs)
                file.write(both)


def make(folder, beside, sizes, nats):
    """Makes the model in `folder`, with the tokenizer of the model `beside` it; returns the number of its parameters."""
    dim, layers, heads, kv_heads, ffn, vocabulary = (sizes[name] for name in ("dim", "layers", "heads", "kv_heads", "ffn", "vocabulary"))
    width = dim // heads
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(beside) / name, folder / name)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": vocabulary,
        "hidden_size": dim, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": width, "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 0}))
    scale = spread_for_entropy(vocabulary, nats) / (rms(high_byte(dim)) * math.sqrt(dim))
    files = [[("model.embed_tokens.weight", [vocabulary, dim], None)], [("lm_head.weight", [vocabulary, dim], None), ("model.norm.weight", [dim], scale)]]
    for layer in range(layers):
        of = f"model.layers.{layer}."
        files.append([
            (of + "self_attn.q_proj.weight", [heads * width, dim], None), (of + "self_attn.k_proj.weight", [kv_heads * width, dim], None),
            (of + "self_attn.v_proj.weight", [kv_heads * width, dim], None), (of + "self_attn.o_proj.weight", [dim, heads * width], None),
            (of + "mlp.gate_proj.weight", [ffn, dim], None), (of + "mlp.up_proj.weight", [ffn, dim], None),
            (of + "mlp.down_proj.weight", [dim, ffn], None),
            (of + "input_layernorm.weight", [dim], 1.0), (of + "post_attention_layernorm.weight", [dim], 1.0)])
    paths = [folder / f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        list(pool.map(shard, paths, range(1, len(files) + 1), files))
    return sum(math.prod(shape) for tensors in files for _, shape, _ in tensors)

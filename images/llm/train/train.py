#!/usr/bin/env python3
"""Trains a small Llama-architecture model from the text that `text.py` made.

    python3 train.py TEXT OUT --minutes 50                                      # the reference model
    python3 train.py TEXT OUT --steps 150 --dim 128 --layers 3 --ffn 352 --tokenizer REF     # a smaller one, same tokenizer
    python3 train.py TEXT OUT --steps 40 --init REF --rate 0.004                # a fine-tune of REF on other text

Writes OUT/model.safetensors (F16, names as in Hugging Face's Llama), config.json, tokenizer.json, tokenizer_config.json and
loss.jsonl. The learning rate follows the clock, so a busy machine makes fewer steps but a finished model; or it follows the steps,
where their number is given.

Needs jax, optax, tokenizers 0.22, safetensors, numpy (requirements.txt).
"""

import argparse
import functools
import json
import math
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import safetensors.numpy
import tokenizers

CONTEXT = 512
VOCABULARY = 2048
SPECIALS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(text):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(text.split("\n\n\n"), trainer)
    return tokenizer


def encode(tokenizer, text):
    """All pages in one row, an end after each."""
    pages = tokenizer.encode_batch(text.split("\n\n\n"))
    return np.concatenate([np.array(page.ids + [0], dtype=np.int32) for page in pages])


def initial(key, c):
    def normal(key, rows, columns, scale=1.0):
        return jax.random.normal(key, (rows, columns), jnp.float32) * scale / math.sqrt(columns)

    keys = iter(jax.random.split(key, 2 + 7 * c["layers"]))
    d, f, kv = c["dim"], c["ffn"], c["kv_heads"] * c["head_dim"]
    q = c["heads"] * c["head_dim"]
    weights = {
        "model.embed_tokens.weight": jax.random.normal(next(keys), (c["vocabulary"], d), jnp.float32) * 0.02,
        "model.norm.weight": jnp.ones(d),
    }
    deep = 1 / math.sqrt(2 * c["layers"])
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        weights[p + "input_layernorm.weight"] = jnp.ones(d)
        weights[p + "post_attention_layernorm.weight"] = jnp.ones(d)
        for name, rows, columns, scale in [
            ("self_attn.q_proj", q, d, 1), ("self_attn.k_proj", kv, d, 1), ("self_attn.v_proj", kv, d, 1), ("self_attn.o_proj", d, q, deep),
            ("mlp.gate_proj", f, d, 1), ("mlp.up_proj", f, d, 1), ("mlp.down_proj", d, f, deep),
        ]:
            weights[p + name + ".weight"] = normal(next(keys), rows, columns, scale)
    return weights


def rms(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight


def matmul(x, weight, dtype):
    """x · weightᵀ; products in `dtype`, sums in f32."""
    return jax.lax.dot_general(
        x.astype(dtype), weight.astype(dtype), (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )


def rope(x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, None] * (10000.0 ** (-jnp.arange(half) / half))[None, :]
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def forward(weights, ids, c, dtype):
    batch, length = ids.shape
    embedding = weights["model.embed_tokens.weight"]
    x = embedding[ids]
    positions = jnp.arange(length)
    mask = positions[:, None] >= positions[None, :]
    group = c["heads"] // c["kv_heads"]
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        h = rms(x, weights[p + "input_layernorm.weight"])
        q, k, v = (
            matmul(h, weights[p + f"self_attn.{n}_proj.weight"], dtype).reshape(batch, length, -1, c["head_dim"]) for n in "qkv"
        )
        q = rope(q, positions).reshape(batch, length, c["kv_heads"], group, c["head_dim"])
        k = rope(k, positions)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", q.astype(dtype), k.astype(dtype), preferred_element_type=jnp.float32)
        scores = jnp.where(mask, scores / math.sqrt(c["head_dim"]), -jnp.inf)
        shares = jax.nn.softmax(scores, -1).astype(dtype)
        mixed = jnp.einsum("bhgqk,bkhd->bqhgd", shares, v.astype(dtype), preferred_element_type=jnp.float32)
        x = x + matmul(mixed.reshape(batch, length, -1), weights[p + "self_attn.o_proj.weight"], dtype)
        h = rms(x, weights[p + "post_attention_layernorm.weight"])
        gate = jax.nn.silu(matmul(h, weights[p + "mlp.gate_proj.weight"], dtype))
        up = matmul(h, weights[p + "mlp.up_proj.weight"], dtype)
        x = x + matmul(gate * up, weights[p + "mlp.down_proj.weight"], dtype)
    return matmul(rms(x, weights["model.norm.weight"]), embedding, dtype)


def loss(weights, ids, c, dtype):
    logits = forward(weights, ids[:, :-1], c, dtype)
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


@functools.partial(jax.jit, static_argnums=2)
def nats(weights, window, c):
    logits = forward(weights, window[None, :-1], dict(c), jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, window[None, 1:])[0]


def bits_per_byte(weights, ids, size, c):
    """Windows of CONTEXT tokens that overlap by half; what lies in the first half of a window was counted in the one before."""

    total, half = 0.0, CONTEXT // 2
    for start in range(0, len(ids) - 1, half):
        window = ids[start : start + CONTEXT + 1]
        known = len(window) - 1
        window = np.pad(window, (0, CONTEXT + 1 - len(window)))
        losses = np.asarray(nats(weights, window, tuple(c.items())))[:known]
        total += float(losses[half if start else 0 :].sum())
        if start + CONTEXT + 1 >= len(ids):
            break
    return total / math.log(2) / size


def rate(progress, peak):
    """Warm-up, a plateau, and a fall to nothing over the last 40 %."""
    return peak * min(1.0, progress / 0.01, max(0.0, (1.0 - progress) / 0.4))


def save(out, weights, c, tokenizer):
    out.mkdir(parents=True, exist_ok=True)
    half = {name: np.asarray(weight, dtype=np.float16) for name, weight in weights.items()}
    safetensors.numpy.save_file(half, str(out / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
        "vocab_size": c["vocabulary"], "hidden_size": c["dim"], "intermediate_size": c["ffn"],
        "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"], "num_key_value_heads": c["kv_heads"],
        "head_dim": c["head_dim"], "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 0,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))
    about = {"chat_template": TEMPLATE, "eos_token": SPECIALS[0], "add_bos_token": False}
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=50)
    parser.add_argument("--steps", type=int, help="so many, however long they take")
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ffn", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--init", type=pathlib.Path, help="a model to go on from")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="a model whose tokenizer is taken")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()

    train = (a.text / "train.txt").read_text(encoding="utf-8")
    heldout = (a.text / "heldout.txt").read_text(encoding="utf-8")
    given = a.init or a.tokenizer
    tokenizer = tokenizers.Tokenizer.from_file(str(given / "tokenizer.json")) if given else make_tokenizer(train)
    ids, held = encode(tokenizer, train), encode(tokenizer, heldout)
    size = len(heldout.encode())
    c = {"vocabulary": tokenizer.get_vocab_size(), "dim": a.dim, "layers": a.layers, "ffn": a.ffn,
         "heads": a.dim // 32, "kv_heads": 2, "head_dim": 32}
    if a.init:
        loaded = safetensors.numpy.load_file(str(a.init / "model.safetensors"))
        weights = {name: jnp.asarray(weight, jnp.float32) for name, weight in loaded.items()}
    else:
        weights = initial(jax.random.key(a.seed), c)
    count = sum(weight.size for weight in weights.values())
    print(f"{count} parameters, {len(ids)} tokens to train on, {len(held)} held out, {size / len(held):.2f} bytes a token", flush=True)

    muon = optax.inject_hyperparams(functools.partial(optax.contrib.muon, weight_decay=0.05, ns_steps=5))(learning_rate=0.0)
    adam = optax.inject_hyperparams(functools.partial(optax.adamw, b1=0.9, b2=0.98, weight_decay=0.0))(learning_rate=0.0)
    labels = {name: "muon" if "proj" in name else "adam" for name in weights}
    optimizer = optax.multi_transform({"muon": muon, "adam": adam}, labels)
    state = optimizer.init(weights)
    dtype = jnp.bfloat16

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, state, ids, lr):
        value, gradient = jax.value_and_grad(loss)(weights, ids, c, dtype)
        state.inner_states["muon"].inner_state.hyperparams["learning_rate"] = lr
        state.inner_states["adam"].inner_state.hyperparams["learning_rate"] = lr * 0.15
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state, value

    random = np.random.default_rng(a.seed)
    a.out.mkdir(parents=True, exist_ok=True)
    log = (a.out / "loss.jsonl").open("w")
    begun, recent, saved, n = time.monotonic(), [], 0.0, 0
    while True:
        minutes = (time.monotonic() - begun) / 60
        progress = n / a.steps if a.steps else minutes / a.minutes
        if n % 50 == 0 or progress >= 1:
            measured = bits_per_byte(weights, held[: 20 * CONTEXT] if progress < 1 else held,
                                     size * min(1.0, 20 * CONTEXT / len(held)) if progress < 1 else size, c)
            line = {"step": n, "tokens": n * a.batch * CONTEXT // 2, "minutes": round(minutes, 2),
                    "train_nats_per_token": round(float(np.mean(recent)), 4) if recent else None,
                    "heldout_bits_per_byte": round(measured, 4), "part": "all" if progress >= 1 else "first 10,240 tokens"}
            log.write(json.dumps(line) + "\n")
            log.flush()
            print(line, flush=True)
            recent = []
        if progress >= 1 or minutes - saved > 5:
            save(a.out, weights, c, tokenizer)
            saved = minutes
        if progress >= 1:
            return
        # Short windows first: attention is what grows with them, and most of what there is to learn stands near by.
        window, rows = (CONTEXT // 2, a.batch) if progress < 0.75 else (CONTEXT, a.batch // 2)
        starts = random.integers(0, len(ids) - window - 1, rows)
        batch = np.stack([ids[s : s + window + 1] for s in starts])
        weights, state, value = step(weights, state, batch, rate(max(progress, n / 1e4 if n < 100 else 0), a.rate))
        recent.append(float(value))
        n += 1


if __name__ == "__main__":
    main()

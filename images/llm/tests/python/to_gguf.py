"""A folder with safetensors to a GGUF of the llama architecture: to_gguf.py MODEL OUT f32|f16|bf16|q8_0|q4_0"""

import json
import pathlib
import sys

import gguf
import numpy as np
import safetensors.numpy

model, out, kind = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
config = json.loads((model / "config.json").read_text())
tensors = safetensors.numpy.load_file(str(model / "model.safetensors"))
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
types = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16,
         "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}

writer = gguf.GGUFWriter(out, "llama")
writer.add_block_count(config["num_hidden_layers"])
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_key_length(config["head_dim"])
writer.add_value_length(config["head_dim"])
writer.add_rope_dimension_count(config["head_dim"])
writer.add_rope_freq_base(config["rope_theta"])
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_vocab_size(config["vocab_size"])

tokenizer = json.loads((model / "tokenizer.json").read_text())["model"]
tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in tokenizer["merges"]]
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list(tokens)
writer.add_token_types([gguf.TokenType.CONTROL if token.startswith("<|") else gguf.TokenType.NORMAL for token in tokens])
writer.add_token_merges(merges)
writer.add_eos_token_id(config["eos_token_id"])
writer.add_bos_token_id(config["eos_token_id"])
writer.add_add_bos_token(False)
template = json.loads((model / "tokenizer_config.json").read_text()).get("chat_template")
if template is not None:
    writer.add_chat_template(template)


def neighbours(rows, count):
    """GGUF turns neighbouring rows of a head, safetensors its two halves."""
    shape = rows.shape
    return rows.reshape(count, 2, shape[0] // count // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
for name, values in tensors.items():
    values = values.astype(np.float32)
    if name == "model.embed_tokens.weight":
        target = "token_embd.weight"
    elif name == "model.norm.weight":
        target = "output_norm.weight"
    else:
        _, _, layer, rest = name.split(".", 3)
        part = rest.removesuffix(".weight")
        target = f"blk.{layer}.{names[part]}.weight"
        if part == "self_attn.q_proj":
            values = neighbours(values, heads)
        if part == "self_attn.k_proj":
            values = neighbours(values, kv_heads)
    if values.ndim == 1:
        writer.add_tensor(target, values)
    else:
        data = gguf.quants.quantize(values, types[kind])
        writer.add_tensor(target, data, raw_dtype=types[kind])
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

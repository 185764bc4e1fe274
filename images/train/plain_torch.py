"""Trains a small Llama on text, in plain PyTorch: plain_torch.py [--steps 40] [--save-every 10] [--pause SECONDS] [--out FOLDER]

Begins from the weights in --model, or with --random from none. Saves model, optimizer, random numbers and step into MUSTER_CHECKPOINT_DIR,
begins again from MUSTER_RESUME and says in MUSTER_PROGRESS how far it is. Upon TERM it saves at the end of the step and leaves with 85.
However often that happens, the last line of stdout names the same weights.
"""

import argparse
import hashlib
import json
import os
import pathlib
import signal
import sys
import time

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="/train/model")
parser.add_argument("--random", action="store_true")
parser.add_argument("--text", type=pathlib.Path, default="/train/text")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--context", type=int, default=128)
parser.add_argument("--pause", type=float, default=0)
parser.add_argument("--out", type=pathlib.Path, default="/artifacts")
args = parser.parse_args()
folder, resume = pathlib.Path(os.environ["MUSTER_CHECKPOINT_DIR"]), os.environ.get("MUSTER_RESUME")
leave = []
signal.signal(signal.SIGTERM, lambda *_: leave.append(True))

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
tokens = torch.tensor([token for file in sorted(args.text.iterdir()) for token in tokenizer.encode(file.read_text()).ids])
if args.random:
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(args.model, dtype=torch.float32))
else:
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
step = 0
if resume:
    state = torch.load(resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    step = state["step"]
print(f"from step {step}", flush=True)


def save():
    path = folder / f"step-{step}"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state(), "step": step}
    torch.save(state, f"{path}.tmp")
    os.rename(f"{path}.tmp", path)
    return {"checkpoint": path.name}


while step < args.steps:
    begins = torch.randint(len(tokens) - args.context, (args.batch,))
    batch = torch.stack([tokens[begin:begin + args.context] for begin in begins])
    loss = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
    optimizer.step()
    step += 1
    time.sleep(args.pause)
    saved = save() if leave or step % args.save_every == 0 else {}
    if "MUSTER_PROGRESS" in os.environ:
        with open(os.environ["MUSTER_PROGRESS"], "a") as file:
            file.write(json.dumps({"step": step, "steps": args.steps, "metrics": {"loss": loss.item()}, **saved}) + "\n")
    print(f"step {step} loss {loss.item():.4f}", flush=True)
    if saved and leave:
        sys.exit(85)

args.out.mkdir(parents=True, exist_ok=True)
model.save_pretrained(args.out)
print("weights", hashlib.sha256((args.out / "model.safetensors").read_bytes()).hexdigest())

"""Trains a tiny Llama with an ordinary transformers.Trainer: huggingface.py [--steps 40] [--save-every 10] [--pause SECONDS]

All that it does to go on after a loss is to name MUSTER_CHECKPOINT_DIR and MUSTER_RESUME. Each example takes --pause seconds to get, as if
it were read from afar: four of them a step by default 1.4 s, so that a checkpoint rests before the next one. The last line of stdout names
the weights.
"""

import argparse
import hashlib
import os
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--pause", type=float, default=0.35)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)


class Numbers(torch.utils.data.Dataset):
    """Sequences that count up from somewhere, modulo 64."""

    def __init__(self):
        self.starts = torch.randint(64, (1000,), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        time.sleep(args.pause)
        tokens = (self.starts[index] + torch.arange(32)) % 64
        return {"input_ids": tokens, "labels": tokens}


trainer = Trainer(
    model=LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, attention_dropout=0.1,
    )),
    args=TrainingArguments(
        output_dir=os.environ["MUSTER_CHECKPOINT_DIR"], save_steps=args.save_every, save_total_limit=3, max_steps=args.steps,
        per_device_train_batch_size=4, learning_rate=3e-3, seed=7, logging_steps=5, use_cpu=True, dataloader_pin_memory=False,
        report_to=[], disable_tqdm=True,
    ),
    train_dataset=Numbers(),
)
trainer.train(resume_from_checkpoint=os.environ.get("MUSTER_RESUME"))
digest = hashlib.sha256()
for name, tensor in sorted(trainer.model.state_dict().items()):
    digest.update(name.encode() + tensor.numpy().tobytes())
print("weights", digest.hexdigest())

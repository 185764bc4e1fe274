"""Trains a tiny model with an ordinary lightning.pytorch.Trainer: lightning_fit.py [--epochs 4] [--pause SECONDS]

All that it does to go on after a loss is to name MUSTER_CHECKPOINT_DIR and MUSTER_RESUME. Checkpoints are made at the ends of epochs,
since Lightning keeps neither the place in an epoch's data nor the random numbers; the order of an epoch's examples comes from its number
alone. Each example takes --pause seconds to get: 40 of them an epoch, 15 s by default. The last line of stdout names the weights.
"""

import argparse
import hashlib
import os
import time

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--pause", type=float, default=0.37)
args = parser.parse_args()
torch.set_num_threads(1)
lightning.seed_everything(7)


class Numbers(Dataset):
    """Sequences that count up from somewhere, modulo 64."""

    def __init__(self):
        self.starts = torch.randint(64, (40,), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        time.sleep(args.pause)
        return (self.starts[index] + torch.arange(33)) % 64


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 64)
        self.cells = torch.nn.GRU(64, 64, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(64, 64)

    def training_step(self, batch, _):
        logits = self.head(self.cells(self.embedding(batch[:, :-1]))[0])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss']:.4f}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)]


data = Numbers()
sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=7)  # Lightning tells it the number of each epoch
saving = ModelCheckpoint(dirpath=os.environ["MUSTER_CHECKPOINT_DIR"], save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=args.epochs, callbacks=[saving], deterministic=True, logger=False,
                            enable_progress_bar=False, enable_model_summary=False)
model = Model()
trainer.fit(model, DataLoader(data, batch_size=4, sampler=sampler), ckpt_path=os.environ.get("MUSTER_RESUME"))
digest = hashlib.sha256()
for name, tensor in sorted(model.state_dict().items()):
    digest.update(name.encode() + tensor.numpy().tobytes())
print("weights", digest.hexdigest())

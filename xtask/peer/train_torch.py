"""GPT-2 in PyTorch eager: the peer of `cargo xtask bench train`. Prints one JSON object a line.

The same computation as our run: learned positions, pre-LayerNorm blocks, biases, tanh GELU, causal attention, tied
output, no dropout; gradients clipped at 1.0; AdamW (fused) without decay on biases and norms; float32 throughout.
"""

import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.norm_mlp = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, s, h = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(b, s, 3, self.heads, h // self.heads)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(o.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.words = nn.Embedding(a.vocab, a.hidden)
        self.places = nn.Embedding(a.positions, a.hidden)
        self.blocks = nn.ModuleList(Block(a.hidden, a.heads) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.hidden)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    p = argparse.ArgumentParser(description=__doc__)
    for name in ["layers", "hidden", "heads", "vocab", "positions", "seq", "batch", "steps"]:
        p.add_argument(f"--{name}", type=int, required=True)
    a = p.parse_args()
    torch.manual_seed(1234)
    model = Gpt(a)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "parameters": parameters}))
    for _ in range(a.steps):
        tokens = torch.randint(0, a.vocab, (a.batch, a.seq + 1))
        start = time.perf_counter()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ms = 1000 * (time.perf_counter() - start)
        print(json.dumps({"ms": ms, "loss": loss.item()}), flush=True)


main()

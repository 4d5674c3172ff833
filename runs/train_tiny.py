"""Make the tiny trained pair that ships in src/outpace/catalogue/tiny: a target and the draft distilled from it.

    python runs/train_tiny.py                 # about a quarter of an hour on one CPU thread

The text is the running interpreter's own standard library (PSF licence). Self-contained: torch, tokenizers and
safetensors; the models are written as ordinary Hugging Face llama directories. Deterministic for a given seed, machine
and torch, with one thread. A run that was stopped goes on from its last checkpoint (--work).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import shutil
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCAB, CONTEXT, WINDOW, THETA, EPS = 1024, 1024, 256, 10000.0, 1e-5
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Tests are half of the library and read alike; codec tables and build settings are not prose of anybody.
LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "idle_test",
    "lib2to3",
    "site-packages",
    "dist-packages",
    "pydoc_data",
    "encodings",
}


@dataclass(frozen=True)
class Shape:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


TARGET = Shape(hidden=128, inner=384, layers=5, heads=4, kv_heads=2)
DRAFT = Shape(hidden=96, inner=256, layers=1, heads=3, kv_heads=1)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (-1, self.s.head_dim)).transpose(1, 2)  # [batch, heads, time, head_dim]

        def turn(y: Tensor) -> Tensor:
            a, b = y.chunk(2, dim=-1)
            return y * cos + torch.cat((-b, a), dim=-1) * sin

        q, k, v = turn(split(self.q_proj(x))), turn(split(self.k_proj(x))), split(self.v_proj(x))
        group = self.s.heads // self.s.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.up_proj = nn.Linear(s.hidden, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(s.hidden, EPS), nn.RMSNorm(s.hidden, EPS)
        self.self_attn, self.mlp = Attention(s), MLP(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Attributes carry the names that Hugging Face gives the tensors (below its ``model.``); embeddings are tied."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embed_tokens = nn.Embedding(VOCAB, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, EPS)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = math.sqrt(2 * s.layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(weight, std=0.04 / deep)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``[batch, time, VOCAB]`` of token ids ``[batch, time]``."""
        half = torch.arange(0, self.s.head_dim, 2) / self.s.head_dim
        angle = torch.outer(torch.arange(ids.shape[1]).float(), THETA**-half).repeat(1, 2)  # [time, head_dim]
        x, cos, sin = self.embed_tokens(ids), angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def read_text() -> tuple[list[str], list[str]]:
    """Documents to learn from and documents held out (one file in 32, chosen by a hash of its name)."""
    root = Path(sysconfig.get_paths()["stdlib"])
    learn: list[str] = []
    held: list[str] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if LEFT_OUT & set(name.parts) or name.parts[0].startswith(("config-", "_sysconfigdata")):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        held_out = hashlib.sha256(name.as_posix().encode()).digest()[0] < 8
        (held if held_out else learn).append(text)
    return learn, held


def conversations(text: str) -> list[str]:
    """Every documented function as a chat: its docstring asks, its source answers."""
    lines, out = text.splitlines(), []
    try:
        nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and ast.get_docstring(n)]
    except (SyntaxError, ValueError):
        return []
    for node in nodes:
        ask = (ast.get_docstring(node) or "").split("\n\n")[0]
        source = "\n".join(line[node.col_offset :] for line in lines[node.lineno - 1 : node.end_lineno])
        if len(source) < 1500:
            out.append(f"{TURN}user\n{ask}{TURN_END}\n{TURN}assistant\n{source}{TURN_END}\n")
    return out


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE; all 256 bytes are in the alphabet, so every text has an encoding and gets itself back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = [END, TURN, TURN_END]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str]) -> Tensor:
    return torch.tensor([i for e in tokenizer.encode_batch([END + d for d in documents]) for i in e.ids])


def windows(data: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """``[rows, length]`` tokens from random places of the stream."""
    starts = torch.randint(data.numel() - length, (rows,), generator=generator)
    return torch.stack([data[s : s + length] for s in starts.tolist()])


def train(model: Llama, steps: int, rate: float, loss_of: Callable[[Llama, Tensor], Tensor], data: Tensor,
          tokens: int, seed: int, checkpoint: Path) -> None:  # fmt: skip
    """AdamW, warm-up and cosine. The last tenth of the steps sees whole contexts, so that far positions are known."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.97), weight_decay=0.05, fused=True)
    first, began = 0, time.monotonic()
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, steps):
        length = WINDOW if step < 0.9 * steps else CONTEXT
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 100, 0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2)
        # A generator of its own for each step: a resumed run sees what an unbroken one would have seen.
        batch = windows(data, tokens // length, length + 1, torch.Generator().manual_seed(seed * 1_000_003 + step))
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            print(f"  step {step + 1}/{steps} loss {loss.item():.3f} {time.monotonic() - began:.0f} s", flush=True)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, checkpoint)


def text_loss(model: Llama, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def distillation(target: Llama) -> Callable[[Llama, Tensor], Tensor]:
    """KL(target || draft) a token, on the same windows."""

    def loss(draft: Llama, batch: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(batch[:, :-1]).log_softmax(-1).flatten(0, 1)
        return F.kl_div(
            draft(batch[:, :-1]).log_softmax(-1).flatten(0, 1), wanted, reduction="batchmean", log_target=True
        )

    return loss


@torch.no_grad()
def held_out_loss(model: Llama, data: Tensor, length: int) -> float:
    """Nats a token over the held-out text in windows of ``length`` (at most 32k tokens of it)."""
    batch = data[: min(data.numel(), 32769) // length * length].view(-1, length)
    return sum(text_loss(model, rows).item() * len(rows) for rows in batch.split(8)) / len(batch)


@torch.no_grad()
def acceptance(
    target: Llama, draft: Llama, data: Tensor, seed: int, prompts: int = 16, new: int = 64
) -> dict[str, float]:
    """Acceptance along the target's own continuations of held-out code: greedy, and at temperature 1 by `ratio`
    (the mean of sum min(p, q)) and by `match` (equal Gumbel-max draws from shared noise)."""
    generator = torch.Generator().manual_seed(seed)
    start = windows(data, prompts, 64, generator)  # [prompts, 64]
    noise = -torch.empty(prompts, new, VOCAB).exponential_(generator=generator).log()
    texts = {}
    for temperature in (0, 1):
        ids = start
        for i in range(new):
            logits = target(ids)[:, -1]
            ids = torch.cat((ids, (logits + temperature * noise[:, i]).argmax(-1, keepdim=True)), dim=1)
        texts[temperature] = ids
    p, q = (m(texts[0])[:, 63:-1] for m in (target, draft))
    greedy = (p.argmax(-1) == q.argmax(-1)).float().mean().item()
    p, q = (m(texts[1])[:, 63:-1] for m in (target, draft))  # [prompts, new, VOCAB]
    ratio = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1).mean().item()
    match = ((p + noise).argmax(-1) == (q + noise).argmax(-1)).float().mean().item()
    return {"greedy": greedy, "ratio at temperature 1": ratio, "match at temperature 1": match}


def write(model: Llama, tokenizer: Tokenizer, directory: Path) -> None:
    """A Hugging Face directory."""
    directory.mkdir(parents=True, exist_ok=True)
    s = model.s
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": s.hidden,
        "intermediate_size": s.inner, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "hidden_act": "silu", "rms_norm_eps": EPS,
        "rope_theta": THETA, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16",
    }  # fmt: skip
    generation = {"bos_token_id": 0, "eos_token_id": [0, 2], "pad_token_id": 0}
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "pad_token": END,
        "add_bos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT,
        "chat_template": TEMPLATE,
    }  # fmt: skip
    for name, value in (("config", config), ("generation_config", generation), ("tokenizer_config", words)):
        (directory / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(directory / "tokenizer.json"))
    weights = {f"model.{k}": v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "src/outpace/catalogue/tiny")
    parser.add_argument("--work", type=Path, default=Path("build/train_tiny"), help="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--draft-steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)

    learn, held = read_text()
    chats = [chat for text in learn for chat in conversations(text)]
    tokenizer = make_tokenizer(learn)
    order = torch.randperm(len(learn) + len(chats)).tolist()
    data, held_data = encode(tokenizer, [(learn + chats)[i] for i in order]), encode(tokenizer, held)
    print(f"{len(learn)} files and {len(chats)} chats, {data.numel()} tokens; held out {len(held)} files, "
          f"{held_data.numel()} tokens; {sum(map(len, held)) / held_data.numel():.2f} characters a token")  # fmt: skip

    target, draft = Llama(TARGET), Llama(DRAFT)
    for name, model, steps, rate, loss_of in (
        ("target", target, args.steps, 3e-3, text_loss),
        ("draft", draft, args.draft_steps, 5e-3, distillation(target)),
    ):
        print(f"{name}: {sum(w.numel() for w in model.parameters())} parameters", flush=True)
        train(model, steps, rate, loss_of, data, CONTEXT, args.seed, args.work / f"{name}.pt")
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())  # the draft learns from, and figures are of, what is written
        write(model, tokenizer, args.out / name)
        for length in (WINDOW, CONTEXT):
            print(f"  held-out loss at {length} tokens: {held_out_loss(model, held_data, length):.3f} nats a token")
    print("acceptance:", {k: round(v, 3) for k, v in acceptance(target, draft, held_data, args.seed).items()})
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()

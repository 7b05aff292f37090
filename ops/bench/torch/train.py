"""One optimizer update of the hybrid objective in PyTorch with PEFT: the baseline of `bench train`.

Usage: train.py JOB, a JSON file. Prints one JSON line when the model and the published adapter are loaded, with the adapter's log-probs of the samples, and then one
for each line on standard input, after an update: seconds, the loss, the gradient's norm and the process's peak memory in kB.
"""

import json
import os
import resource
import sys
import time

job = json.load(open(sys.argv[1]))
os.nice(job["niceness"])

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

torch.set_num_threads(job["threads"])
half = job["dtype"] == "bfloat16"


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


libraries = peak()
base = AutoModelForCausalLM.from_pretrained(job["base"], dtype=torch.float32)
model = PeftModel.from_pretrained(base, job["adapter"], is_trainable=True)
if half:
    for p in model.parameters():
        if not p.requires_grad:
            p.data = p.data.to(torch.bfloat16)
trained = [p for p in model.parameters() if p.requires_grad]
o, adam = job["objective"], job["optimizer"]
optimizer = torch.optim.AdamW(
    trained, lr=adam["learning_rate"], betas=(adam["beta1"], adam["beta2"]), eps=adam["epsilon"], weight_decay=adam["weight_decay"]
)
samples = job["samples"]
tokens = torch.tensor([s["tokens"] for s in samples])
wanted = torch.tensor([[[t] + row for t, row in zip(s["tokens"][job["prompt"] :], s["student"])] for s in samples])
teacher = torch.tensor([s["teacher"] for s in samples])
reward = torch.tensor([s["reward"] for s in samples])
reward = torch.where(reward < 0, reward * o["negative_scale"], reward)


def logprobs(part):
    """Log-probs at the wanted tokens [samples, R, 1+k]. Only rows that are scored go through the head."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        inner = model.get_base_model()
        hidden = inner.model(input_ids=tokens[part, :-1], use_cache=False).last_hidden_state[:, job["prompt"] - 1 :]
        logits = inner.lm_head(hidden).float() / job["temperature"]
    return logits.gather(-1, wanted[part]) - logits.logsumexp(-1, keepdim=True)


def surrogate(cur, old, advantage):
    rho = (cur - old).exp()
    return -torch.min(rho * advantage, rho.clamp(1 - o["eps_low"], 1 + o["eps_high"]) * advantage)


def update():
    """One update; the same parts as in nextstate, so that memory compares."""
    total = 0.0
    optimizer.zero_grad()
    for at in range(0, len(samples), job["part"]):
        part = slice(at, at + job["part"])
        with torch.no_grad():
            old = logprobs(part)
        cur = logprobs(part)
        weight = old[..., 1:].softmax(-1)
        delta = (teacher[part] - old[..., 1:]).clamp(-o["delta_clip"], o["delta_clip"])
        evaluative = surrogate(cur[..., 0], old[..., 0], reward[part, None])
        directive = surrogate(cur[..., 1:], old[..., 1:], delta * weight).sum(-1)
        loss = (o["w_eval"] * evaluative + o["w_dir"] * directive).mean(-1).sum() / len(samples)
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(trained, adam["clip_norm"]).item()
    optimizer.step()
    return total, norm


def say(**fields):
    print(json.dumps(fields), flush=True)


with torch.no_grad():
    first = [row for at in range(len(samples)) for row in logprobs(slice(at, at + 1)).flatten().tolist()] if job["compare"] else []
say(logprobs=first, libraries_kb=libraries, version=torch.__version__)
for _ in sys.stdin:
    start = time.monotonic()
    loss, norm = update()
    say(seconds=time.monotonic() - start, loss=loss, norm=norm, peak_kb=peak())

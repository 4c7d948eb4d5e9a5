"""Published models with transformers: it reads what we export, and we start from what it saves.

python published_check.py FOLDER_OF_BINARIES    (needs torch and transformers)

Tokens are numbers (NullTokenizer), so that texts are lists of ids: both programs go on from the same ids, always with the likeliest
token, and must write the same.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

PROMPT = [3, 14, 15, 9, 2, 6, 53, 5]
NEW = 12
LLAMA = "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --ffn-hidden-size 48 "
EXPERTS = " --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24"
OURS = {
    "gpt2": "--ffn-hidden-size 128",
    "llama": LLAMA + "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
    "qwen2": LLAMA + "--add-qkv-bias --rotary-base 1000000",
    "qwen3": LLAMA + "--qk-layernorm --kv-channels 16 --group-query-attention --num-query-groups 2",
    "mixtral": LLAMA + "--untie-embeddings-and-output-weights" + EXPERTS,
    "qwen3_moe": LLAMA + "--qk-layernorm --untie-embeddings-and-output-weights" + EXPERTS,
    "qwen3_moe, every other layer dense": LLAMA + "--qk-layernorm --untie-embeddings-and-output-weights --moe-layer-freq 2" + EXPERTS,
}
TRAINED = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--tokenizer-type NullTokenizer --vocab-size 61 --mock-data --split 100,0,0 --micro-batch-size 1 --global-batch-size 4 "
    "--train-iters 6 --lr 2e-2 --eval-iters 0 --init-method-std 0.2 --device cpu"
)


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def ours(bin, folder):
    """Ids that we go on with."""
    prompt = " ".join(map(str, PROMPT))
    text = run(bin / "ferrotron", "generate", "--load", folder, "--prompt", prompt + " ", "--tokens", NEW, "--temperature", 0)
    return [int(word) for word in text.split()][len(PROMPT) :]


def theirs(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        for _ in range(NEW):
            # padded rows of the vocabulary are never drawn
            logits = model(input_ids=ids).logits[0, -1, :62]
            ids = torch.cat([ids, logits.argmax().reshape(1, 1)], 1)
    return ids[0, len(PROMPT) :].tolist()


def main():
    bin = pathlib.Path(sys.argv[1]).absolute()
    for family, words in OURS.items():
        with tempfile.TemporaryDirectory() as home:
            home = pathlib.Path(home)
            run(bin / "pretrain_gpt", *TRAINED.split(), *words.split(), "--save", home / "ckpt")
            run(bin / "ferrotron", "export", "--load", home / "ckpt", "--output", home / "hf")
            want, got = ours(bin, home / "ckpt"), theirs(home / "hf")
            assert got[: len(want)] == want and len(want) > 0, (family, got, want)

            # back: what transformers saves of a model of its own making
            config = transformers.AutoConfig.from_pretrained(home / "hf")
            torch.manual_seed(1)
            config.initializer_range = 0.2
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(home / "theirs")
            take = ["--load", home / "theirs", "--use-checkpoint-args", "--vocab-size", 61, "--seq-length", 32]
            rest = [w for w in TRAINED.split("--tokenizer-type")[1].split()]
            rest = ["--tokenizer-type", *rest, "--lr", "0", "--save", home / "back"]
            run(bin / "pretrain_gpt", *take, *rest)
            back, wrote = ours(bin, home / "back"), theirs(home / "theirs")
            assert wrote[: len(back)] == back and len(back) > 0, (family, wrote, back)
            print(f"{family}: {len(want)} and {len(back)} tokens, transformers {transformers.__version__}'s")


main()

"""Compares ids and decoded text with the Python packages on many random texts:
`pip install sentencepiece tiktoken tokenizers; cargo build --release --example encode_lines; python compare.py PATH_OF_encode_lines [texts]`."""
import json
import subprocess
import sys

import sentencepiece
import tokenizers

from make_vectors import encodings, golden
from texts import texts

binary, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
T = texts(count, 2024)
lines = "".join(json.dumps(t) + "\n" for t in T).encode()


def ours(*flags):
    p = subprocess.run([binary, *flags], input=lines, capture_output=True)
    if p.returncode:
        print(flags, p.stderr.decode()[-500:])
    return [json.loads(x) for x in p.stdout.splitlines()]


def report(name, kind, got, want):
    bad = [i for i in range(len(T)) if i >= len(got) or got[i] != want[i]]
    print(f"{name} {kind}: {len(T)} texts, {len(bad)} differ")
    for i in bad[:5]:
        print("   ", ascii(T[i]), "\n      ours ", ascii(got[i]) if i < len(got) else None, "\n      peer ", ascii(want[i]))
    return len(bad)


failed = 0
for name in ("llama", "unigram", "gemma", "suffix", "char", "word"):
    path = golden("spm", name + ".model")
    p = sentencepiece.SentencePieceProcessor(model_file=path)
    ids = p.encode(T)
    flags = ["--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", path]
    failed += report(name, "ids", ours(*flags), ids)
    failed += report(name, "text", ours(*flags, "--decode"), p.decode(ids))
for name, e in encodings():
    flags = ["--tokenizer-type", "TikTokenizer", "--tiktoken-pattern", name]
    if name in ("v1", "v2"):
        flags += ["--tokenizer-model", golden("tiktoken", "vocab.json"), "--vocab-size", "500", "--tiktoken-num-special-tokens", "20"]
        texts_ok = T
        failed += report(name, "ids", ours(*flags), [e.encode(t, allowed_special="all") for t in T])
    else:
        e = type(e)(name=name, pat_str=e._pat_str, mergeable_ranks=e._mergeable_ranks, special_tokens={})
        flags += ["--tokenizer-model", golden("tiktoken", "tiny.tiktoken")]
        failed += report(name, "ids", ours(*flags), [e.encode(t, disallowed_special=()) for t in T])
for name in ("chatml", "llama3", "fallback"):
    t = tokenizers.Tokenizer.from_file(golden(name, "tokenizer.json"))
    t.no_truncation(), t.no_padding()
    if name == "fallback":
        t.add_special_tokens([tokenizers.AddedToken("<extra>", special=True, normalized=False)])
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", golden(name)]
    failed += report(name, "ids", ours(*flags), [e.ids for e in t.encode_batch(T)])
sys.exit(failed > 0)

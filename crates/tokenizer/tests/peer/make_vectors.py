"""Makes golden/spm/vectors.json and golden/tiktoken/vectors.json with the Python packages sentencepiece 0.2.3 and tiktoken 0.14.0:
`pip install sentencepiece tiktoken; python make_vectors.py`. The models beside them were trained with sentencepiece on public licences."""
import base64
import json
import os

import sentencepiece
import tiktoken

from texts import texts

here = os.path.dirname(os.path.abspath(__file__))
golden = lambda *names: os.path.join(here, "..", "golden", *names)


def save(path, value):
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("],[", "],\n[")
    open(path, "w").write(text + "\n")


T = texts(160, 11)
out = {"texts": T}
for name in ("llama", "unigram", "gemma", "suffix", "char", "word"):
    p = sentencepiece.SentencePieceProcessor(model_file=golden("spm", name + ".model"))
    ids = [p.encode(t) for t in T]
    out[name] = {"size": p.get_piece_size(), "bos": p.bos_id(), "eos": p.eos_id(), "pad": p.pad_id(), "unk": p.unk_id(),
                 "ids": ids, "decoded": [p.decode(i) for i in ids]}
save(golden("spm", "vectors.json"), out)

V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
V2 = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def encodings():
    """Megatron's layout (special tokens first) with both patterns, and plain lines with OpenAI's patterns."""
    from tiktoken_ext import openai_public as public
    entries = json.load(open(golden("tiktoken", "vocab.json")))
    special = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"] + [f"<SPECIAL_{i}>" for i in range(7, 20)]
    shifted = {base64.b64decode(e["token_bytes"]): e["rank"] + 20 for e in entries[:480]}
    for name, pattern in (("v1", V1), ("v2", V2)):
        yield name, tiktoken.Encoding(name=name, pat_str=pattern, mergeable_ranks=shifted, special_tokens={t: i for i, t in enumerate(special)})
    ranks = dict((base64.b64decode(a), int(b)) for a, b in (l.split() for l in open(golden("tiktoken", "tiny.tiktoken"))))
    source = open(public.__file__).read()
    cl100k = source.split('def cl100k_base')[1].split('"pat_str": r"""')[1].split('"""')[0]
    o200k = source.split('def o200k_base')[1].split('pat_str = "|".join(')[1].split(")\n    return")[0]
    o200k = "|".join(eval(o200k.strip().rstrip(")").strip() if not o200k.strip().endswith("]") else o200k.strip()))
    for name, pattern in (("gpt2", public.r50k_pat_str), ("cl100k", cl100k), ("o200k", o200k)):
        yield name, tiktoken.Encoding(name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks), "<|im_end|>": len(ranks) + 1})


if __name__ == "__main__":
    out = {"texts": T}
    for name, e in encodings():
        ids = [e.encode(t, allowed_special="all") for t in T]
        out[name] = {"ids": ids, "decoded": [None if e.decode(i) == t else e.decode(i) for i, t in zip(ids, T)],
                     "long": [len(e.encode(w * 3000)) for w in ("a", "ab", "the ", "你", "\u0301", " 1")]}
    save(golden("tiktoken", "vectors.json"), out)

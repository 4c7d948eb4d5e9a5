"""Makes vectors.json from the four tokenizers in this folder: `pip install tokenizers==0.23.3; python make_vectors.py`.

The texts are those of the vectors.json that is here; add to them and run again."""
import json
import os

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

here = os.path.dirname(os.path.abspath(__file__))
path = lambda *names: os.path.join(here, *names)
old = json.load(open(path("vectors.json")))

tokenizers = {kind: Tokenizer.from_file(path(kind, "tokenizer.json")) for kind in ("fallback", "chatml", "llama3")}
tokenizers["fallback"].no_truncation()
tokenizers["fallback"].no_padding()
tokenizers["fallback"].add_special_tokens([AddedToken("<extra>", special=True, normalized=False)])
gpt2 = Tokenizer(models.BPE.from_file(path("gpt2", "vocab.json"), path("gpt2", "merges.txt")))
gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
gpt2.decoder = decoders.ByteLevel()
gpt2.add_special_tokens(["<|endoftext|>"])
tokenizers["gpt2"] = gpt2


def fnv1a(ids):
    """64-bit FNV-1a over the ids as little-endian u32."""
    h = 0xCBF29CE484222325
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = ((h ^ b) * 0x100000001B3) % 2**64
    return f"{h:016x}"


new = {"texts": old["texts"], "long": old["long"]}
for kind, t in tokenizers.items():
    ids = [t.encode(x).ids for x in new["texts"]]
    decoded = [t.decode(i, skip_special_tokens=False) for i in ids]
    plain = [t.encode(x, add_special_tokens=False).ids for x in new["texts"]]
    document = t.encode(" x y\n".join(new["texts"]) * 170).ids
    new[kind] = {
        "vocab_size": t.get_vocab_size(),
        "ids": ids,
        "decoded": [None if d == x else d for d, x in zip(decoded, new["texts"])],  # None: the text itself
        "long": [[len(i), fnv1a(i)] for i in (t.encode(c * n).ids for c, n in new["long"])],
        "document": [len(document), fnv1a(document)],
    }
    if plain != ids:
        new[kind]["plain"] = plain
text = json.dumps(new, ensure_ascii=True, separators=(",", ":")).replace("],[", "],\n[")
open(path("vectors.json"), "w").write(text)

"""Random texts for comparisons: code, many scripts, emoji, long runs, special tokens, random Unicode. Seeded."""
import random

WORDS = ["the", "The", "hello", "HELLO", "don't", "we'll", "license", "software", "x", "fn main() {", "return x+1;", "    if a:", "\tint", "0x1F", "3.14159",
         "2024-01-01", "你好", "世界", "今天天气很好", "日本語", "テスト", "안녕하세요", "Привет", "мир", "café", "cafe\u0301", "naïve", "Ünïcödé", "ﬁne", "①②", "ｆｕｌｌ",
         "👩‍👩‍👧", "🎉", "🇨🇭", "ſ", "İ", "ß", "\u200b", "\u00a0", "\u3000", "\u2028", "\ufeff", "\u0000", "\u0085", "\x1c", "<s>", "</s>", "<unk>", "<pad>", "<sep>", "<mask>",
         "<ctl>", "<0x0A>", "##", "<x>", "<c1>", "▁", "▁▁", "▁hello▁", "<start_of_turn>", "<|endoftext|>", "<|im_end|>", "<SPECIAL_9>", "☯", "⁇", "abc", "abcd", "…", "\r\n", "\n\n", "\t"]
GLUE = [" ", " ", " ", " ", "", "", "\n", "  ", "   ", ".", ", ", "!?", "\t", "'"]


def char(r):
    while True:
        c = r.choice([r.randrange(0x20, 0x7F), r.randrange(0x80, 0x800), r.randrange(0x800, 0x10000), r.randrange(0x10000, 0x110000), r.randrange(0x20, 0x3000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def texts(n, seed):
    r = random.Random(seed)
    out = ["", " ", "  ", "a", " a ", "\n", "▁", "x  y", "\u3000", "\x00"]
    while len(out) < n:
        kind = r.random()
        if kind < 0.6:
            t = "".join(r.choice(WORDS) + r.choice(GLUE) for _ in range(r.randrange(1, 12)))
        elif kind < 0.85:
            t = "".join(char(r) for _ in range(r.randrange(1, 20)))
        elif kind < 0.9:
            t = r.choice(WORDS + [char(r)]) * r.randrange(2, 60)
        else:
            t = "".join(r.choice(["a", "b", "e", "t", "h", " ", "in", "er", char(r)]) for _ in range(r.randrange(1, 60)))
        out.append(t)
    return out[:n]

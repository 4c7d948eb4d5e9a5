// Rotary position embedding (Su et al. 2021), in place: of each head's D elements the first 2 `pairs` are rotated in pairs
// (i, i + pairs), or (2i, 2i + 1) when interleaved: (a, b) -> (a cos - b sin, b cos + a sin). `sign` -1 turns back.
#include "prelude.cuh"

// x [T, heads, dim]; cos and sin [positions, pairs]; one thread a pair
KERNEL rope(In cos, In sin, In positions, Out x, u32 heads, u32 dim, u32 pairs, u32 interleaved, float sign) {
    u64 n = positions.n * heads * pairs;
    for (u64 i = first(); i < n; i += stride()) {
        u64 pair = i % pairs, head = i / pairs; // head counts over all tokens
        u64 entry = (u64)load_int(positions, head / heads) * pairs + pair;
        u64 at = head * dim + (interleaved ? 2 * pair : pair);
        u64 other = at + (interleaved ? 1 : pairs);
        float c = load(cos, entry), s = sign * load(sin, entry), a = load(x, at), b = load(x, other);
        store(x, at, a * c - b * s);
        store(x, other, b * c + a * s);
    }
}

// Between Megatron's fused qkv row, [groups, (heads/groups + 2), dim], and q [T, heads, dim], k and v [T, groups, dim].
#include "prelude.cuh"

// The place of element `i` of the fused rows in q (part 0), k (1) or v (2).
struct Place {
    u32 part;
    u64 at;
};

__device__ inline Place place(u64 i, u32 heads, u32 groups, u32 dim) {
    u32 share = heads / groups;
    u64 d = i % dim, slot = i / dim % (share + 2), group = i / dim / (share + 2) % groups;
    u64 token = i / dim / (share + 2) / groups;
    if (slot < share) return {0, (token * heads + group * share + slot) * dim + d};
    return {(u32)(slot - share + 1), (token * groups + group) * dim + d};
}

KERNEL qkv_split(In qkv, Out q, Out k, Out v, u32 heads, u32 groups, u32 dim) {
    for (u64 i = first(); i < qkv.n; i += stride()) {
        Place p = place(i, heads, groups, dim);
        float x = load(qkv, i);
        if (p.part == 0) store(q, p.at, x);
        else if (p.part == 1) store(k, p.at, x);
        else store(v, p.at, x);
    }
}

KERNEL qkv_merge(In q, In k, In v, Out qkv, u32 heads, u32 groups, u32 dim) {
    for (u64 i = first(); i < qkv.n; i += stride()) {
        Place p = place(i, heads, groups, dim);
        store(qkv, i, p.part == 0 ? load(q, p.at) : p.part == 1 ? load(k, p.at) : load(v, p.at));
    }
}

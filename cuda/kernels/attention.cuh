// What the attention kernels share: which rows and keys a block has, what a query sees, dropout, tiles in shared memory.
//
// For sequence s, query rows cu_q[s] .. cu_q[s+1] see key rows cu_k[s] .. cu_k[s+1]. With lq queries and lk keys, query r
// stands at position p = r + lk - lq of the keys. Causal: keys j <= p; window w: also j > p - w. Query head n reads KV
// group n / (heads / groups).
#pragma once
#include "prelude.cuh"

// Queries and keys of a tile; thread (r, c) = (threadIdx.x / TILE, threadIdx.x % TILE).
#define TILE 16

// The layout of `Attention` in ../src/ops/attention.rs.
struct Attention {
    u64 key;        // of the dropout
    u32 heads;
    u32 groups;
    u32 dim;
    u32 causal;
    u32 window;     // 0: none
    u32 blocks;     // tiles of the longest sequence
    u32 first_head; // of this rank among all, for dropout
    u32 threshold;  // of the dropout; 0: none
    float keep;     // factor of what is not dropped
    float scale;
};

// A block's sequence: first query row, queries, first key row, keys. Grid x is (sequence, tile), y the head or group.
struct Sequence {
    int q;
    int lq;
    int k;
    int lk;
};

__device__ inline Sequence sequence(const In& cu_q, const In& cu_k, const Attention& a) {
    u64 s = blockIdx.x / a.blocks;
    int q = load_int(cu_q, s), k = load_int(cu_k, s);
    return {q, load_int(cu_q, s + 1) - q, k, load_int(cu_k, s + 1) - k};
}

// The block's first row within its sequence.
__device__ inline int tile_start(const Attention& a) { return (int)(blockIdx.x % a.blocks) * TILE; }

__device__ inline bool sees(const Attention& a, const Sequence& s, int query, int key) {
    int p = query + s.lk - s.lq;
    return query < s.lq && key < s.lk && (!a.causal || key <= p) && (a.window == 0 || key > p - (int)a.window);
}

// The keys that any of queries `r .. r + TILE` may see lie in first .. last, first a multiple of TILE.
struct Range {
    int first;
    int last;
};

__device__ inline Range keys_of(const Attention& a, const Sequence& s, int r) {
    int low = a.window == 0 ? 0 : r + s.lk - s.lq - (int)a.window + 1;
    int high = a.causal ? min(r + TILE, s.lq) + s.lk - s.lq : s.lk;
    return {max(low, 0) / TILE * TILE, min(high, s.lk)};
}

// The queries that may see any of keys `k .. k + TILE`, likewise.
__device__ inline Range queries_of(const Attention& a, const Sequence& s, int k) {
    int low = a.causal ? k - (s.lk - s.lq) : 0;
    int high = a.window == 0 ? s.lq : min(k + TILE, s.lk) - 1 + (int)a.window - (s.lk - s.lq);
    return {max(low, 0) / TILE * TILE, min(high, s.lq)};
}

// What the probability of (query row t, key row j) is multiplied with.
__device__ inline float kept(const Attention& a, const In& sample, const In& offset_q, const In& offset_k, u32 head, int t,
                             int j) {
    if (a.threshold == 0) return 1.0f;
    u32 bits = philox(a.key, (u32)load_int(sample, t), (u32)load_int(offset_q, t), (u32)load_int(offset_k, j),
                      a.first_head + head + 1);
    return bits < a.threshold ? 0.0f : a.keep;
}

// Rows of a tile lie this far apart: threads that read one column of many rows meet no bank twice.
__device__ inline u32 pitch(u32 dim) { return dim + 1; }

// Rows `row .. row + TILE` of head `head` of x [rows, heads, dim]; zeros beyond `end`.
__device__ inline void load_tile(Tile tile, const In& x, u32 heads, u32 dim, u32 head, int row, int end) {
    for (u32 i = threadIdx.x; i < TILE * dim; i += blockDim.x) {
        int t = row + (int)(i / dim);
        tile[i / dim * pitch(dim) + i % dim] = t < end ? load(x, ((u64)t * heads + head) * dim + i % dim) : 0.0f;
    }
}


__device__ inline float tile_dot(Tile a, u32 row_a, Tile b, u32 row_b, u32 dim) {
    float sum = 0;
    for (u32 d = 0; d < dim; ++d) sum += a[row_a * pitch(dim) + d] * b[row_b * pitch(dim) + d];
    return sum;
}

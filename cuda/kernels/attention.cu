// Attention forward (Dao et al. 2022) with the online softmax (Milakov & Gimelshein 2018): o = softmax(scale q k^T) v and
// lse = ln sum_j exp(scale q k_j), both overwritten. Queries that see no key get o = 0 and lse = -inf. One block takes
// TILE queries of a head over all their keys, TILE at a time; no buffer grows with the square of the length.
#include "attention.cuh"

// q, o [Tq, heads, dim]; k, v [Tk, groups, dim]; cu_q, cu_k [sequences + 1]; lse [heads, Tq]; sample, offset_q [Tq] and
// offset_k [Tk] for dropout. Grid (sequences * blocks, heads). Shared: 3 tiles and 3 squares.
KERNEL attention(In q, In k, In v, In cu_q, In cu_k, In sample, In offset_q, In offset_k, Out o, Out lse, Attention a) {
    DYNAMIC_SHARED(memory);
    u32 size = TILE * pitch(a.dim), head = blockIdx.y, group = head / (a.heads / a.groups);
    Tile tq = memory, tkv = tq + size, sum = tkv + size;
    Tile score = sum + size, weight = score + TILE * pitch(TILE), dropped = weight + TILE * pitch(TILE);
    Sequence s = sequence(cu_q, cu_k, a);
    int start = tile_start(a);
    if (start >= s.lq) return;
    u32 r = threadIdx.x / TILE, c = threadIdx.x % TILE;
    int query = start + (int)r;
    load_tile(tq, q, a.heads, a.dim, head, s.q + start, s.q + s.lq);
    for (u32 d = c; d < a.dim; d += TILE) sum[r * pitch(a.dim) + d] = 0.0f;
    float largest = -infinity(), total = 0; // of the row: the same in all its threads
    Range keys = keys_of(a, s, start);
    for (int first_key = keys.first; first_key < keys.last; first_key += TILE) {
        int key = first_key + (int)c;
        load_tile(tkv, k, a.groups, a.dim, group, s.k + first_key, s.k + s.lk);
        __syncthreads(); // q and k are there
        bool seen = sees(a, s, query, key);
        score[r * pitch(TILE) + c] = seen ? a.scale * tile_dot(tq, r, tkv, c, a.dim) : -infinity();
        __syncthreads(); // scores are there, k is done with
        load_tile(tkv, v, a.groups, a.dim, group, s.k + first_key, s.k + s.lk);
        float before = largest;
        for (u32 j = 0; j < TILE; ++j) largest = fmaxf(largest, score[r * pitch(TILE) + j]);
        float p = seen ? expf(score[r * pitch(TILE) + c] - largest) : 0.0f;
        weight[r * pitch(TILE) + c] = p;
        dropped[r * pitch(TILE) + c] =
            seen ? p * kept(a, sample, offset_q, offset_k, head, s.q + query, s.k + key) : 0.0f;
        __syncthreads(); // v and the weights are there
        // the first keys seen scale what was before by 0: there was nothing
        float shrink = largest == before ? 1.0f : expf(before - largest);
        total *= shrink;
        for (u32 j = 0; j < TILE; ++j) total += weight[r * pitch(TILE) + j];
        for (u32 d = c; d < a.dim; d += TILE) {
            float x = sum[r * pitch(a.dim) + d] * shrink;
            for (u32 j = 0; j < TILE; ++j) x += dropped[r * pitch(TILE) + j] * tkv[j * pitch(a.dim) + d];
            sum[r * pitch(a.dim) + d] = x;
        }
        __syncthreads(); // v is done with
    }
    if (query >= s.lq) return;
    u64 t = (u64)(s.q + query);
    for (u32 d = c; d < a.dim; d += TILE) {
        float x = total > 0.0f ? sum[r * pitch(a.dim) + d] / total : 0.0f;
        store(o, (t * a.heads + head) * a.dim + d, x);
    }
    if (c == 0) store(lse, head * (lse.n / a.heads) + t, total > 0.0f ? largest + logf(total) : -infinity());
}

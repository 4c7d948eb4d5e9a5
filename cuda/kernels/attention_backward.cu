// Attention backward (Dao et al. 2022): P = exp(scale q k^T - lse) is computed again, and with delta = rowsum(do o)
//   dv = (keep P)^T do,  dS = P (keep (do v^T) - delta),  dq = scale dS k,  dk = scale dS^T q     (all overwritten)
// Two kernels, one over tiles of queries and one over tiles of keys, so that each output is summed by one block in one
// order; a KV group's gradients are summed over its heads in order.
#include "attention.cuh"

// delta [heads, Tq]; o, dout [Tq, heads, dim]. One warp a row.
KERNEL attention_delta(In o, In dout, Out delta, u32 heads, u32 dim) {
    u64 rows = delta.n, tokens = rows / heads, warps = stride() / WARP;
    u32 lane = threadIdx.x % WARP;
    for (u64 i = first() / WARP; i < rows; i += warps) { // row i of [Tq, heads]
        float sum = 0;
        for (u32 d = lane; d < dim; d += WARP) sum += load(o, i * dim + d) * load(dout, i * dim + d);
        sum = warp_sum(sum);
        if (lane == 0) store(delta, i % heads * tokens + i / heads, sum);
    }
}

// dq. Grid (sequences * blocks, heads). Shared: 5 tiles and 1 square.
KERNEL attention_backward_q(In q, In k, In v, In cu_q, In cu_k, In sample, In offset_q, In offset_k, In lse, In dout,
                            In delta, Out dq, Attention a) {
    DYNAMIC_SHARED(memory);
    u32 size = TILE * pitch(a.dim), head = blockIdx.y, group = head / (a.heads / a.groups);
    Tile tq = memory, tdo = tq + size, tk = tdo + size, tv = tk + size, sum = tv + size, ds = sum + size;
    Sequence s = sequence(cu_q, cu_k, a);
    int start = tile_start(a);
    if (start >= s.lq) return;
    u32 r = threadIdx.x / TILE, c = threadIdx.x % TILE;
    int query = start + (int)r;
    u64 t = (u64)(s.q + query), row = head * (lse.n / a.heads) + t;
    load_tile(tq, q, a.heads, a.dim, head, s.q + start, s.q + s.lq);
    load_tile(tdo, dout, a.heads, a.dim, head, s.q + start, s.q + s.lq);
    for (u32 d = c; d < a.dim; d += TILE) sum[r * pitch(a.dim) + d] = 0.0f;
    float row_lse = query < s.lq ? load(lse, row) : 0.0f, row_delta = query < s.lq ? load(delta, row) : 0.0f;
    Range keys = keys_of(a, s, start);
    for (int first_key = keys.first; first_key < keys.last; first_key += TILE) {
        int key = first_key + (int)c;
        load_tile(tk, k, a.groups, a.dim, group, s.k + first_key, s.k + s.lk);
        load_tile(tv, v, a.groups, a.dim, group, s.k + first_key, s.k + s.lk);
        __syncthreads(); // all four are there
        float x = 0;
        if (sees(a, s, query, key)) {
            float p = expf(a.scale * tile_dot(tq, r, tk, c, a.dim) - row_lse);
            float keep = kept(a, sample, offset_q, offset_k, head, s.q + query, s.k + key);
            x = p * (keep * tile_dot(tdo, r, tv, c, a.dim) - row_delta);
        }
        ds[r * pitch(TILE) + c] = x;
        __syncthreads(); // dS is there
        for (u32 d = c; d < a.dim; d += TILE) {
            float y = sum[r * pitch(a.dim) + d];
            for (u32 j = 0; j < TILE; ++j) y += ds[r * pitch(TILE) + j] * tk[j * pitch(a.dim) + d];
            sum[r * pitch(a.dim) + d] = y;
        }
        __syncthreads(); // k, v and dS are done with
    }
    if (query >= s.lq) return;
    for (u32 d = c; d < a.dim; d += TILE) store(dq, (t * a.heads + head) * a.dim + d, a.scale * sum[r * pitch(a.dim) + d]);
}

// dk and dv. Grid (sequences * blocks, groups). Shared: 6 tiles and 2 squares.
KERNEL attention_backward_kv(In q, In k, In v, In cu_q, In cu_k, In sample, In offset_q, In offset_k, In lse, In dout,
                             In delta, Out dk, Out dv, Attention a) {
    DYNAMIC_SHARED(memory);
    u32 size = TILE * pitch(a.dim), group = blockIdx.y, share = a.heads / a.groups;
    Tile tk = memory, tv = tk + size, tq = tv + size, tdo = tq + size, sum_k = tdo + size, sum_v = sum_k + size;
    Tile ds = sum_v + size, weight = ds + TILE * pitch(TILE);
    Sequence s = sequence(cu_q, cu_k, a);
    int start = tile_start(a);
    if (start >= s.lk) return;
    u32 r = threadIdx.x / TILE, c = threadIdx.x % TILE; // query and key; in the sums key and column
    load_tile(tk, k, a.groups, a.dim, group, s.k + start, s.k + s.lk);
    load_tile(tv, v, a.groups, a.dim, group, s.k + start, s.k + s.lk);
    for (u32 d = c; d < a.dim; d += TILE) {
        sum_k[r * pitch(a.dim) + d] = 0.0f;
        sum_v[r * pitch(a.dim) + d] = 0.0f;
    }
    Range queries = queries_of(a, s, start);
    for (u32 head = group * share; head < (group + 1) * share; ++head) {
        for (int first_query = queries.first; first_query < queries.last; first_query += TILE) {
            int query = first_query + (int)r, key = start + (int)c;
            load_tile(tq, q, a.heads, a.dim, head, s.q + first_query, s.q + s.lq);
            load_tile(tdo, dout, a.heads, a.dim, head, s.q + first_query, s.q + s.lq);
            __syncthreads(); // all four are there
            float x = 0, w = 0;
            if (sees(a, s, query, key)) {
                u64 row = head * (lse.n / a.heads) + (u64)(s.q + query);
                float p = expf(a.scale * tile_dot(tq, r, tk, c, a.dim) - load(lse, row));
                float keep = kept(a, sample, offset_q, offset_k, head, s.q + query, s.k + key);
                x = p * (keep * tile_dot(tdo, r, tv, c, a.dim) - load(delta, row));
                w = p * keep;
            }
            ds[r * pitch(TILE) + c] = x;
            weight[r * pitch(TILE) + c] = w;
            __syncthreads(); // dS and the weights are there
            for (u32 d = c; d < a.dim; d += TILE) {
                float yk = sum_k[r * pitch(a.dim) + d], yv = sum_v[r * pitch(a.dim) + d];
                for (u32 j = 0; j < TILE; ++j) {
                    yk += ds[j * pitch(TILE) + r] * tq[j * pitch(a.dim) + d];
                    yv += weight[j * pitch(TILE) + r] * tdo[j * pitch(a.dim) + d];
                }
                sum_k[r * pitch(a.dim) + d] = yk;
                sum_v[r * pitch(a.dim) + d] = yv;
            }
            __syncthreads(); // q, do, dS and the weights are done with
        }
    }
    int key = start + (int)r;
    if (key >= s.lk) return;
    for (u32 d = c; d < a.dim; d += TILE) {
        u64 at = ((u64)(s.k + key) * a.groups + group) * a.dim + d;
        store(dk, at, a.scale * sum_k[r * pitch(a.dim) + d]);
        store(dv, at, sum_v[r * pitch(a.dim) + d]);
    }
}

// Row lookup over the rows `low .. low + rows` of a vocabulary that are held here.
#include "prelude.cuh"

// y[t] = w[ids[t] - low], 0 when that row is elsewhere; += when accumulating
KERNEL embedding(In ids, In w, Out y, i64 low, u64 cols, u32 accumulate) {
    i64 rows = (i64)(w.n / cols);
    for (u64 i = first(); i < y.n; i += stride()) {
        i64 row = (i64)load_int(ids, i / cols) - low;
        bool here = row >= 0 && row < rows;
        float v = here ? load(w, (u64)row * cols + i % cols) : 0.0f;
        if (!accumulate) store(y, i, v);
        else if (here) store(y, i, load(y, i) + v);
    }
}

// dw[ids[t] - low] += dy[t]. One block a token: the block of an id's first appearance adds up all of them in the order of
// t, the others have nothing to do. No atomics, so the order of the sum is always the same.
KERNEL embedding_backward(In ids, In dy, Out dw, i64 low, u64 cols) {
    u64 own = blockIdx.x;
    int id = load_int(ids, own);
    i64 row = (i64)id - low;
    if (row < 0 || row >= (i64)(dw.n / cols)) return;
    int seen = 0;
    for (u64 t = threadIdx.x; t < own; t += blockDim.x) seen |= load_int(ids, t) == id;
    if (__syncthreads_or(seen)) return;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        float sum = 0;
        for (u64 t = own; t < ids.n; ++t) {
            if (load_int(ids, t) == id) sum += load(dy, t * cols + c);
        }
        u64 at = (u64)row * cols + c;
        store(dw, at, load(dw, at) + sum);
    }
}

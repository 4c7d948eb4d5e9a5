// Kernels with one mistake each, and two without.
#include "prelude.cuh"

// y[i] = x[n - 1 - i], through shared memory
KERNEL reversed(In x, Out y) {
    SHARED(float, all, THREADS);
    all[threadIdx.x] = load(x, threadIdx.x);
    __syncthreads();
    store(y, threadIdx.x, all[blockDim.x - 1 - threadIdx.x]);
}

// Sums of warps and of the block, and whether any thread has a negative number
KERNEL sums(In x, Out warps, Out out) {
    float v = load(x, threadIdx.x), sum = warp_sum(v), all = block_sum(v), largest = block_max(v);
    int negative = __syncthreads_or(v < 0.0f);
    if (threadIdx.x % WARP == 0) store(warps, threadIdx.x / WARP, sum);
    if (threadIdx.x == 0) {
        store(out, 0, all);
        store(out, 1, largest);
        store(out, 2, negative ? 1.0f : 0.0f);
    }
}

KERNEL reads_unwritten(Out y) {
    SHARED(float, all, THREADS);
    if (threadIdx.x > 0) all[threadIdx.x] = 1.0f;
    __syncthreads();
    store(y, threadIdx.x, all[threadIdx.x]);
}

KERNEL writes_what_is_read(In x, Out y) {
    SHARED(float, all, THREADS);
    all[threadIdx.x] = load(x, threadIdx.x);
    __syncthreads();
    float v = all[blockDim.x - 1 - threadIdx.x];
    all[threadIdx.x] = v;
    store(y, threadIdx.x, v);
}

KERNEL some_miss_the_barrier(Out y) {
    if (threadIdx.x < 40) return;
    __syncthreads();
    store(y, threadIdx.x, 1.0f);
}

KERNEL two_barriers(Out y) {
    if (threadIdx.x < 40) __syncthreads();
    else __syncthreads();
    store(y, threadIdx.x, 1.0f);
}

KERNEL some_miss_the_shuffle(Out y) {
    float v = 1.0f;
    if (threadIdx.x != 5) v = warp_sum(v);
    store(y, threadIdx.x, v);
}

KERNEL reads_beyond(In x, Out y) { store(y, threadIdx.x, load(x, threadIdx.x + 1)); }

KERNEL writes_beyond(Out y) { store(y, threadIdx.x + 1, 1.0f); }

KERNEL beyond_shared(Out y) {
    SHARED(float, all, THREADS);
    all[threadIdx.x + 1] = 1.0f;
    store(y, threadIdx.x, 1.0f);
}

KERNEL beyond_dynamic(Out y) {
    DYNAMIC_SHARED(all);
    all[threadIdx.x] = 1.0f;
    store(y, threadIdx.x, 1.0f);
}

KERNEL writes_twice(Out y) { store(y, threadIdx.x / 2, 1.0f); }

// y is x shifted, in place
KERNEL reads_what_another_wrote(In x, Out y) {
    if (threadIdx.x > 0) store(y, threadIdx.x, load(x, threadIdx.x - 1));
}

// The same numbers in another storage
KERNEL store_as(In x, Out y) {
    for (u64 i = first(); i < y.n; i += stride()) store(y, i, load(x, i));
}

KERNEL random(Out y, u64 key, u32 c0, u32 c1, u32 c2, u32 c3) { ((u32*)y.at)[0] = philox(key, c0, c1, c2, c3); }

// Mixture of experts: of E experts each of T tokens chooses K; slot t K + j is token t's j-th choice, R = T K. All
// outputs are overwritten. Routing takes a warp for each token, the weights' gradient one for each slot: neither needs
// shared memory.
#include "prelude.cuh"

// The warp's number in the launch, and the thread's in the warp.
__device__ inline u64 warp_number() { return first() / WARP; }
__device__ inline u32 lane() { return threadIdx.x % WARP; }

// An expert's rank in the choice: larger logits first, of equals (the zeros are) the lower expert; NaN is above all.
// Never 0 nor the largest number.
__device__ inline u64 rank_of(float z, u32 expert) {
    u32 bits = __float_as_uint(z + 0.0f);
    u32 order = z != z ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)order << 32 | (u32)~(expert + 1);
}

__device__ inline u32 expert_of(u64 rank) { return ~(u32)rank - 1; }

struct Larger {
    __device__ u64 operator()(u64 a, u64 b) const { return a > b ? a : b; }
};

// p = exp(z - max) / sum, lse = max + ln sum; the K experts of the largest z, each the best of those that rank below
// the one before it; w = p there, or the softmax over the chosen alone. Lane j mod 32 keeps choice j.
KERNEL route(In z, Out scores, Out lse, Out experts, Out weights, u32 after_choice) {
    u64 t = warp_number();
    if (t >= lse.n) return;
    u64 cols = z.n / lse.n, chosen = experts.n / lse.n, row = t * cols;
    float largest = -infinity();
    for (u64 e = lane(); e < cols; e += WARP) largest = fmaxf(largest, load(z, row + e));
    largest = warp_reduce(largest, Max());
    float sum = 0;
    for (u64 e = lane(); e < cols; e += WARP) sum += expf(load(z, row + e) - largest);
    sum = warp_sum(sum);
    for (u64 e = lane(); e < cols; e += WARP) store(scores, row + e, expf(load(z, row + e) - largest) / sum);
    if (lane() == 0) store(lse, t, largest + logf(sum));

    u64 last = ~0ull;
    float top = 0;
    double of_chosen = 0; // its terms fall: a float would round them one way
    for (u64 j = 0; j < chosen; ++j) {
        u64 best = 0;
        for (u64 e = lane(); e < cols; e += WARP) {
            u64 rank = rank_of(load(z, row + e), (u32)e);
            if (rank < last && rank > best) best = rank;
        }
        last = warp_reduce(best, Larger());
        u32 expert = expert_of(last);
        float v = load(z, row + expert);
        if (j == 0) top = v;
        float w = after_choice ? expf(v - top) : expf(v - largest) / sum;
        of_chosen += w;
        if (lane() == j % WARP) {
            store_int(experts, t * chosen + j, (int)expert);
            store(weights, t * chosen + j, w);
        }
    }
    if (!after_choice) return;
    for (u64 i = t * chosen + lane(); i < (t + 1) * chosen; i += WARP) {
        store(weights, i, (float)(load(weights, i) / of_chosen));
    }
}

// dz = p (balance (slope - sum_e p slope) + z_slope lse) and the gradient of the weights, through the softmax over all
// experts or over the chosen; `balance` and `z_slope` times scale[0]. The lane of an expert's column adds its choice.
KERNEL route_backward(In scores, In lse, In experts, In weights, In d_weights, In slope, In scale, Out dz,
                      u32 after_choice, float balance, float z_slope) {
    u64 t = warp_number();
    if (t >= lse.n) return;
    u64 cols = slope.n, row = t * cols, chosen = experts.n / lse.n, slot = t * chosen;
    float mean = 0, of_weights = 0;
    for (u64 e = lane(); e < cols; e += WARP) mean += load(scores, row + e) * load(slope, e);
    mean = warp_sum(mean);
    for (u64 j = lane(); j < chosen; j += WARP) of_weights += load(weights, slot + j) * load(d_weights, slot + j);
    of_weights = warp_sum(of_weights);
    float factor = load(scale, 0), of_balance = balance * factor;
    float same = z_slope * factor * load(lse, t) - (after_choice ? 0.0f : of_weights);
    for (u64 e = lane(); e < cols; e += WARP) {
        store(dz, row + e, load(scores, row + e) * (of_balance * (load(slope, e) - mean) + same));
    }
    float centre = after_choice ? of_weights : 0.0f;
    for (u64 j = 0; j < chosen; ++j) {
        u64 e = (u64)load_int(experts, slot + j);
        if (e % WARP != lane()) continue;
        float w = load(weights, slot + j);
        store(dz, row + e, load(dz, row + e) + w * (load(d_weights, slot + j) - centre));
    }
}

// counts[e], and where each slot stands in the order of (expert, slot): place[slots[r]] = r. One block an expert, each
// thread a run of slots: it counts those of lower experts, which stand before all of this one, and its own, which stand
// behind those of the threads below it.
KERNEL sort_by_expert(In experts, Out counts, Out slots, Out place) {
    SHARED(u32, found, THREADS);
    int expert = (int)blockIdx.x;
    u64 run = (experts.n + THREADS - 1) / THREADS, begin = threadIdx.x * run, end = begin + run;
    if (end > experts.n) end = experts.n;
    u32 lower = 0, own = 0;
    for (u64 i = begin; i < end; ++i) {
        int e = load_int(experts, i);
        lower += e < expert;
        own += e == expert;
    }
    u32 start = block_sum(lower), at = start;
    found[threadIdx.x] = own;
    __syncthreads();
    for (u32 k = 0; k < threadIdx.x; ++k) at += found[k];
    if (threadIdx.x == THREADS - 1) store(counts, blockIdx.x, (float)(at + own - start)); // below 2^24
    for (u64 i = begin; i < end; ++i) {
        if (load_int(experts, i) != expert) continue;
        store_int(slots, at, (int)i);
        store_int(place, i, (int)at);
        ++at;
    }
}

// slope[e] = counts[e] factor; the loss is `sum_parts` of scores with these weights
KERNEL load_balance(In counts, Out slope, double factor) {
    for (u64 e = first(); e < slope.n; e += stride()) store(slope, e, (float)(load(counts, e) * factor));
}

// y[r] = x[index[r] / per]
KERNEL gather_rows(In x, In index, Out y, u64 per, u64 cols) {
    for (u64 i = first(); i < y.n; i += stride()) {
        u64 row = (u64)load_int(index, i / cols) / per;
        store(y, i, load(x, row * cols + i % cols));
    }
}

// y[t] = sum_j w[t, j] rows[place[t, j]], in the order of j; w is 1 without weights
KERNEL combine(In rows, In place, In weights, Out y, u64 chosen, u64 cols) {
    for (u64 i = first(); i < y.n; i += stride()) {
        u64 slot = i / cols * chosen;
        float sum = 0;
        for (u64 j = slot; j < slot + chosen; ++j) {
            float w = weights.n ? load(weights, j) : 1.0f;
            sum += w * load(rows, (u64)load_int(place, j) * cols + i % cols);
        }
        store(y, i, sum);
    }
}

// d_rows[r] = w[slots[r]] dy[token of slots[r]]
KERNEL combine_backward(In dy, In slots, In weights, Out d_rows, u64 chosen, u64 cols) {
    for (u64 i = first(); i < d_rows.n; i += stride()) {
        u64 slot = (u64)load_int(slots, i / cols);
        store(d_rows, i, load(weights, slot) * load(dy, slot / chosen * cols + i % cols));
    }
}

// dw[t, j] = dy[t] . rows[place[t, j]]
KERNEL combine_backward_weights(In dy, In rows, In place, Out d_weights, u64 chosen, u64 cols) {
    u64 slot = warp_number();
    if (slot >= d_weights.n) return;
    u64 token = slot / chosen * cols, row = (u64)load_int(place, slot) * cols;
    float sum = 0;
    for (u64 c = lane(); c < cols; c += WARP) sum += load(dy, token + c) * load(rows, row + c);
    sum = warp_sum(sum);
    if (lane() == 0) store(d_weights, slot, sum);
}

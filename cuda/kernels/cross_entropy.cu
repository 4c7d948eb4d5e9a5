// Cross-entropy over a vocabulary in pieces (Milakov & Gimelshein 2018 for the running form). z [R, V] holds the logits of
// the vocabulary rows `low .. low + V`. All outputs are overwritten, but for ce_rescale's sum.
#include "prelude.cuh"

// Of each row, one block: max_v z, sum_v exp(z - max), and z[label], 0 when the label is elsewhere
KERNEL ce_stats(In z, In labels, Out max, Out sum, Out target, i64 low) {
    u64 cols = z.n / labels.n, row = blockIdx.x * cols;
    float largest = -infinity();
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) largest = fmaxf(largest, load(z, row + c));
    largest = block_max(largest);
    float total = 0;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) total += expf(load(z, row + c) - largest);
    total = block_sum(total);
    if (threadIdx.x == 0) {
        i64 c = (i64)load_int(labels, blockIdx.x) - low;
        store(max, blockIdx.x, largest);
        store(sum, blockIdx.x, total);
        store(target, blockIdx.x, c >= 0 && c < (i64)cols ? load(z, row + (u64)c) : 0.0f);
    }
}

// sum *= exp(old_max - new_max)
KERNEL ce_rescale(In old_max, In new_max, Out sum) {
    for (u64 i = first(); i < sum.n; i += stride()) store(sum, i, load(sum, i) * expf(load(old_max, i) - load(new_max, i)));
}

// lse = max + ln sum, loss = lse - target
KERNEL ce_loss(In max, In sum, In target, Out lse, Out loss) {
    for (u64 i = first(); i < lse.n; i += stride()) {
        float l = load(max, i) + logf(load(sum, i));
        store(lse, i, l);
        store(loss, i, l - load(target, i));
    }
}

// dz = (exp(z - lse) - [v = label]) weight[t] scale[0]; dz may be z
KERNEL ce_backward(In z, In labels, In lse, In weight, In scale, Out dz, i64 low) {
    u64 cols = z.n / labels.n;
    for (u64 i = first(); i < dz.n; i += stride()) {
        u64 t = i / cols;
        float p = expf(load(z, i) - load(lse, t));
        bool hit = (i64)(i % cols) == (i64)load_int(labels, t) - low;
        store(dz, i, (p - (hit ? 1.0f : 0.0f)) * load(weight, t) * load(scale, 0));
    }
}

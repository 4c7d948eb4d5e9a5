// y = dropout(x) + residual. The mask is a function of (key; sample, offset in it, global column), never of the layout;
// what is dropped becomes 0 whatever it was. No residual has 0 elements. y may be x or the residual.
#include "prelude.cuh"

KERNEL dropout(In sample, In offset, In x, In residual, Out y, u64 key, u32 threshold, float keep, u32 low) {
    u64 cols = y.n / sample.n;
    for (u64 i = first(); i < y.n; i += stride()) {
        u64 t = i / cols;
        u32 bits = philox(key, (u32)load_int(sample, t), (u32)load_int(offset, t), low + (u32)(i % cols), 0);
        float v = bits < threshold ? 0.0f : load(x, i) * keep;
        store(y, i, residual.n == 0 ? v : v + load(residual, i));
    }
}

// Sums. Those to one number are taken in double in two steps, of parts of the range and of their sums, in an order given
// by the length; out[0] accumulates.
#include "prelude.cuh"

enum : u32 { SQUARES = 0, ZEROS = 1, WEIGHTED = 2 };

// part[b] = sum over block b's elements of x^2, [x = 0] or x w; a shorter w begins again
KERNEL sum_parts(In x, In w, Out part, u32 what) {
    double sum = 0;
    for (u64 i = first(); i < x.n; i += stride()) {
        double v = load(x, i);
        sum += what == SQUARES ? v * v : what == ZEROS ? (v == 0) : v * load(w, i % w.n);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) store_double(part, blockIdx.x, sum);
}

// out[0] += sum of the parts. One block.
KERNEL sum_finish(In part, Out out) {
    double sum = 0;
    for (u64 i = threadIdx.x; i < part.n; i += blockDim.x) sum += load_double(part, i);
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(out, 0, (float)(load(out, 0) + sum));
}

// out[c] += sum_t x[t, c]
KERNEL column_sum(In x, Out out, u64 rows) {
    u64 cols = out.n, c = column();
    float sum = 0;
    for (u64 t = row_lane(); t < rows && c < cols; t += ROW_LANES) sum += load(x, t * cols + c);
    sum = rows_sum(sum);
    if (has_column(cols)) store(out, c, load(out, c) + sum);
}

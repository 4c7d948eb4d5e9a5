// RMSNorm and LayerNorm over the last dim: one block a row, two passes over it; weight gradients by columns.
//   RMSNorm (Zhang & Sennrich 2019): y = x r w, r = 1/sqrt(mean(x^2) + eps)
//     dx = r (g - x r^2 mean(g x)), g = dy w (overwritten, may be dy);  dw += sum_t dy x r
//   LayerNorm (Ba et al. 2016): y = (x - mu) r w + b; the variance is of differences from the mean, so nothing cancels
//     dx = r (g - mean(g) - xh mean(g xh)), xh = (x - mu) r;  dw += sum_t dy xh, db += sum_t dy
// Statistics are those that forward stores: rstd[t], or mean[t] then rstd[rows + t]. `offset` is 1 when the factor is
// 1 + w, else 0.
#include "prelude.cuh"

KERNEL rms_norm(In x, In w, Out y, Out rstd, float eps, float offset) {
    u64 cols = w.n, row = blockIdx.x * cols;
    float sum = 0;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = load(x, row + c);
        sum += v * v;
    }
    float r = 1.0f / sqrtf(block_sum(sum) / (float)cols + eps);
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) store(y, row + c, load(x, row + c) * r * (load(w, c) + offset));
    if (threadIdx.x == 0) store(rstd, blockIdx.x, r);
}

KERNEL rms_norm_backward(In x, In w, In rstd, In dy, Out dx, float offset) {
    u64 cols = w.n, row = blockIdx.x * cols;
    float r = load(rstd, blockIdx.x), sum = 0;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        sum += load(dy, row + c) * (load(w, c) + offset) * load(x, row + c);
    }
    float k = r * r * (block_sum(sum) / (float)cols);
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        float g = load(dy, row + c) * (load(w, c) + offset);
        store(dx, row + c, r * (g - load(x, row + c) * k));
    }
}

KERNEL rms_norm_backward_weight(In x, In rstd, In dy, Out dw) {
    u64 cols = dw.n, c = column();
    float sum = 0;
    for (u64 t = row_lane(); t < rstd.n && c < cols; t += ROW_LANES) {
        sum += load(dy, t * cols + c) * load(x, t * cols + c) * load(rstd, t);
    }
    sum = rows_sum(sum);
    if (has_column(cols)) store(dw, c, load(dw, c) + sum);
}

KERNEL layer_norm(In x, In w, In b, Out y, Out stats, float eps, float offset) {
    u64 cols = w.n, rows = stats.n / 2, row = blockIdx.x * cols;
    float sum = 0;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) sum += load(x, row + c);
    float mean = block_sum(sum) / (float)cols;
    float squares = 0;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = load(x, row + c) - mean;
        squares += v * v;
    }
    float r = 1.0f / sqrtf(block_sum(squares) / (float)cols + eps);
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        store(y, row + c, (load(x, row + c) - mean) * r * (load(w, c) + offset) + load(b, c));
    }
    if (threadIdx.x == 0) {
        store(stats, blockIdx.x, mean);
        store(stats, rows + blockIdx.x, r);
    }
}

KERNEL layer_norm_backward(In x, In w, In stats, In dy, Out dx, float offset) {
    u64 cols = w.n, rows = stats.n / 2, row = blockIdx.x * cols;
    float mean = load(stats, blockIdx.x), r = load(stats, rows + blockIdx.x);
    float sum_g = 0, sum_gx = 0;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        float g = load(dy, row + c) * (load(w, c) + offset);
        sum_g += g;
        sum_gx += g * (load(x, row + c) - mean) * r;
    }
    float mean_g = block_sum(sum_g) / (float)cols;
    float mean_gx = block_sum(sum_gx) / (float)cols;
    for (u64 c = threadIdx.x; c < cols; c += blockDim.x) {
        float g = load(dy, row + c) * (load(w, c) + offset), xh = (load(x, row + c) - mean) * r;
        store(dx, row + c, r * (g - mean_g - xh * mean_gx));
    }
}

KERNEL layer_norm_backward_weight(In x, In stats, In dy, Out dw, Out db) {
    u64 cols = dw.n, rows = stats.n / 2, c = column();
    float sum_w = 0, sum_b = 0;
    for (u64 t = row_lane(); t < rows && c < cols; t += ROW_LANES) {
        float g = load(dy, t * cols + c);
        sum_w += g * (load(x, t * cols + c) - load(stats, t)) * load(stats, rows + t);
        sum_b += g;
    }
    sum_w = rows_sum(sum_w);
    sum_b = rows_sum(sum_b);
    if (has_column(cols)) {
        store(dw, c, load(dw, c) + sum_w);
        store(db, c, load(db, c) + sum_b);
    }
}

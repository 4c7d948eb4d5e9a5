// Updates of flat ranges, in place. scalars: 0 lr, 1 weight decay, 2 factor of gradients, 3 1 - beta1^t, 4 1 - beta2^t.
// `param`, the rounded copy of the master weights, has 0 elements when there is none.
#include "prelude.cuh"

// Adam (Kingma & Ba 2015); decay decoupled (Loshchilov & Hutter 2019) or in the gradient
KERNEL adam(In scalars, In grad, Out master, Out m, Out v, Out param, float beta1, float beta2, float eps, float decay,
            float lr_mult, u32 decoupled) {
    float lr = load(scalars, 0) * lr_mult, wd = load(scalars, 1) * decay, factor = load(scalars, 2);
    float c1 = load(scalars, 3), c2 = load(scalars, 4);
    for (u64 i = first(); i < master.n; i += stride()) {
        float g = load(grad, i) * factor, w = load(master, i);
        if (decoupled) w -= lr * wd * w;
        else g += wd * w;
        float m1 = beta1 * load(m, i) + (1.0f - beta1) * g;
        float v1 = beta2 * load(v, i) + (1.0f - beta2) * g * g;
        w -= lr * (m1 / c1) / (sqrtf(v1 / c2) + eps);
        store(m, i, m1);
        store(v, i, v1);
        store(master, i, w);
        if (param.n != 0) store(param, i, w);
    }
}

// buf = momentum buf + (g + wd w), w -= lr buf
KERNEL sgd(In scalars, In grad, Out master, Out buf, Out param, float momentum, float decay, float lr_mult) {
    float lr = load(scalars, 0) * lr_mult, wd = load(scalars, 1) * decay, factor = load(scalars, 2);
    for (u64 i = first(); i < master.n; i += stride()) {
        float w = load(master, i);
        float b = momentum * load(buf, i) + (load(grad, i) * factor + wd * w);
        w -= lr * b;
        store(buf, i, b);
        store(master, i, w);
        if (param.n != 0) store(param, i, w);
    }
}

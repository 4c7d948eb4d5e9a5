// Element by element. Every output is overwritten, but for axpy's.
#include "prelude.cuh"

// y = value
KERNEL fill(Out y, float value) {
    for (u64 i = first(); i < y.n; i += stride()) store(y, i, value);
}

// y = x, of another storage type
KERNEL convert(In x, Out y) {
    for (u64 i = first(); i < y.n; i += stride()) store(y, i, load(x, i));
}

// y = a + b; y may be either
KERNEL add(In a, In b, Out y) {
    for (u64 i = first(); i < y.n; i += stride()) store(y, i, load(a, i) + load(b, i));
}

// y += alpha x
KERNEL axpy(In x, Out y, float alpha) {
    for (u64 i = first(); i < y.n; i += stride()) store(y, i, load(y, i) + alpha * load(x, i));
}

// x *= factor[0]
KERNEL scale(In factor, Out x) {
    float f = load(factor, 0);
    for (u64 i = first(); i < x.n; i += stride()) store(x, i, load(x, i) * f);
}

// c[m, n] = beta c + product[m, n] + bias[n]: what the matrix product leaves to do. With beta 0, c is not read; product and
// bias may have 0 elements.
KERNEL add_bias(In product, In bias, Out c, u64 cols, float beta) {
    for (u64 i = first(); i < c.n; i += stride()) {
        float v = beta == 0.0f ? 0.0f : beta * load(c, i);
        if (product.n != 0) v += load(product, i);
        store(c, i, bias.n == 0 ? v : v + load(bias, i % cols));
    }
}

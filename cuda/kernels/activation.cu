// Activations, plain (y = f(x), dx = dy f'(x)) and gated (x [T, 2F] = gate | up, y = f(gate) up). All overwritten; dx may
// be dy (plain) or x (gated): an element is read before the thread that alone touches it writes it.
#include "prelude.cuh"

// The codes of `code` in ../src/ops/activation.rs.
enum : u32 { GELU = 0, GELU_TANH = 1, QUICK_GELU = 2, SILU = 3, RELU = 4, SQUARED_RELU = 5 };

#define SQRT_HALF 0.70710678118654752f
#define SQRT_2_OVER_PI 0.79788456080286536f
#define INV_SQRT_2PI 0.39894228040143268f
#define CUBIC 0.044715f
#define QUICK 1.702f

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The sigmoid's factor of what is x sigmoid(u(x)), and u itself: (1 + tanh v) / 2 = sigmoid(2 v).
__device__ inline float inner(u32 f, float x) {
    if (f == GELU_TANH) return 2.0f * SQRT_2_OVER_PI * (x + CUBIC * x * x * x);
    return f == QUICK_GELU ? QUICK * x : x;
}

__device__ inline float inner_slope(u32 f, float x) {
    if (f == GELU_TANH) return 2.0f * SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * x * x);
    return f == QUICK_GELU ? QUICK : 1.0f;
}

__device__ inline float value(u32 f, float x) {
    if (f == RELU) return fmaxf(x, 0.0f);
    if (f == SQUARED_RELU) return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    if (f == GELU) return 0.5f * x * erfcf(-x * SQRT_HALF);
    return x * sigmoid(inner(f, x));
}

__device__ inline float slope(u32 f, float x) {
    if (f == RELU) return x > 0.0f ? 1.0f : 0.0f;
    if (f == SQUARED_RELU) return 2.0f * fmaxf(x, 0.0f);
    if (f == GELU) return 0.5f * erfcf(-x * SQRT_HALF) + x * INV_SQRT_2PI * expf(-0.5f * x * x);
    float s = sigmoid(inner(f, x));
    // far out s (1 - s) is 0 and the inner slope large, but finite
    return s + x * s * (1.0f - s) * inner_slope(f, x);
}

KERNEL activation(In x, Out y, u32 f) {
    for (u64 i = first(); i < y.n; i += stride()) store(y, i, value(f, load(x, i)));
}

KERNEL activation_backward(In x, In dy, Out dx, u32 f) {
    for (u64 i = first(); i < dx.n; i += stride()) store(dx, i, load(dy, i) * slope(f, load(x, i)));
}

KERNEL glu(In x, Out y, u64 width, u32 f) {
    for (u64 i = first(); i < y.n; i += stride()) {
        u64 gate = i / width * 2 * width + i % width;
        store(y, i, value(f, load(x, gate)) * load(x, gate + width));
    }
}

KERNEL glu_backward(In x, In dy, Out dx, u64 width, u32 f) {
    for (u64 i = first(); i < dy.n; i += stride()) {
        u64 at = i / width * 2 * width + i % width;
        float gate = load(x, at), up = load(x, at + width), d = load(dy, i);
        store(dx, at, d * up * slope(f, gate));
        store(dx, at + width, d * value(f, gate));
    }
}

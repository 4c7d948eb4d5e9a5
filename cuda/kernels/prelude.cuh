// What every kernel file uses: operands, element types, thread numbers, block reductions, Philox. No CUDA header is
// needed: nvcc and NVRTC bring the language, the emulator (../emulator) brings it to g++.
//
// An operand says where it is, how many elements it has and of what type, so that one kernel serves every storage type,
// the emulator checks every access, and the mock knows what a launch reads (In) and writes (Out, which it may read).
// Kernels compute in float; bf16 and f16 are rounded to nearest even when stored.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// The codes of `Operand` in ../src/launch.rs.
enum : u32 { F32 = 0, BF16 = 1, F16 = 2, I32 = 3, F64 = 4 };

struct In {
    const void* at;
    u64 n;
    u32 dtype;
};

struct Out {
    void* at;
    u64 n;
    u32 dtype;
};

#ifdef CUDA_EMULATOR
#include "emulator.h"
#else
#define KERNEL extern "C" __global__ void
#define SHARED(T, name, count) __shared__ T name[count]
#define DYNAMIC_SHARED(name) extern __shared__ float name[]
#define CHECK_LOAD(x, i)
#define CHECK_STORE(y, i)
typedef float* Tile; // floats in shared memory

__device__ inline float half_to_float(unsigned short bits) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}

__device__ inline unsigned short float_to_half(float v) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
#endif

// Threads of a block of every kernel; the launchers know it too.
#define THREADS 256
#define WARP 32
#define ALL_LANES 0xffffffffu

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

__device__ inline float bf16_to_float(unsigned short bits) { return __uint_as_float((u32)bits << 16); }

__device__ inline unsigned short float_to_bf16(float v) {
    u32 bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff; // a NaN stays one
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// ---- operands

template <class Operand>
__device__ inline float load(const Operand& x, u64 i) {
    CHECK_LOAD(x, i);
    if (x.dtype == F32) return ((const float*)x.at)[i];
    unsigned short bits = ((const unsigned short*)x.at)[i];
    return x.dtype == BF16 ? bf16_to_float(bits) : half_to_float(bits);
}

__device__ inline void store(const Out& y, u64 i, float v) {
    CHECK_STORE(y, i);
    if (y.dtype == F32) ((float*)y.at)[i] = v;
    else ((unsigned short*)y.at)[i] = y.dtype == BF16 ? float_to_bf16(v) : float_to_half(v);
}

__device__ inline int load_int(const In& x, u64 i) {
    CHECK_LOAD(x, i);
    return ((const int*)x.at)[i];
}

__device__ inline void store_int(const Out& y, u64 i, int v) {
    CHECK_STORE(y, i);
    ((int*)y.at)[i] = v;
}

__device__ inline double load_double(const In& x, u64 i) {
    CHECK_LOAD(x, i);
    return ((const double*)x.at)[i];
}

__device__ inline void store_double(const Out& y, u64 i, double v) {
    CHECK_STORE(y, i);
    ((double*)y.at)[i] = v;
}

// ---- threads: `for (u64 i = first(); i < n; i += stride())` visits every element once, whatever the grid

__device__ inline u64 first() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 stride() { return (u64)gridDim.x * blockDim.x; }

// ---- reductions over a block of whole warps; every thread calls, every thread gets the result. The order is that of the
// threads' numbers, so equal inputs give equal bits.

struct Add {
    template <class T>
    __device__ T operator()(T a, T b) const { return a + b; }
};

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class T, class F>
__device__ inline T warp_reduce(T v, F f) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) v = f(v, __shfl_xor_sync(ALL_LANES, v, offset));
    return v;
}

template <class T, class F>
__device__ inline T block_reduce(T v, F f) {
    SHARED(T, part, WARP);
    v = warp_reduce(v, f);
    __syncthreads(); // who is late may still read the parts of the reduction before this one
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = v;
    __syncthreads();
    T all = part[0];
    for (u32 w = 1; w < blockDim.x / WARP; ++w) all = f(all, (T)part[w]);
    return all;
}

template <class T>
__device__ inline T warp_sum(T v) { return warp_reduce(v, Add()); }

template <class T>
__device__ inline T block_sum(T v) { return block_reduce(v, Add()); }

__device__ inline float block_max(float v) { return block_reduce(v, Max()); }

// ---- sums over rows: a block takes 32 columns, its 8 warps every eighth row; thread (0, c) adds the 8 parts in order

#define COLUMNS 32
#define ROW_LANES (THREADS / COLUMNS)

// True in the threads that have the sum of column `column()`.
__device__ inline bool has_column(u64 cols) {
    return threadIdx.x < COLUMNS && (u64)blockIdx.x * COLUMNS + threadIdx.x < cols;
}

__device__ inline u64 column() { return (u64)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS; }
__device__ inline u32 row_lane() { return threadIdx.x / COLUMNS; }

__device__ inline float rows_sum(float v) {
    SHARED(float, part, THREADS);
    __syncthreads(); // as in block_reduce
    part[threadIdx.x] = v;
    __syncthreads();
    float sum = 0;
    for (u32 r = 0; r < ROW_LANES; ++r) sum += part[r * COLUMNS + threadIdx.x % COLUMNS];
    return sum;
}

// ---- Philox4x32-10 (Salmon et al. 2011): word 0 of a counter under a key, as crates/base/src/philox.rs has it

__device__ inline u32 philox(u64 key, u32 c0, u32 c1, u32 c2, u32 c3) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    for (int round = 0; round < 10; ++round) {
        u64 a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
        c0 = (u32)(b >> 32) ^ c1 ^ k0;
        c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ k1;
        c3 = (u32)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

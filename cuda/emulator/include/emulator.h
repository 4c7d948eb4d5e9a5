// CUDA on the host, stricter than the hardware: a kernel file that includes ../../kernels/prelude.cuh compiles with g++ as
// C++ and runs with one fibre a thread.
//
// * Threads of a block run one at a time, from barrier to barrier, in an order that a seed decides: upwards, downwards or
//   shuffled, so that what only works in one order fails in another.
// * Shared memory knows who touched each element since the last barrier. A read of what another thread wrote, a write of
//   what another thread read or wrote, and a read of what nobody wrote are errors, whatever the order was.
// * Operands know their length: an access beyond it is an error. So is an element that two threads of a launch write, or
//   that one reads after another wrote it: kernels talk through shared memory or through a later launch.
// * A barrier or shuffle that some threads do not reach is an error.
// * One barrier, named by file and line, can be left out of a run: a test shows with it that the barrier is needed.
//
// An error ends the launch; its text names kernel, block and thread. Not modelled: timing, caches, warps in lock step.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)

namespace emulator {

struct Dim3 {
    unsigned x, y, z;
};

struct Fiber;

// Lanes meet for each shuffle. Two pages of values: who is ahead by one shuffle writes the other page.
struct Warp {
    unsigned char value[2][32][8];
    unsigned arrived, generation, lanes;
    std::vector<Fiber*> waiting;
};

enum class At { ready, barrier, shuffle, end };

struct Fiber {
    void* sp;
    Dim3 thread;
    unsigned number; // in the block
    Warp* warp;
    At at;
};

// An output of the launch, and who wrote each element: 0 nobody.
struct Written {
    const char* at;
    size_t size; // of an element
    std::vector<uint64_t> by;
};

// One OS thread runs one launch at a time.
struct State {
    Fiber* fiber;
    Dim3 block, block_dim, grid_dim;
    uint64_t epoch;       // grows at every barrier and block
    uint64_t block_start; // the epoch in which the block began
    uint64_t first_thread; // of the block, among all of the launch, from 1
    const char* site;      // of the barrier that threads wait at
    int vote, votes;       // of __syncthreads_or: of the last barrier, and of this one so far
    bool failed;
    std::vector<Written> written;
};

// This thread's.
extern thread_local State* state;

// Ends the launch with a message. Does not return.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
// Waits for the other threads of the block.
void barrier(const char* site);
// Waits for the other lanes; gives the page that this shuffle's values are on.
unsigned meet(Warp& warp);

// A new number for a shared array of the source, and the array's bytes: zeros at first, and never moved.
unsigned new_array();
void* cells(unsigned array, size_t bytes);

inline uint64_t me() { return state->first_thread + state->fiber->number; }

// ---- shared memory

template <class T>
struct Cell {
    T value;
    uint64_t written, read; // epochs of the last access
    unsigned writer, reader;
};

constexpr unsigned MANY = ~0u;

// An element of shared memory as an lvalue.
template <class T>
struct Element {
    Cell<T>& cell;

    operator T() const {
        unsigned me = state->fiber->number;
        if (cell.written < state->block_start) fail("reads shared memory that no thread of the block has written");
        if (cell.written == state->epoch && cell.writer != me) {
            fail("reads shared memory that thread %u wrote, with no barrier between", cell.writer);
        }
        if (cell.read != state->epoch) cell.reader = me;
        else if (cell.reader != me) cell.reader = MANY;
        cell.read = state->epoch;
        return cell.value;
    }

    Element& operator=(T v) {
        unsigned me = state->fiber->number;
        if (cell.written == state->epoch && cell.writer != me) {
            fail("writes shared memory that thread %u wrote, with no barrier between", cell.writer);
        }
        if (cell.read == state->epoch && cell.reader != me) {
            fail("writes shared memory that another thread has read, with no barrier between");
        }
        cell.written = state->epoch;
        cell.writer = me;
        cell.value = v;
        return *this;
    }

    Element& operator=(const Element& other) { return *this = (T)other; }
};

// A shared array; each OS thread has its own.
template <class T, size_t N>
struct Shared {
    Cell<T>* at;

    explicit Shared(unsigned array) : at((Cell<T>*)cells(array, N * sizeof(Cell<T>))) {}

    Element<T> operator[](size_t i) const {
        if (i >= N) fail("touches element %zu of a shared array of %zu", i, N);
        return {at[i]};
    }
};

// A pointer into the dynamic shared memory.
struct Tile {
    Cell<float>* at;
    size_t n; // elements to the end

    Element<float> operator[](size_t i) const {
        if (i >= n) fail("touches dynamic shared memory %zu floats beyond its end", i - n);
        return {at[i]};
    }
    Tile operator+(size_t k) const {
        if (k > n) fail("points %zu floats beyond dynamic shared memory", k - n);
        return {at + k, n - k};
    }
};

Tile dynamic();

// ---- operands

inline size_t element_size(unsigned dtype) { return dtype == 4 ? 8 : dtype == 1 || dtype == 2 ? 2 : 4; }

inline uint64_t* written_by(const void* at, uint64_t i, unsigned dtype) {
    const char* address = (const char*)at + i * element_size(dtype);
    for (Written& w : state->written) {
        if (address >= w.at && address < w.at + w.by.size() * w.size) return &w.by[(size_t)(address - w.at) / w.size];
    }
    return nullptr;
}

template <class Operand>
inline void on_load(const Operand& x, uint64_t i) {
    if (i >= x.n) fail("reads element %llu of an operand of %llu", (unsigned long long)i, (unsigned long long)x.n);
    const uint64_t* by = written_by(x.at, i, x.dtype);
    if (by && *by && *by != me()) fail("reads element %llu, which another thread wrote", (unsigned long long)i);
}

template <class Operand>
inline void on_store(const Operand& y, uint64_t i) {
    if (i >= y.n) fail("writes element %llu of an operand of %llu", (unsigned long long)i, (unsigned long long)y.n);
    uint64_t* by = written_by(y.at, i, y.dtype);
    if (by && *by && *by != me()) fail("writes element %llu, which another thread wrote too", (unsigned long long)i);
    if (by) *by = me();
}

// ---- kernels by name

struct Kernel {
    const char* name;
    size_t bytes;        // of the packed arguments
    std::string layout;  // of the arguments: kind (i In, o Out, v value), offset, bytes; blanks between
    std::vector<size_t> ins, outs; // offsets of operands
    void (*call)(void* kernel, const char* arguments);
    void* kernel;
};

std::vector<Kernel>& kernels();

template <class T>
constexpr char kind() {
    if constexpr (std::is_same_v<T, In>) return 'i';
    else if constexpr (std::is_same_v<T, Out>) return 'o';
    else return 'v';
}

// Where C puts arguments that are packed one after another.
template <class... A>
struct Packed {
    size_t at[sizeof...(A) + 1];
    constexpr Packed() : at() {
        const size_t size[] = {sizeof(A)...}, align[] = {alignof(A)...};
        size_t next = 0;
        for (size_t i = 0; i < sizeof...(A); ++i) {
            next = (next + align[i] - 1) / align[i] * align[i];
            at[i] = next;
            next += size[i];
        }
        at[sizeof...(A)] = next;
    }
};

template <class... A, size_t... I>
void call_with(void (*kernel)(A...), const char* p, std::index_sequence<I...>) {
    constexpr Packed<A...> packed;
    kernel(*(const A*)(p + packed.at[I])...);
}

struct Register {
    template <class... A>
    Register(const char* name, void (*kernel)(A...)) {
        constexpr Packed<A...> packed;
        const char kinds[] = {kind<A>()...};
        const size_t size[] = {sizeof(A)...};
        Kernel k{name, packed.at[sizeof...(A)], "", {}, {}, nullptr, (void*)kernel};
        for (size_t i = 0; i < sizeof...(A); ++i) {
            k.layout += (i ? " " : "") + std::string(1, kinds[i]) + std::to_string(packed.at[i]) + ":" + std::to_string(size[i]);
            if (kinds[i] == 'i') k.ins.push_back(packed.at[i]);
            if (kinds[i] == 'o') k.outs.push_back(packed.at[i]);
        }
        k.call = [](void* f, const char* p) { call_with((void (*)(A...))f, p, std::index_sequence_for<A...>{}); };
        kernels().push_back(k);
    }
};

} // namespace emulator

using emulator::Tile;

#define KERNEL void // in a namespace, where no name is libc's
#define EMULATED(name) static const emulator::Register registered_##name(#name, name);
#define SHARED(T, name, count) \
    static const unsigned name##_array = emulator::new_array(); \
    const emulator::Shared<T, count> name(name##_array)
#define DYNAMIC_SHARED(name) emulator::Tile name = emulator::dynamic()
#define CHECK_LOAD(x, i) emulator::on_load(x, i)
#define CHECK_STORE(y, i) emulator::on_store(y, i)

#define threadIdx (emulator::state->fiber->thread)
#define blockIdx (emulator::state->block)
#define blockDim (emulator::state->block_dim)
#define gridDim (emulator::state->grid_dim)

#define EMULATOR_TEXT(x) #x
#define EMULATOR_LINE(x) EMULATOR_TEXT(x)
#define EMULATOR_SITE __FILE__ ":" EMULATOR_LINE(__LINE__)
#define __syncthreads() emulator::barrier(EMULATOR_SITE)
#define __syncthreads_or(p) (emulator::state->votes |= (p) != 0, emulator::barrier(EMULATOR_SITE), emulator::state->vote)

template <class T>
inline T __shfl_xor_sync(unsigned, T v, int mask) {
    emulator::Warp& w = *emulator::state->fiber->warp;
    unsigned lane = emulator::state->fiber->number % 32;
    memcpy(w.value[w.generation & 1][lane], &v, sizeof v);
    unsigned page = emulator::meet(w);
    memcpy(&v, w.value[page][lane ^ (unsigned)mask], sizeof v);
    return v;
}

inline float __int_as_float(int i) { float v; memcpy(&v, &i, 4); return v; }
inline float __uint_as_float(unsigned i) { float v; memcpy(&v, &i, 4); return v; }
inline unsigned __float_as_uint(float v) { unsigned i; memcpy(&i, &v, 4); return i; }
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return b > a ? b : a; }

inline float half_to_float(unsigned short h) {
    unsigned sign = (unsigned)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    float v = (float)fraction * 0x1p-24f;
    return sign ? -v : v;
}

inline unsigned short float_to_half(float v) {
    unsigned bits = __float_as_uint(v), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x477ff000u) return (unsigned short)(sign | 0x7c00); // 65520 and above
    if (size < 0x38800000u) { // below the normal numbers: the sum rounds to a multiple of 2^-24
        return (unsigned short)(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u));
    }
    return (unsigned short)(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13);
}

// The emulator's machine: fibres, the order of threads, launches by name. See ../include/emulator.h.
//
// The C functions at the end are what a mock of the driver loads.

#include <atomic>
#include <mutex>
#include <set>

#include "prelude.cuh"

#if defined(__x86_64__)
// Saves what a C function must keep, exchanges stacks, and takes the other's up.
extern "C" void emulator_switch(void** save, void* to);
asm(R"(
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

static void* new_stack(char* stack, size_t bytes, void (*entry)()) {
    void** sp = (void**)((uintptr_t)(stack + bytes) & ~(uintptr_t)63);
    *--sp = nullptr; // where entry would return to; keeps the alignment of a call
    *--sp = (void*)entry;
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    return sp;
}
#else
#include <ucontext.h>
// The slow way: the context lies at the low end of the stack.
static void emulator_switch(void** save, void* to) { swapcontext((ucontext_t*)*save, (ucontext_t*)to); }

static void* new_stack(char* stack, size_t bytes, void (*entry)()) {
    ucontext_t* u = (ucontext_t*)stack;
    const size_t head = (sizeof(ucontext_t) + 63) / 64 * 64;
    getcontext(u);
    u->uc_stack.ss_sp = stack + head;
    u->uc_stack.ss_size = bytes - head;
    u->uc_link = nullptr;
    makecontext(u, entry, 0);
    return u;
}
static thread_local ucontext_t main_context;
#endif

namespace emulator {

thread_local State* state = nullptr;

namespace {

constexpr size_t STACK = 64 << 10;
constexpr unsigned MAX_THREADS = 1024;

// What one OS thread keeps from launch to launch.
struct Machine {
    std::vector<char> stacks;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<Fiber*> ready;
    std::vector<Cell<float>> dynamic;
    std::vector<std::vector<uint64_t>> arrays;
    const Kernel* kernel;
    const char* arguments;
    void* main;
    std::string error;
    std::string omit; // the barrier to leave out
};

thread_local Machine machine;
thread_local State own_state;

std::mutex guard;
std::string omitted;          // guarded
std::set<std::string> sites;  // guarded: every barrier that was reached

// The finaliser of splitmix64.
uint64_t mix(uint64_t z) {
    z += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

void to_main() { emulator_switch(&state->fiber->sp, machine.main); }

void entry() {
    machine.kernel->call(machine.kernel->kernel, machine.arguments);
    state->fiber->at = At::end;
    to_main();
}

// All threads of the block become ready, in an order of the seed.
void arrange(uint64_t seed) {
    std::vector<Fiber*>& ready = machine.ready;
    ready.clear();
    for (Fiber& f : machine.fibers) {
        f.at = At::ready;
        ready.push_back(&f);
    }
    if (seed % 4 == 0) return; // downwards: they are taken from the end
    for (size_t i = 0; i < ready.size() / 2; ++i) std::swap(ready[i], ready[ready.size() - 1 - i]);
    if (seed % 4 == 1) return;
    for (size_t i = ready.size(); i > 1; --i) std::swap(ready[i - 1], ready[((seed = mix(seed)) >> 32) * i >> 32]);
}

// A message without a thread to blame.
void block_error(const char* format, ...) {
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    char where[200];
    snprintf(where, sizeof where, "%s: block (%u, %u, %u): ", machine.kernel->name, state->block.x, state->block.y, state->block.z);
    machine.error = std::string(where) + text;
    state->failed = true;
}

void run_block(uint64_t seed) {
    unsigned n = (unsigned)machine.fibers.size();
    for (Warp& w : machine.warps) {
        w.arrived = w.generation = w.lanes = 0;
        w.waiting.clear();
    }
    const Dim3 d = state->block_dim;
    Dim3 thread = {0, 0, 0};
    for (unsigned i = 0; i < n; ++i) {
        Warp* warp = &machine.warps[i / 32];
        ++warp->lanes;
        // tops of stacks at different places of a page, so that they do not share one set of the cache
        char* stack = machine.stacks.data() + (size_t)i * STACK;
        void* sp = new_stack(stack, STACK - (i & 63) * 320, entry);
        machine.fibers[i] = Fiber{sp, thread, i, warp, At::ready};
        if (++thread.x == d.x) {
            thread.x = 0;
            if (++thread.y == d.y) {
                thread.y = 0;
                ++thread.z;
            }
        }
    }
    state->block_start = ++state->epoch;
    state->site = nullptr;
    state->vote = state->votes = 0;
    for (;;) {
        arrange(seed = mix(seed));
        while (!machine.ready.empty()) {
            state->fiber = machine.ready.back();
            machine.ready.pop_back();
            emulator_switch(&machine.main, state->fiber->sp);
            if (state->failed) return;
        }
        unsigned at_barrier = 0, ended = 0;
        for (const Fiber& f : machine.fibers) {
            at_barrier += f.at == At::barrier;
            ended += f.at == At::end;
        }
        if (ended == n) return;
        if (at_barrier + ended < n) return block_error("lanes wait at a shuffle that others of their warp do not reach");
        if (ended) return block_error("%u of %u threads ended, the others wait at the barrier %s", ended, n, state->site);
        ++state->epoch;
        state->site = nullptr;
        state->vote = state->votes;
        state->votes = 0;
    }
}

size_t element_bytes(const char* arguments, size_t offset, Out& out) {
    memcpy(&out, arguments + offset, sizeof out);
    return element_size(out.dtype);
}

} // namespace

std::vector<Kernel>& kernels() {
    static std::vector<Kernel> all;
    return all;
}

void fail(const char* format, ...) {
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    char where[100];
    const Dim3& t = state->fiber->thread;
    snprintf(where, sizeof where, "thread (%u, %u, %u) ", t.x, t.y, t.z);
    block_error("%s%s", where, text);
    to_main();
    __builtin_unreachable(); // a failed launch takes no fibre up again
}

void barrier(const char* site) {
    if (state->site == nullptr) {
        std::lock_guard<std::mutex> lock(guard);
        sites.insert(site);
    }
    if (!machine.omit.empty() && machine.omit == site) {
        state->vote = state->votes; // what this thread knows
        return;
    }
    if (state->site && state->site != site && strcmp(state->site, site) != 0) fail("waits at the barrier %s, others at %s", site, state->site);
    state->site = site;
    state->fiber->at = At::barrier;
    to_main();
}

unsigned meet(Warp& warp) {
    unsigned page = warp.generation & 1;
    if (++warp.arrived < warp.lanes) {
        warp.waiting.push_back(state->fiber);
        state->fiber->at = At::shuffle;
        to_main();
        return page;
    }
    warp.arrived = 0;
    ++warp.generation;
    for (Fiber* f : warp.waiting) {
        f->at = At::ready;
        machine.ready.push_back(f);
    }
    warp.waiting.clear();
    return page;
}

unsigned new_array() {
    static std::atomic<unsigned> next{0};
    return next++;
}

void* cells(unsigned array, size_t bytes) {
    if (array >= machine.arrays.size()) machine.arrays.resize(array + 1);
    std::vector<uint64_t>& words = machine.arrays[array];
    if (words.empty()) words.resize(bytes / 8);
    return words.data();
}

Tile dynamic() { return {machine.dynamic.data(), machine.dynamic.size()}; }

} // namespace emulator

using namespace emulator;

static size_t copy_text(const std::string& text, char* to, size_t size) {
    if (size) {
        size_t n = text.size() < size - 1 ? text.size() : size - 1;
        memcpy(to, text.data(), n);
        to[n] = 0;
    }
    return text.size();
}

// The kernels, a line each: name, bytes of arguments, layout of arguments. Gives the length of the text.
extern "C" size_t emulator_kernels(char* text, size_t size) {
    std::string all;
    for (const Kernel& k : kernels()) all += std::string(k.name) + " " + std::to_string(k.bytes) + " " + k.layout + "\n";
    return copy_text(all, text, size);
}

// The barriers reached so far, a line each.
extern "C" size_t emulator_sites(char* text, size_t size) {
    std::lock_guard<std::mutex> lock(guard);
    std::string all;
    for (const std::string& s : sites) all += s + "\n";
    return copy_text(all, text, size);
}

// Leaves a barrier out of every launch from now on; null or "" leaves none out.
extern "C" void emulator_omit(const char* site) {
    std::lock_guard<std::mutex> lock(guard);
    omitted = site ? site : "";
}

// Runs a kernel. 0, or 1 with the error's text.
extern "C" int emulator_launch(const char* name, const unsigned* grid, const unsigned* block, size_t shared,
                               const void* arguments, size_t bytes, uint64_t seed, char* error, size_t error_size) {
    state = &own_state;
    machine.kernel = nullptr;
    for (const Kernel& k : kernels()) {
        if (strcmp(k.name, name) == 0) machine.kernel = &k;
    }
    std::string refused;
    size_t threads = (size_t)block[0] * block[1] * block[2];
    if (!machine.kernel) refused = std::string("there is no kernel ") + name;
    else if (bytes != machine.kernel->bytes) {
        refused = std::string(name) + ": " + std::to_string(bytes) + " bytes of arguments, it takes " +
                  std::to_string(machine.kernel->bytes);
    } else if (threads == 0 || threads > MAX_THREADS || threads % 32) refused = std::string(name) + ": not whole warps of at most 1024 threads";
    if (!refused.empty()) {
        copy_text(refused, error, error_size);
        return 1;
    }
    {
        std::lock_guard<std::mutex> lock(guard);
        machine.omit = omitted;
    }
    machine.arguments = (const char*)arguments;
    machine.stacks.resize(threads * STACK > machine.stacks.size() ? threads * STACK : machine.stacks.size());
    machine.fibers.resize(threads);
    machine.warps.resize(threads / 32);
    machine.dynamic.resize(shared / 4);
    state->grid_dim = {grid[0], grid[1], grid[2]};
    state->block_dim = {block[0], block[1], block[2]};
    state->failed = false;
    state->written.clear();
    for (size_t offset : machine.kernel->outs) {
        Out out;
        size_t size = element_bytes(machine.arguments, offset, out);
        state->written.push_back({(const char*)out.at, size, std::vector<uint64_t>(out.n)});
    }
#if !defined(__x86_64__)
    machine.main = &main_context;
#endif
    uint64_t number = 0;
    for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
            for (unsigned x = 0; x < grid[0]; ++x, ++number) {
                state->block = {x, y, z};
                state->first_thread = number * threads + 1;
                run_block(mix(seed + number));
                if (state->failed) {
                    copy_text(machine.error, error, error_size);
                    return 1;
                }
            }
        }
    }
    return 0;
}

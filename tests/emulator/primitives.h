// The hardware on the CPU: a second implementation of templates/primitives.cuh.
//
// A thread block runs as one fiber per CUDA thread. A fiber runs until it reaches a block barrier or a warp-wide
// operation, so the order in which fibers are picked is an interleaving of the block. One warp is run as far as it gets
// before the next, which is the least synchronised a block can be; doing so under several orders, with asynchronous
// copies landing as early or as late as the rules allow, shows missing barriers. Every global and shared access is
// checked for bounds and alignment; shared memory starts as NaN patterns.

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#define DEVICE inline
#define KERNEL(threads) static void

struct alignas(2) fp16 { unsigned short bits; };
struct alignas(2) bf16 { unsigned short bits; };
struct alignas(4) tf32 { unsigned bits; };
struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
using int8 = signed char;

template <typename T, int COUNT>
struct alignas(sizeof(T) * COUNT) Vector { T at[COUNT]; };

namespace emulator {

struct Fault { std::string what; };

struct Region { const unsigned char* first; size_t bytes; bool writable; };

struct Copy { unsigned char* target; const unsigned char* source; int bytes; bool valid; };

struct Thread {
    ucontext_t context;
    std::vector<unsigned char> stack;
    bool done = false;
    int warp_barriers = 0;                  // reached so far
    std::vector<std::vector<Copy>> groups;  // committed and not yet landed
    std::vector<Copy> open;                 // not yet committed
};

enum Wait { READY, AT_BLOCK, AT_WARP };

struct Machine {
    unsigned block = 0, slice = 0, batch = 0, blocks = 1, batches = 1;
    bool late_copies = false;
    std::vector<Region> global;
    std::vector<unsigned char> shared_storage;
    unsigned char* shared = nullptr;
    size_t shared_bytes = 0;
    std::vector<Thread> threads;
    std::vector<Wait> waits;
    ucontext_t scheduler;
    unsigned current = 0;
    void (*body)() = nullptr;
    // What lanes show each other, twice so that a fast lane cannot overwrite what a slow one has yet to read.
    std::vector<const void*> rows[2];
    std::vector<std::array<unsigned, 6>> operands[2];
    std::string fault;
};

inline Machine machine;

[[noreturn]] inline void fail(const std::string& what) { throw Fault{what}; }

inline void yield(Wait wait) {
    machine.waits[machine.current] = wait;
    const unsigned self = machine.current;
    swapcontext(&machine.threads[self].context, &machine.scheduler);
}

inline void sync_warp() {
    ++machine.threads[machine.current].warp_barriers;
    yield(AT_WARP);
}

inline void check_alignment(const void* pointer, size_t bytes, const char* where) {
    if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) {
        fail(std::string("misaligned ") + std::to_string(bytes) + "-byte access to " + where + " memory");
    }
}

inline void check_global(const void* pointer, size_t bytes, bool write) {
    const auto* first = static_cast<const unsigned char*>(pointer);
    for (const Region& region : machine.global) {
        if (first >= region.first && first + bytes <= region.first + region.bytes) {
            if (write && !region.writable) fail("write to an input");
            check_alignment(pointer, bytes, "global");
            return;
        }
    }
    fail(std::string(write ? "write" : "read") + " outside of global memory");
}

inline void check_shared(const void* pointer, size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(pointer);
    if (first < machine.shared || first + bytes > machine.shared + machine.shared_bytes) {
        fail("access outside of shared memory");
    }
    check_alignment(pointer, bytes, "shared");
}

inline void land(const Copy& copy) {
    if (copy.valid) {
        std::memcpy(copy.target, copy.source, copy.bytes);
    } else {
        std::memset(copy.target, 0, copy.bytes);
    }
}

inline void trampoline() {
    try {
        machine.body();
    } catch (const Fault& fault) {
        if (machine.fault.empty()) {
            machine.fault = "block " + std::to_string(machine.block) + " thread " + std::to_string(machine.current) +
                            ": " + fault.what;
        }
    }
    machine.threads[machine.current].done = true;
    swapcontext(&machine.threads[machine.current].context, &machine.scheduler);
}

inline void prepare_block(unsigned thread_count) {
    machine.threads = std::vector<Thread>(thread_count);
    machine.waits.assign(thread_count, READY);
    for (int half = 0; half < 2; ++half) {
        machine.rows[half].assign(thread_count, nullptr);
        machine.operands[half].assign(thread_count, {});
    }
    std::fill(machine.shared_storage.begin(), machine.shared_storage.end(), 0xFF);
    for (Thread& thread : machine.threads) {
        thread.stack.resize(64 * 1024);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = &machine.scheduler;
        makecontext(&thread.context, trampoline, 0);
    }
}

// Runs a warp until all its lanes are done or wait for the block; returns whether any lane moved.
inline bool run_warp(unsigned warp, const std::vector<unsigned>& lanes) {
    bool moved = false;
    for (;;) {
        for (unsigned lane : lanes) {
            const unsigned index = warp * 32 + lane;
            while (!machine.threads[index].done && machine.waits[index] == READY) {
                machine.current = index;
                swapcontext(&machine.scheduler, &machine.threads[index].context);
                moved = true;
                if (!machine.fault.empty()) return moved;
            }
        }
        for (unsigned lane : lanes) {
            const unsigned index = warp * 32 + lane;
            if (machine.threads[index].done || machine.waits[index] != AT_WARP) return moved;
        }
        for (unsigned lane : lanes) machine.waits[warp * 32 + lane] = READY;
    }
}

// Runs one block to its end. Order: 0 forward, 1 backward, otherwise shuffled before every round.
inline void run_block(unsigned thread_count, unsigned order, std::mt19937& generator) {
    prepare_block(thread_count);
    std::vector<unsigned> warps(thread_count / 32), lanes(32);
    for (unsigned i = 0; i < warps.size(); ++i) warps[i] = order == 1 ? warps.size() - 1 - i : i;
    for (unsigned i = 0; i < 32; ++i) lanes[i] = order == 1 ? 31 - i : i;
    for (;;) {
        bool moved = false;
        if (order > 1) std::shuffle(warps.begin(), warps.end(), generator);
        for (unsigned warp : warps) {
            if (order > 1) std::shuffle(lanes.begin(), lanes.end(), generator);
            moved = run_warp(warp, lanes) || moved;
            if (!machine.fault.empty()) return;
        }
        bool finished = true, at_barrier = true;
        for (unsigned index = 0; index < thread_count; ++index) {
            finished = finished && machine.threads[index].done;
            at_barrier = at_barrier && !machine.threads[index].done && machine.waits[index] == AT_BLOCK;
        }
        if (finished) return;
        if (at_barrier) {
            std::fill(machine.waits.begin(), machine.waits.end(), READY);
        } else if (!moved) {
            machine.fault = "block " + std::to_string(machine.block) + ": threads wait at different barriers";
            return;
        }
    }
}

inline float half_to_float(fp16 value) {
    _Float16 half;
    std::memcpy(&half, &value.bits, 2);
    return static_cast<float>(half);
}

inline float half_to_float(bf16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

// An 8-bit float: sign, exponent, and the given number of mantissa bits.
inline float small_to_float(unsigned bits, int mantissa_bits, bool has_infinity) {
    const int exponent_bits = 7 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int ones = (1 << exponent_bits) - 1;
    float value;
    if (has_infinity && exponent == ones) {
        value = mantissa ? NAN : INFINITY;
    } else if (!has_infinity && exponent == ones && mantissa == (1 << mantissa_bits) - 1) {
        value = NAN;
    } else if (exponent == 0) {
        value = std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
    } else {
        value = std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
    }
    return bits & 0x80 ? -value : value;
}

// What tensor cores multiply.
inline float value_of(fp16 element) { return half_to_float(element); }
inline float value_of(bf16 element) { return half_to_float(element); }
inline float value_of(e4m3 element) { return small_to_float(element.bits, 3, false); }
inline float value_of(e5m2 element) { return small_to_float(element.bits, 2, true); }
inline int value_of(int8 element) { return element; }
inline float value_of(tf32 element) {
    const unsigned bits = element.bits & ~0x1FFFu;  // they cut off what tf32 does not have
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

// Element `index` of those that a register packs.
template <typename T>
auto element(unsigned packed, int index) {
    T value;
    std::memcpy(&value, reinterpret_cast<const unsigned char*>(&packed) + index * sizeof(T), sizeof(T));
    return value_of(value);
}

}  // namespace emulator

inline unsigned thread_index() { return emulator::machine.current; }
inline unsigned block_index() { return emulator::machine.block; }
inline unsigned block_count() { return emulator::machine.blocks; }
inline unsigned slice_index() { return emulator::machine.slice; }
inline unsigned batch_count() { return emulator::machine.batches; }
inline unsigned batch_index() { return emulator::machine.batch; }
inline unsigned char* shared_memory() { return emulator::machine.shared; }
inline void sync_block() { emulator::yield(emulator::AT_BLOCK); }
inline void sync_warp() { emulator::sync_warp(); }

template <typename T, int COUNT>
Vector<T, COUNT> load_global(const T* source) {
    emulator::check_global(source, sizeof(T) * COUNT, false);
    Vector<T, COUNT> value;
    std::memcpy(&value, source, sizeof(value));
    return value;
}

template <typename T, int COUNT>
void store_global(T* target, Vector<T, COUNT> value) {
    emulator::check_global(target, sizeof(T) * COUNT, true);
    std::memcpy(target, &value, sizeof(value));
}

template <typename T, int COUNT>
Vector<T, COUNT> load_shared(const T* source) {
    emulator::check_shared(source, sizeof(T) * COUNT);
    Vector<T, COUNT> value;
    std::memcpy(&value, source, sizeof(value));
    return value;
}

template <typename T, int COUNT>
void store_shared(T* target, Vector<T, COUNT> value) {
    emulator::check_shared(target, sizeof(T) * COUNT);
    std::memcpy(target, &value, sizeof(value));
}

// One block runs to its end before the next: what fences order has happened.
inline void fence() {}
inline unsigned count_up(unsigned* counter) {
    emulator::check_global(counter, sizeof(unsigned), true);
    return (*counter)++;
}

template <int BYTES>
void copy_async(void* target, const void* source, bool valid) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
    emulator::check_shared(target, BYTES);
    if (valid) emulator::check_global(source, BYTES, false);
    const emulator::Copy copy = {static_cast<unsigned char*>(target), static_cast<const unsigned char*>(source), BYTES,
                                 valid};
    if (emulator::machine.late_copies) {
        emulator::machine.threads[emulator::machine.current].open.push_back(copy);
    } else {
        emulator::land(copy);
    }
}

inline void commit_copies() {
    emulator::Thread& thread = emulator::machine.threads[emulator::machine.current];
    thread.groups.push_back(std::move(thread.open));
    thread.open.clear();
}

template <int PENDING>
void wait_copies() {
    auto& groups = emulator::machine.threads[emulator::machine.current].groups;
    while (groups.size() > PENDING) {
        for (const emulator::Copy& copy : groups.front()) emulator::land(copy);
        groups.erase(groups.begin());
    }
}

namespace emulator {

inline void load_matrix(unsigned (&fragment)[4], const void* row, bool transposed) {
    check_shared(row, 16);
    Machine& m = machine;
    const unsigned self = m.current, lane = self % 32, warp = self - lane;
    auto& rows = m.rows[m.threads[self].warp_barriers % 2];
    rows[self] = row;
    sync_warp();
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned short pair[2];
        for (int half = 0; half < 2; ++half) {
            const unsigned r = transposed ? lane % 4 * 2 + half : lane / 4;
            const unsigned c = transposed ? lane / 4 : lane % 4 * 2 + half;
            const auto* address = static_cast<const unsigned char*>(rows[warp + matrix * 8 + r]);
            std::memcpy(&pair[half], address + c * 2, 2);
        }
        fragment[matrix] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
    }
}

template <typename T, typename Sum>
void multiply_accumulate(Sum (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Machine& m = machine;
    const unsigned self = m.current, lane = self % 32, warp = self - lane;
    auto& operands = m.operands[m.threads[self].warp_barriers % 2];
    operands[self] = {a[0], a[1], a[2], a[3], b0, b1};
    sync_warp();
    for (int i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        Sum sum = d[i];
        constexpr unsigned PACKED = 4 / sizeof(T);  // elements in a register; four lanes hold a row's 16 bytes
        for (unsigned k = 0; k < 8 * PACKED; ++k) {
            const unsigned from = k / PACKED % 4, half = k / (4 * PACKED);
            const auto left = element<T>(operands[warp + row % 8 * 4 + from][row / 8 + half * 2], k % PACKED);
            const auto right = element<T>(operands[warp + column * 4 + from][4 + half], k % PACKED);
            sum = static_cast<Sum>(std::fma(static_cast<double>(left), static_cast<double>(right), sum));
        }
        d[i] = sum;
    }
}

}  // namespace emulator

inline void load_matrix(unsigned (&fragment)[4], const void* row) { emulator::load_matrix(fragment, row, false); }
inline void load_matrix_transposed(unsigned (&fragment)[4], const void* row) {
    emulator::load_matrix(fragment, row, true);
}
inline void multiply_accumulate(fp16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply_accumulate<fp16>(d, a, b0, b1);
}
inline void multiply_accumulate(bf16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply_accumulate<bf16>(d, a, b0, b1);
}

inline void multiply_accumulate(tf32, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply_accumulate<tf32>(d, a, b0, b1);
}
inline void multiply_accumulate(e4m3, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply_accumulate<e4m3>(d, a, b0, b1);
}
inline void multiply_accumulate(e5m2, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply_accumulate<e5m2>(d, a, b0, b1);
}
inline void multiply_accumulate(int8, int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulator::multiply_accumulate<int8>(d, a, b0, b1);
}

inline unsigned chosen_bytes(unsigned low, unsigned high, unsigned choice) {
    const unsigned long long all = low | static_cast<unsigned long long>(high) << 32;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(all >> (choice >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return result;
}

// To the nearest, ties away from zero, by adding half of the last bit kept to the magnitude.
inline unsigned rounded_to_tf32(unsigned bits) { return (bits + 0x1000u) & ~0x1FFFu; }

inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline double multiply_add(double a, double b, double c) { return std::fma(a, b, c); }

inline int multiply_add(int a, int b, int c) { return a * b + c; }
inline float error_function(float x) { return std::erf(x); }
inline double error_function(double x) { return std::erf(x); }

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline int widen(int8 value) { return value; }
inline float widen(fp16 value) { return emulator::half_to_float(value); }
inline float widen(bf16 value) { return emulator::half_to_float(value); }

template <typename T> T convert(int value) { return value; }
template <typename T> T convert(double value) { return value; }
template <typename T> T convert(float value);
template <> inline float convert<float>(float value) { return value; }
template <> inline fp16 convert<fp16>(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    fp16 result;
    std::memcpy(&result.bits, &half, 2);
    return result;
}
template <> inline bf16 convert<bf16>(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return {0x7FFF};
    bits += 0x7FFF + ((bits >> 16) & 1);  // to nearest, ties to even
    return {static_cast<unsigned short>(bits >> 16)};
}

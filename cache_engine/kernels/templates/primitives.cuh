// The hardware, as the kernels see it.
//
// Kernel templates touch the GPU only through what is declared here, so that a second implementation of this one
// file (the CPU emulator of the test suite) can run every generated kernel, warp-wide operations included.
//
// Sources: PTX ISA 8.x, "ldmatrix", "cp.async" and "mma" (m16n8k8, m16n8k16, m16n8k32); no CUDA header is needed, which
// keeps compiles short and makes the source complete: what is compiled is exactly what is hashed.

#define DEVICE __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

struct alignas(2) fp16 { unsigned short bits; };
struct alignas(2) bf16 { unsigned short bits; };
struct alignas(4) tf32 { unsigned bits; };  // stored as fp32; multiplied with ten bits of mantissa
struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
using int8 = signed char;

DEVICE unsigned thread_index() { return threadIdx.x; }
DEVICE unsigned block_index() { return blockIdx.x; }
DEVICE unsigned block_count() { return gridDim.x; }
DEVICE unsigned slice_index() { return blockIdx.y; }
DEVICE unsigned batch_index() { return blockIdx.z; }
DEVICE unsigned batch_count() { return gridDim.z; }
DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }  // what its lanes have written to shared memory before, all of them see after

DEVICE unsigned char* shared_memory() {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    return shared_bytes;
}

// ---- Memory -------------------------------------------------------------------------------------------------------

// A vector of COUNT elements, aligned to its size.
template <typename T, int COUNT>
struct alignas(sizeof(T) * COUNT) Vector { T at[COUNT]; };

// The register type of each size, so that a vector is moved by one instruction.
template <int BYTES> struct Word;
template <> struct Word<1> { using type = unsigned char; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<16> { using type = uint4; };

template <typename T, int COUNT>
DEVICE Vector<T, COUNT> load_vector(const T* source) {
    using Bits = typename Word<sizeof(T) * COUNT>::type;
    const Bits bits = *reinterpret_cast<const Bits*>(source);
    Vector<T, COUNT> value;
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

template <typename T, int COUNT>
DEVICE void store_vector(T* target, Vector<T, COUNT> value) {
    using Bits = typename Word<sizeof(T) * COUNT>::type;
    Bits bits;
    memcpy(&bits, &value, sizeof(bits));
    *reinterpret_cast<Bits*>(target) = bits;
}

template <typename T, int COUNT>
DEVICE Vector<T, COUNT> load_global(const T* source) { return load_vector<T, COUNT>(source); }

// The compiler makes several narrow stores of a wide one whose value depends on a branch, unless it is in assembly.
template <typename T, int COUNT>
DEVICE void store_global(T* target, Vector<T, COUNT> value) {
    if constexpr (sizeof(value) < 16) {
        store_vector<T, COUNT>(target, value);
    } else {
        unsigned words[4];
        memcpy(words, &value, sizeof(words));
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                     :: "l"(target), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
    }
}

template <typename T, int COUNT>
DEVICE Vector<T, COUNT> load_shared(const T* source) { return load_vector<T, COUNT>(source); }

template <typename T, int COUNT>
DEVICE void store_shared(T* target, Vector<T, COUNT> value) { store_vector<T, COUNT>(target, value); }

DEVICE unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Starts copying BYTES (4, 8 or 16) from global to shared memory, or zeroes when not valid (source is then not read).
template <int BYTES>
DEVICE void copy_async(void* target, const void* source, bool valid) {
    const int source_bytes = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(shared_address(target)), "l"(source), "r"(source_bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(shared_address(target)), "l"(source), "n"(BYTES), "r"(source_bytes) : "memory");
    }
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's committed groups are still under way.
template <int PENDING>
DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

// What this thread has written is seen by every block before what it writes after; and the other way round for reads.
DEVICE void fence() { __threadfence(); }

// Adds one; returns what was there.
DEVICE unsigned count_up(unsigned* counter) { return atomicAdd(counter, 1u); }

// Four of eight bytes, low ones first: each four bits of the choice give the number of one.
DEVICE unsigned chosen_bytes(unsigned low, unsigned high, unsigned choice) { return __byte_perm(low, high, choice); }

// ---- Tensor cores -------------------------------------------------------------------------------------------------

// Four matrices of eight rows of 16 bytes; lane l gives the address of row l % 8 of matrix l / 8, and gets the four bytes
// of row l / 4 at 4 * (l % 4) of each. The transposing form is for 16-bit elements alone.
DEVICE void load_matrix(unsigned (&fragment)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row)) : "memory");
}

DEVICE void load_matrix_transposed(unsigned (&fragment)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row)) : "memory");
}

// D(16x8) += A(16xk) * B(kx8), k of 32 bytes; the type tag chooses the instruction. REGISTER is the kind of D's.
#define MULTIPLY_ACCUMULATE(TYPE, SUM, REGISTER, KIND)                                                              \
    DEVICE void multiply_accumulate(TYPE, SUM (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {          \
        asm volatile("mma.sync.aligned." KIND                                                                       \
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                             \
                     : REGISTER(d[0]), REGISTER(d[1]), REGISTER(d[2]), REGISTER(d[3])                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                               \
    }
MULTIPLY_ACCUMULATE(fp16, float, "+f", "m16n8k16.row.col.f32.f16.f16.f32")
MULTIPLY_ACCUMULATE(bf16, float, "+f", "m16n8k16.row.col.f32.bf16.bf16.f32")
MULTIPLY_ACCUMULATE(tf32, float, "+f", "m16n8k8.row.col.f32.tf32.tf32.f32")
MULTIPLY_ACCUMULATE(int8, int, "+r", "m16n8k32.row.col.s32.s8.s8.s32")

#if __CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200
MULTIPLY_ACCUMULATE(e4m3, float, "+f", "m16n8k32.row.col.f32.e4m3.e4m3.f32")
MULTIPLY_ACCUMULATE(e5m2, float, "+f", "m16n8k32.row.col.f32.e5m2.e5m2.f32")
#else
// Targets from 9.0 to 11.0 have no such instruction. The assembler would multiply as fp16, from 0 each time, and add sums to
// D: twice the instructions, and registers spill. fp16 holds every value of both types, so nothing is lost here.
#define TWO_AS_FP16(TYPE, KIND)                                                                                     \
    DEVICE unsigned two_as_fp16(TYPE, unsigned four, int upper) {                                                   \
        unsigned short pairs[2];                                                                                    \
        unsigned result;                                                                                            \
        asm("mov.b32 {%0, %1}, %2;" : "=h"(pairs[0]), "=h"(pairs[1]) : "r"(four));                                  \
        asm("cvt.rn.f16x2." KIND " %0, %1;" : "=r"(result) : "h"(pairs[upper]));                                    \
        return result;                                                                                              \
    }
TWO_AS_FP16(e4m3, "e4m3x2")
TWO_AS_FP16(e5m2, "e5m2x2")

// A register holds four neighbours along k: the lower two of all make a product, and the upper two another. Which element of
// k is which does not matter, since A and B agree. Of one fragment the compiler converts each half once.
template <typename T>
DEVICE void multiply_accumulate(T type, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
        unsigned half[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) half[i] = two_as_fp16(type, a[i], upper);
        multiply_accumulate(fp16{}, d, half, two_as_fp16(type, b0, upper), two_as_fp16(type, b1, upper));
    }
}
#endif

// A register of fp32 as the tensor cores want it: rounded to tf32, the nearest, ties away from zero. They would cut off.
DEVICE unsigned rounded_to_tf32(unsigned bits) {
    unsigned result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "r"(bits));
    return result;
}

// ---- Arithmetic ---------------------------------------------------------------------------------------------------

DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE int multiply_add(int a, int b, int c) { return a * b + c; }
DEVICE float error_function(float x) { return erff(x); }
DEVICE double error_function(double x) { return erf(x); }

// The value in the type that sums are kept in.
DEVICE float widen(float value) { return value; }
DEVICE double widen(double value) { return value; }
DEVICE int widen(int8 value) { return value; }
DEVICE float widen(fp16 value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
}
DEVICE float widen(bf16 value) {
    float result;
    asm("mov.b32 %0, {%1, %2};" : "=f"(result) : "h"(static_cast<unsigned short>(0)), "h"(value.bits));
    return result;
}

// Rounds to the nearest, ties to even.
template <typename T> DEVICE T convert(int value) { return value; }
template <typename T> DEVICE T convert(double value) { return value; }
template <typename T> DEVICE T convert(float value);
template <> DEVICE float convert<float>(float value) { return value; }
template <> DEVICE fp16 convert<fp16>(float value) {
    fp16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}
template <> DEVICE bf16 convert<bf16>(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}

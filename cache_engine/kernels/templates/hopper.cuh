// Hopper's own hardware (sm_90a), as the kernels see it: barriers in shared memory that count arrivals and bytes, copies
// of whole tiles by the copy engine (TMA), and products of tiles in shared memory by warp groups (wgmma).
//
// Sources: PTX ISA 9.2, 9.7.13.15 "mbarrier", 9.7.9.27 "Tensor copy", 9.7.15 "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions" with 9.7.15.5.1 "Shared Memory Matrix Layout", and "setmaxnreg", "elect.sync".

// A kernel of which a block has its SM alone: it may then divide all registers among its warp groups.
#define KERNEL_ALONE(threads) extern "C" __global__ void CLUSTERED __launch_bounds__(threads, 1)

struct alignas(64) TensorMap { unsigned char opaque[128]; };  // the driver's CUtensorMap

// Has the compiler forget what it knows of a number: what it computes from it, it computes again.
DEVICE void forget(int& number) { asm volatile("" : "+r"(number)); }

// ---- Barriers: by their addresses in shared memory, 8 bytes each --------------------------------------------------

DEVICE void barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// What this thread has written to shared memory, barriers included, is seen by the copy engine and by wgmma after it.
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives; the phase then also lasts until so many bytes have landed.
DEVICE void barrier_arrive_expecting(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Waits until the phase of this parity has ended: 0 is the first. Of parity 1, the one before the first has.
DEVICE void barrier_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// ---- Copies -------------------------------------------------------------------------------------------------------

// Starts copying a box of a tensor of three dimensions to shared memory; its bytes count for the barrier as they land.
// What lies outside of the tensor is 0 there.
DEVICE void copy_box(unsigned target, const TensorMap* map, int x, int y, int z, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

// Starts storing a box of shared memory to a tensor of three dimensions; what lies outside of the tensor is left out.
DEVICE void store_box(const TensorMap* map, int x, int y, int z, unsigned source) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :: "l"(map), "r"(x), "r"(y), "r"(z), "r"(source) : "memory");
}

// Ends a group of the boxes that this thread stores.
DEVICE void boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are still to be read from shared memory.
template <int PENDING>
DEVICE void boxes_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory"); }

// Waits until all of this thread's groups have been stored.
DEVICE void boxes_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- Warps --------------------------------------------------------------------------------------------------------

// True for one lane of a warp, always the same.
DEVICE bool is_elected() {
    unsigned elected;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected;
}

// Whether it is true of any lane of the warp.
DEVICE bool any_lane(bool value) { return __any_sync(0xffffffff, value); }

template <int REGISTERS>
DEVICE void shrink_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS)); }

template <int REGISTERS>
DEVICE void grow_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS)); }

// ---- Products -----------------------------------------------------------------------------------------------------

// A tile in shared memory, in lines of 128 bytes whose 16-byte chunks are permuted by an exclusive or with the line, as
// the copy engine leaves it. Tiles begin at multiples of 1024 bytes. Along k a line is a row or column, eight of them are
// 1024 bytes, and the distance of panels is not looked at. Across k a line has 64 rows or columns at one k; panels of
// those follow each other after `panel` bytes.
DEVICE unsigned long long matrix_at(unsigned address, unsigned panel) {
    constexpr unsigned long long SWIZZLE_128B = 1ull << 62, EIGHT_LINES = 1024ull >> 4 << 32;
    return SWIZZLE_128B | EIGHT_LINES | static_cast<unsigned long long>(panel >> 4) << 16 | (address & 0x3FFFF) >> 4;
}

DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING of the committed groups are still under way.
template <int PENDING>
DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }

// Keeps the compiler from reading sums before here: it knows of no products that are still to change them.
template <int COUNT>
DEVICE void products_ended(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i]));
}

#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define FOUR_SUMS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) FOUR_SUMS(i), FOUR_SUMS(i + 4), FOUR_SUMS(i + 8), FOUR_SUMS(i + 12)
#define SUMS_32 SUMS_16(0), SUMS_16(16)
#define SUMS_64 SUMS_32, SUMS_16(32), SUMS_16(48)
#define SUMS_128 SUMS_64, SUMS_16(64), SUMS_16(80), SUMS_16(96), SUMS_16(112)
#define NAMES_32 TEN() TEN(1) TEN(2) "%30, %31"
#define NAMES_64 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NAMES_128 NAMES_120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define NAMES_120 TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11)

// D(64 x N) = A(64 x k) * B(k x N), plus D if `adds`; k of 32 bytes. The tag chooses the type of A and B; TURNED, which of
// them are stored across k: wgmma takes 16-bit elements either way, others along k alone.
#define MULTIPLY_TILES(TYPE, KIND, N, COUNT, NAMES, SUMS, A, B, ADDS, TAIL, ...)                                       \
    template <bool A_TURNED, bool B_TURNED>                                                                            \
    DEVICE void multiply_tiles(TYPE, float (&d)[COUNT], unsigned long long a, unsigned long long b, bool adds) {       \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #N KIND " {" NAMES  \
                     "}, " A ", " B ", p, 1, 1" TAIL "; }"                                                              \
                     : SUMS : "l"(a), "l"(b), "r"(static_cast<int>(adds)) __VA_ARGS__);                                \
    }
#define TURNS , "n"(A_TURNED), "n"(B_TURNED)
#define MULTIPLY_HALVES(TYPE, KIND)                                                                                    \
    MULTIPLY_TILES(TYPE, KIND, 64, 32, NAMES_32, SUMS_32, "%32", "%33", "%34", ", %35, %36", TURNS)                    \
    MULTIPLY_TILES(TYPE, KIND, 128, 64, NAMES_64, SUMS_64, "%64", "%65", "%66", ", %67, %68", TURNS)                   \
    MULTIPLY_TILES(TYPE, KIND, 256, 128, NAMES_128, SUMS_128, "%128", "%129", "%130", ", %131, %132", TURNS)
#define MULTIPLY_OTHERS(TYPE, KIND)                                                                                    \
    MULTIPLY_TILES(TYPE, KIND, 64, 32, NAMES_32, SUMS_32, "%32", "%33", "%34", "")                                     \
    MULTIPLY_TILES(TYPE, KIND, 128, 64, NAMES_64, SUMS_64, "%64", "%65", "%66", "")                                    \
    MULTIPLY_TILES(TYPE, KIND, 256, 128, NAMES_128, SUMS_128, "%128", "%129", "%130", "")
MULTIPLY_HALVES(fp16, "k16.f32.f16.f16")
MULTIPLY_HALVES(bf16, "k16.f32.bf16.bf16")
MULTIPLY_OTHERS(e4m3, "k32.f32.e4m3.e4m3")
MULTIPLY_OTHERS(e5m2, "k32.f32.e5m2.e5m2")
MULTIPLY_OTHERS(tf32, "k8.f32.tf32.tf32")

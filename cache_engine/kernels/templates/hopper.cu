// C(m x n) = A(m x k) * B(k x n) on Hopper's tensor cores (sm_90a): inputs of 8, 16 and 32 bits, sums of fp32.
//
// A block stays on its SM and computes tiles of C, BLOCK_M x BLOCK_N each, one after the other. One warp group has
// the copy engine bring tiles of A and B into a ring of STAGES buffers; the others multiply them with wgmma, straight
// from there, and store C. Two barriers for each buffer hand it back and forth: `full` when both tiles have landed, `empty`
// when every warp has done with them. While C is stored, tiles of the next one are already on their way. Sums go to C
// through shared memory, so that lanes finish and store neighbours in a row. The copy engine
// fills edges with zeroes, and rounds fp32 to tf32; stores are masked; so every m, n and k is right whose rows are whole 16 bytes.
//
// Of fp8 with scales a tile is as deep as a block of them. wgmma sums its products apart; threads multiply these sums by
// their scales and add them to those of all k: DeepSeek-V3 Technical Report, 2024, section 3.3.2, and DeepGEMM's README of
// February 2025, "two-level accumulation (promotion)". For the reason see tile_product.cuh.
//
// Constants: BLOCK_M BLOCK_N BLOCK_K (128 bytes) WARPS_M WARPS_N (those that multiply) STAGES RASTER_ROWS A_TRANSPOSED (0)
// B_TRANSPOSED C_VECTOR (elements per store, 16 bytes at most), IN_TYPE SUM_TYPE OUT_TYPE KERNEL_NAME, and those of sizes.cuh,
// scales.cuh and epilogue.cuh.

#include "primitives.cuh"
#include "sizes.cuh"
#include "hopper.cuh"
#include "scales.cuh"
#include "epilogue.cuh"

constexpr int LINE_BYTES = 128;
constexpr int LINE = LINE_BYTES / sizeof(IN_TYPE);
static_assert(BLOCK_K == LINE, "a line of shared memory is as deep as a tile");
constexpr int GROUP = 128;  // threads
constexpr int GROUPS = WARPS_M * WARPS_N / 4;
constexpr int THREADS = (GROUPS + 1) * GROUP;
constexpr int MMA_K = 32 / sizeof(IN_TYPE);
constexpr int MMA_N = BLOCK_N / WARPS_N;
constexpr int MMA_ROWS = BLOCK_M / (WARPS_M * 16);  // of 64 rows, for each group

constexpr unsigned A_BYTES = BLOCK_M * LINE_BYTES;
constexpr unsigned B_BYTES = BLOCK_N * LINE_BYTES;
constexpr unsigned STAGE_BYTES = A_BYTES + B_BYTES;
constexpr unsigned PANEL_BYTES = BLOCK_K * LINE_BYTES;  // of a B that is stored across k: as many columns as a line has
constexpr bool B_TURNED = !B_TRANSPOSED;
static_assert(!A_TRANSPOSED, "A is stored along k");
static_assert(!B_TURNED || sizeof(IN_TYPE) == 2, "wgmma turns elements of 16 bits alone");

// What each warp that multiplies has of shared memory for its sums: 16 rows of 32 columns, and between rows what keeps
// those of four rows in different banks. Columns that a lane stores at a time make rows for the warp.
constexpr int STAGED = 32, STAGED_ROW = STAGED + 8, STAGED_ROWS = 16;
constexpr int LANES = STAGED / C_VECTOR;  // for a row
static_assert(C_VECTOR * sizeof(OUT_TYPE) <= 16 && STAGED_ROWS % C_VECTOR == 0, "lanes store whole rows");

// Of the 64 K registers that an SM has, one thread that starts copies needs few. Of two warp groups each has as many as a
// thread can use.
constexpr bool DIVIDES_REGISTERS = GROUPS > 1;
constexpr int COPYING_REGISTERS = 40, MULTIPLYING_REGISTERS = 232;
static_assert(GROUP * (COPYING_REGISTERS + GROUPS * MULTIPLYING_REGISTERS) <= 65536, "registers of a block");

DEVICE unsigned char* memory_of_block() {
    extern __shared__ __align__(1024) unsigned char tiles[];
    return tiles;
}

DEVICE unsigned ring() { return shared_address(memory_of_block()); }

DEVICE float* staged_sums(int warp) {
    return reinterpret_cast<float*>(memory_of_block() + STAGES * (STAGE_BYTES + 16)) + warp * STAGED_ROWS * STAGED_ROW;
}

// The buffer of the ring that comes next, and the parity of the phase that it is in.
struct Place {
    int buffer = 0;
    unsigned parity = 0;

    DEVICE void advance() {
        if (++buffer == STAGES) {
            buffer = 0;
            parity ^= 1;
        }
    }
    DEVICE unsigned tiles() const { return ring() + buffer * STAGE_BYTES; }
    DEVICE unsigned full() const { return ring() + STAGES * STAGE_BYTES + buffer * 8; }
    DEVICE unsigned empty() const { return full() + STAGES * 8; }
};

struct Tile { int row, column; };

// Consecutive tiles walk down RASTER_ROWS rows of tiles before they move one column on: those that are computed at one
// time share rows of A and columns of B in L2.
DEVICE Tile tile_of(unsigned index, Sizes sizes) {
    const unsigned rows = (sizes.m + BLOCK_M - 1) / BLOCK_M;
    const unsigned columns = (sizes.n + BLOCK_N - 1) / BLOCK_N;
    const unsigned band = index / (RASTER_ROWS * columns);
    const unsigned within = index - band * RASTER_ROWS * columns;
    const unsigned rows_left = rows - band * RASTER_ROWS;
    const unsigned band_rows = rows_left < RASTER_ROWS ? rows_left : RASTER_ROWS;
    return {static_cast<int>(band * RASTER_ROWS + within % band_rows) * BLOCK_M,
            static_cast<int>(within / band_rows) * BLOCK_N};
}

DEVICE unsigned tile_count(Sizes sizes) {
    return static_cast<unsigned>((sizes.m + BLOCK_M - 1) / BLOCK_M) * ((sizes.n + BLOCK_N - 1) / BLOCK_N);
}

// Copies a tile of B: in one box where it is stored along k, else in panels.
DEVICE void copy_b(unsigned target, const TensorMap* map, int column, int k, unsigned barrier) {
    if constexpr (B_TURNED) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / LINE; ++i) {
            copy_box(target + i * PANEL_BYTES, map, column + i * LINE, k, batch_index(), barrier);
        }
    } else {
        copy_box(target, map, k, column, batch_index(), barrier);
    }
}

DEVICE void copy_tiles(const TensorMap* a_map, const TensorMap* b_map, Sizes sizes) {
    Place place;
    for (unsigned index = block_index(); index < tile_count(sizes); index += block_count()) {
        const Tile tile = tile_of(index, sizes);
        for (int k = 0; k < sizes.k; k += BLOCK_K) {
            barrier_wait(place.empty(), place.parity ^ 1);
            barrier_arrive_expecting(place.full(), STAGE_BYTES);
            copy_box(place.tiles(), a_map, k, tile.row, batch_index(), place.full());
            copy_b(place.tiles() + A_BYTES, b_map, tile.column, k, place.full());
            place.advance();
        }
    }
}

// Starts the products of the two tiles in a buffer, or of ROWS times 64 rows of them, as one group.
template <int ROWS>
DEVICE void multiply_stage(float (&sums)[ROWS][MMA_N / 2], unsigned a, unsigned b, bool adds) {
    products_begin();
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += MMA_K) {
        // Along k 32 bytes further in the line; across k as many lines further.
        constexpr unsigned ALONG = sizeof(IN_TYPE), ACROSS = LINE_BYTES;
        const unsigned long long b_matrix = matrix_at(b + k * (B_TURNED ? ACROSS : ALONG), B_TURNED ? PANEL_BYTES : 16);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const unsigned long long a_matrix = matrix_at(a + i * 64 * LINE_BYTES + k * ALONG, 16);
            multiply_tiles<false, B_TURNED>(IN_TYPE{}, sums[i], a_matrix, b_matrix, adds || k > 0);
        }
    }
    products_commit();
}

// Sums the products of a tile.
DEVICE void sum_tile(float (&sums)[MMA_ROWS][MMA_N / 2], Place& place, unsigned a_offset, unsigned b_offset, int k_end) {
    const bool tells = thread_index() % 32 == 0;  // one lane of each warp
    unsigned last = 0;  // the barrier of the buffer whose products were started before
    for (int k = 0; k < k_end; k += BLOCK_K) {
        barrier_wait(place.full(), place.parity);
        multiply_stage(sums, place.tiles() + a_offset, place.tiles() + b_offset, k > 0);
        products_wait<1>();
        if (k > 0 && tells) barrier_arrive(last);
        last = place.empty();
        place.advance();
    }
    products_wait<0>();
    if (tells) barrier_arrive(last);
}

// Scales of operands, and the first row and column of C that a lane computes; where columns share a scale, a warp.
struct Scales {
    const SCALE_TYPE *a, *b;
    int row, column;
};

// The same with scales: products of 64 rows and one block of k at a time, while the other warp group starts others.
DEVICE void sum_scaled_tile(float (&sums)[MMA_ROWS][MMA_N / 2], Place& place, unsigned a_offset, unsigned b_offset,
                            const Scales& scales, Sizes sizes) {
#pragma unroll
    for (int i = 0; i < MMA_ROWS * MMA_N / 2; ++i) sums[i / (MMA_N / 2)][i % (MMA_N / 2)] = 0;
#pragma unroll 1
    for (int k = 0; k < sizes.k; k += BLOCK_K) {
        // Read ahead of tiles and products, which hide the wait for them.
        StepScales<MMA_ROWS, 64, MMA_N / 8> step;
        step.read_a(scales.a, scales.row, k, sizes);
        step.read_b(scales.b, scales.column, k, sizes);
        barrier_wait(place.full(), place.parity);
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) {
            float products[1][MMA_N / 2];
            multiply_stage(products, place.tiles() + a_offset + i * 64 * LINE_BYTES, place.tiles() + b_offset, false);
            products_wait<0>();
            if (i == MMA_ROWS - 1 && thread_index() % 32 == 0) barrier_arrive(place.empty());
#pragma unroll
            for (int j = 0; j < MMA_N / 2; ++j) {
                sums[i][j] = multiply_add(products[0][j], step.factor(i, j / 4, j % 4), sums[i][j]);
            }
        }
        place.advance();
    }
}

// Puts STAGED columns of sums into shared memory. Of each 16 x 8 part a lane holds two neighbours in row lane / 4 and two
// in the row eight below.
DEVICE void stage(float* staged, const float* sums, int lane) {
    float* own = staged + lane / 4 * STAGED_ROW + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < STAGED / 2; i += 2) {
        store_shared<float, 2>(own + i % 4 / 2 * 8 * STAGED_ROW + i / 4 * 8, Vector<float, 2>{sums[i], sums[i + 1]});
    }
}

// Finishes and stores what a warp has of a tile, from a row and column on. There is one loop over the parts that are
// staged, for the code of an epilogue, which may be long, to be there once.
DEVICE void store_tile(OUT_TYPE* c, const float (&sums)[MMA_ROWS][MMA_N / 2], float* staged, int row, int column,
                       Sizes sizes, const Epilogue& epilogue) {
    constexpr int ACROSS = MMA_N / STAGED;
    const int lane = thread_index() % 32;
    const float* own = staged + lane / LANES * STAGED_ROW + lane % LANES * C_VECTOR;
    row += lane / LANES;
    column += lane % LANES * C_VECTOR;
#pragma unroll 1
    for (int part = 0; part < MMA_ROWS * ACROSS; ++part) {
#pragma unroll
        for (int i = 0; i < MMA_ROWS * ACROSS; ++i) {  // registers cannot be indexed
            if (i == part) stage(staged, sums[i / ACROSS] + i % ACROSS * (STAGED / 2), lane);
        }
        sync_warp();
        const int across = column + part % ACROSS * STAGED;
        if (WHOLE_N || across < sizes.n) {
            const Vector<OUT_TYPE, C_VECTOR> bias = load_bias<C_VECTOR>(across, epilogue);
#pragma unroll 1
            for (int i = 0; i < STAGED_ROWS; i += C_VECTOR) {
                const int down = row + part / ACROSS * 64 + i;
                if (!WHOLE_M && down >= sizes.m) break;
                constexpr int READ = C_VECTOR < 4 ? C_VECTOR : 4;
                float values[C_VECTOR];
#pragma unroll
                for (int j = 0; j < C_VECTOR; j += READ) {
                    const Vector<float, READ> read = load_shared<float, READ>(own + i * STAGED_ROW + j);
#pragma unroll
                    for (int l = 0; l < READ; ++l) values[j + l] = read.at[l];
                }
                finish<C_VECTOR>(c + static_cast<long long>(down) * sizes.n + across, values, bias, epilogue);
            }
        }
        sync_warp();
    }
}

DEVICE void multiply_all(OUT_TYPE* c, const SCALE_TYPE* a_scales, const SCALE_TYPE* b_scales, Sizes sizes,
                         const Epilogue& epilogue) {
    const int warp = thread_index() / 32;
    const int lane = thread_index() % 32;
    const int group_row = warp / 4 / WARPS_N * (MMA_ROWS * 64);
    const int group_column = warp / 4 % WARPS_N * MMA_N;
    const unsigned a_offset = group_row * LINE_BYTES;
    const unsigned b_offset = A_BYTES + group_column * LINE_BYTES;
    const int first_row = group_row + warp % 4 * 16;
    const long long batch = batch_index();
    c += batch * sizes.m * sizes.n;
    a_scales += batch * sizes.m * scales_per_row(sizes.k);
    b_scales += batch * scale_rows_of_b(sizes.n) * scales_per_row(sizes.k);

    Place place;
    for (unsigned index = block_index(); index < tile_count(sizes); index += block_count()) {
        const Tile tile = tile_of(index, sizes);
        float sums[MMA_ROWS][MMA_N / 2];
        if constexpr (SCALED) {
            const int column = tile.column + group_column + (B_SCALE_COLUMNS == 1 ? lane % 4 * 2 : 0);
            const Scales scales = {a_scales, b_scales, tile.row + first_row + lane / 4, column};
            sum_scaled_tile(sums, place, a_offset, b_offset, scales, sizes);
        } else {
            sum_tile(sums, place, a_offset, b_offset, sizes.k);
        }
        store_tile(c, sums, staged_sums(warp), tile.row + first_row, tile.column + group_column, sizes, epilogue);
    }
}

#if SCALED
#define SCALE_PARAMETERS const SCALE_TYPE* a_scales, const SCALE_TYPE* b_scales,
#define SCALES a_scales, b_scales
#else
#define SCALE_PARAMETERS
#define SCALES nullptr, nullptr
#endif

KERNEL_ALONE(THREADS)
KERNEL_NAME(const IN_TYPE*, const IN_TYPE*, OUT_TYPE* c, SIZE_PARAMETERS, SCALE_PARAMETERS SUM_TYPE alpha, SUM_TYPE beta,
            const OUT_TYPE* bias, void*, const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map) {
    const Sizes sizes = SIZES;
    static_cast<void>(WHOLE_K);  // the copy engine fills what lies beyond k
    if (thread_index() == 0) {
        Place place;
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(place.full(), 1);
            barrier_init(place.empty(), WARPS_M * WARPS_N);
            place.advance();
        }
        fence_async();
    }
    sync_block();
    if (thread_index() >= GROUPS * GROUP) {
        if constexpr (DIVIDES_REGISTERS) shrink_registers<COPYING_REGISTERS>();
        if (thread_index() / 32 == GROUPS * 4 && is_elected()) copy_tiles(&a_map, &b_map, sizes);
    } else {
        if constexpr (DIVIDES_REGISTERS) grow_registers<MULTIPLYING_REGISTERS>();
        multiply_all(c, SCALES, sizes, {alpha, beta, bias});
    }
}

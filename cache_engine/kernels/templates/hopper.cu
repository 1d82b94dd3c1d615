// C(m x n) = A(m x k) * B(k x n) on Hopper's tensor cores (sm_90a): inputs of 8, 16 and 32 bits, sums of fp32.
//
// A block stays on its SM and computes tiles of C, BLOCK_M x BLOCK_N each, one after the other. One warp group has
// the copy engine bring tiles of A and B into a ring of STAGES buffers; the others multiply them with wgmma, straight
// from there, and store C. Two barriers for each buffer hand it back and forth: `full` when both tiles have landed, `empty`
// when every warp has done with them. While C is stored, tiles of the next one are already on their way. What is finished goes to C
// through shared memory, in boxes that the copy engine stores while the warp goes on; where rows of C are not whole 16 bytes,
// lanes store them. The copy engine fills edges with zeroes, stores nothing beyond them, and rounds fp32 to tf32; so every m, n
// and k is right for which rows of A and B are whole 16 bytes.
//
// Of fp8 with scales a tile is as deep as a block of them. wgmma sums its products apart; threads multiply these sums by
// their scales and add them to those of all k: DeepSeek-V3 Technical Report, 2024, section 3.3.2, and DeepGEMM's README of
// February 2025, "two-level accumulation (promotion)". For the reason see tile_product.cuh.
//
// Constants: BLOCK_M BLOCK_N BLOCK_K (128 bytes) WARPS_M WARPS_N (those that multiply) STAGES SPLIT_K CLUSTER (none: 1) RASTER_ROWS A_TRANSPOSED (0)
// B_TRANSPOSED C_VECTOR (elements that rows of C are whole groups of, 16 bytes at most) C_BOXED (1 where these are 16 bytes:
// there is a tensor map of C), IN_TYPE SUM_TYPE OUT_TYPE KERNEL_NAME, and those of sizes.cuh, scales.cuh and epilogue.cuh.

#include "primitives.cuh"
#include "sizes.cuh"
#include "hopper.cuh"
#include "hopper_cluster.cuh"
#include "scales.cuh"
#include "epilogue.cuh"

constexpr int LINE_BYTES = 128;
constexpr int LINE = LINE_BYTES / sizeof(IN_TYPE);
static_assert(BLOCK_K == LINE, "a line of shared memory is as deep as a tile");
constexpr int GROUP = 128;  // threads
constexpr int GROUPS = WARPS_M * WARPS_N / 4;
constexpr int THREADS = (GROUPS + 1) * GROUP;
#include "split_k.cuh"

constexpr int MMA_K = 32 / sizeof(IN_TYPE);
constexpr int MMA_N = BLOCK_N / WARPS_N;
constexpr int MMA_ROWS = BLOCK_M / (WARPS_M * 16);  // of 64 rows, for each group

constexpr unsigned A_BYTES = BLOCK_M * LINE_BYTES;
constexpr unsigned B_BYTES = BLOCK_N * LINE_BYTES;
constexpr unsigned STAGE_BYTES = A_BYTES + B_BYTES;
constexpr unsigned PANEL_BYTES = BLOCK_K * LINE_BYTES;  // of a B that is stored across k: as many columns as a line has
constexpr bool B_TURNED = !B_TRANSPOSED;
static_assert(!A_TRANSPOSED, "A is stored along k");
static_assert(BLOCK_N / (B_TURNED ? LINE : 8) % CLUSTER == 0, "blocks of a cluster copy equal parts of B");
static_assert(!B_TURNED || sizeof(IN_TYPE) == 2, "wgmma turns elements of 16 bits alone");

// What each warp that multiplies has of shared memory for its part of C: two boxes of 16 lines, one to be filled while the copy
// engine reads the other. Behind them are the barriers of the ring.
constexpr int WARPS = WARPS_M * WARPS_N;
constexpr int BOX_ROWS = 16, BOX_COLUMNS = LINE_BYTES / sizeof(OUT_TYPE);
constexpr unsigned BOX_BYTES = BOX_ROWS * LINE_BYTES;
constexpr unsigned BOXES = STAGES * STAGE_BYTES;
constexpr unsigned BARRIERS = BOXES + 2 * WARPS * BOX_BYTES;
// Columns that are finished at a time: GELU's long code is there for 8 sums of a lane, not for all of a box.
constexpr int PART_COLUMNS = ACTIVATION == 2 ? 16 : 32, PART_SUMS = PART_COLUMNS / 2;
static_assert(MMA_N % BOX_COLUMNS == 0 && BOX_COLUMNS % PART_COLUMNS == 0, "warps fill whole boxes");
static_assert(BOXES % (2 * BOX_BYTES) == 0, "of a warp's boxes one address has a bit more");

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

// An element of the boxes, by its place in shared memory; where that is in a box. The copy engine permutes 16-byte chunks of a line.
DEVICE OUT_TYPE* element_at(unsigned place) { return reinterpret_cast<OUT_TYPE*>(memory_of_block() + place); }

DEVICE unsigned place_in(unsigned box, int row, int column) {
    return box + row * LINE_BYTES + ((column * sizeof(OUT_TYPE)) ^ row % 8 * 16);
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
    DEVICE unsigned full() const { return ring() + BARRIERS + buffer * 8; }
    DEVICE unsigned empty() const { return full() + STAGES * 8; }
};

struct Tile { int row, column; };

// Consecutive tiles walk down RASTER_ROWS rows of tiles before they move one column on: those that are computed at one
// time share rows of A and columns of B in L2. Blocks of a cluster have tiles of the same columns; so there may be one beyond
// the last row.
DEVICE unsigned tile_rows(Sizes sizes) { return (sizes.m + BLOCK_M * CLUSTER - 1) / (BLOCK_M * CLUSTER) * CLUSTER; }

DEVICE Tile tile_of(unsigned index, Sizes sizes) {
    const unsigned rows = tile_rows(sizes);
    const unsigned columns = (sizes.n + BLOCK_N - 1) / BLOCK_N;
    const unsigned band = index / (RASTER_ROWS * columns);
    const unsigned within = index - band * RASTER_ROWS * columns;
    const unsigned rows_left = rows - band * RASTER_ROWS;
    const unsigned band_rows = rows_left < RASTER_ROWS ? rows_left : RASTER_ROWS;
    return {static_cast<int>(band * RASTER_ROWS + within % band_rows) * BLOCK_M,
            static_cast<int>(within / band_rows) * BLOCK_N};
}

DEVICE unsigned tile_count(Sizes sizes) {
    return tile_rows(sizes) * ((sizes.n + BLOCK_N - 1) / BLOCK_N);
}

// Copies a tile of B: in one box where it is stored along k, else in panels. In a cluster, this block's part of it.
DEVICE void copy_b(unsigned target, const TensorMap* map, int column, int k, unsigned barrier) {
    if constexpr (CLUSTER > 1 && B_TURNED) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / LINE / CLUSTER; ++i) {
            const int panel = i * CLUSTER + block_rank();
            copy_box_to_all(target + panel * PANEL_BYTES, map, column + panel * LINE, k, batch_index(), barrier);
        }
    } else if constexpr (CLUSTER > 1) {
        const unsigned part = block_rank();
        copy_box_to_all(target + part * (B_BYTES / CLUSTER), map, k, column + part * (BLOCK_N / CLUSTER), batch_index(),
                        barrier);
    } else if constexpr (B_TURNED) {
#pragma unroll
        for (int i = 0; i < BLOCK_N / LINE; ++i) {
            copy_box(target + i * PANEL_BYTES, map, column + i * LINE, k, batch_index(), barrier);
        }
    } else {
        copy_box(target, map, k, column, batch_index(), barrier);
    }
}

DEVICE void copy_tiles(const TensorMap* a_map, const TensorMap* b_map, Sizes sizes) {
    const Slice slice = slice_of_block(sizes.k);
    Place place;
    for (unsigned index = block_index(); index < tile_count(sizes); index += block_count()) {
        const Tile tile = tile_of(index, sizes);
        for (int k = slice.first; k < slice.end; k += BLOCK_K) {
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

DEVICE void clear(float (&sums)[MMA_ROWS][MMA_N / 2]) {
#pragma unroll
    for (int i = 0; i < MMA_ROWS * MMA_N / 2; ++i) sums[i / (MMA_N / 2)][i % (MMA_N / 2)] = 0;
}

// Sums the products of a tile.
DEVICE void sum_tile(float (&sums)[MMA_ROWS][MMA_N / 2], Place& place, unsigned a_offset, unsigned b_offset, Slice slice) {
    if constexpr (SPLIT_K > 1) clear(sums);  // a slice may be empty
    const bool arrives = gives_back();
    unsigned last = 0;  // the barrier of the buffer whose products were started before
    for (int k = slice.first; k < slice.end; k += BLOCK_K) {
        barrier_wait(place.full(), place.parity);
        multiply_stage(sums, place.tiles() + a_offset, place.tiles() + b_offset, k > slice.first);
        products_wait<1>();
        if (k > slice.first && arrives) give_back(last);
        last = place.empty();
        place.advance();
    }
    products_wait<0>();
#pragma unroll
    for (int i = 0; i < MMA_ROWS; ++i) products_ended(sums[i]);
    if (arrives && (SPLIT_K == 1 || slice.first < slice.end)) give_back(last);
}

// Scales of operands, and the first row and column of C that a lane computes; where columns share a scale, a warp.
struct Scales {
    const SCALE_TYPE *a, *b;
    int row, column;
};

// The same with scales: products of 64 rows and one block of k at a time, while the other warp group starts others.
DEVICE void sum_scaled_tile(float (&sums)[MMA_ROWS][MMA_N / 2], Place& place, unsigned a_offset, unsigned b_offset,
                            const Scales& scales, Slice slice, Sizes sizes) {
    clear(sums);
#pragma unroll 1
    for (int k = slice.first; k < slice.end; k += BLOCK_K) {
#ifndef N
        // Addresses of the scales of single columns, computed once for all of k, would take more registers than are left.
        forget(sizes.n);
        forget(sizes.k);
#endif
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
            products_ended(products[0]);
            if (i == MMA_ROWS - 1 && gives_back()) give_back(place.empty());
#pragma unroll
            for (int j = 0; j < MMA_N / 2; ++j) {
                sums[i][j] = multiply_add(products[0][j], step.factor(i, j / 4, j % 4), sums[i][j]);
            }
        }
        place.advance();
    }
}

#include "hopper_slices.cuh"

// Takes the sums of a part. Registers cannot be indexed, so each number is a branch of its own.
template <int NUMBER = 0>
DEVICE void choose(float (&chosen)[PART_SUMS], const float (&sums)[MMA_ROWS][MMA_N / 2], int number) {
    constexpr int ACROSS = MMA_N / PART_COLUMNS;
    if constexpr (NUMBER + 1 < MMA_ROWS * ACROSS) {
        if (number > NUMBER) return choose<NUMBER + 1>(chosen, sums, number);
    }
#pragma unroll
    for (int i = 0; i < PART_SUMS; ++i) chosen[i] = sums[NUMBER / ACROSS][NUMBER % ACROSS * PART_SUMS + i];
}

// Finishes PART_COLUMNS columns of sums, and puts them into a box from a column on. Of each 16 x 8 part of C a lane holds two
// neighbours in a row, and two in the row eight below. `row` and `column` say where the lane's first lie in C.
DEVICE void fill_box(unsigned box, int first, const float (&sums)[PART_SUMS], const OUT_TYPE* c, int row, int column,
                     Sizes sizes, const Epilogue& epilogue) {
    constexpr int PAIR = C_VECTOR < 2 ? 1 : 2;
    const int lane = thread_index() % 32;
    const unsigned own = place_in(box, lane / 4, first + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < PART_SUMS; i += PAIR) {
        const int aside = i / 4 * 8 + i % 2, below = i % 4 / 2 * 8;
        const bool is_inside = WHOLE_N || column + aside < sizes.n;
        Vector<OUT_TYPE, PAIR> bias = {}, before = {};
        if (is_inside) bias = load_bias<PAIR>(column + aside, epilogue);
        if (epilogue.adds_c() && is_inside && (WHOLE_M || row + below < sizes.m)) {
            before = load_global<OUT_TYPE, PAIR>(c + static_cast<long long>(row + below) * sizes.n + column + aside);
        }
        store_shared<OUT_TYPE, PAIR>(element_at((own ^ aside * sizeof(OUT_TYPE)) + below * LINE_BYTES),
                                     finished<PAIR>(&sums[i], before, bias, epilogue));
    }
}

// Has lanes store a box, C_VECTOR elements each.
DEVICE void store_lines(OUT_TYPE* c, unsigned box, int row, int column, Sizes sizes) {
    constexpr int LANES = BOX_COLUMNS / C_VECTOR;  // for a line
#pragma unroll 1
    for (int i = thread_index() % 32; i < BOX_ROWS * LANES; i += 32) {
        const int down = i / LANES, aside = i % LANES * C_VECTOR;
        if (row + down < sizes.m && column + aside < sizes.n) {
            store_global<OUT_TYPE, C_VECTOR>(c + static_cast<long long>(row + down) * sizes.n + column + aside,
                                             load_shared<OUT_TYPE, C_VECTOR>(element_at(place_in(box, down, aside))));
        }
    }
}

// Finishes and stores what a warp has of a tile, from a row and column on. There is one loop over the parts, for the code of an
// epilogue, which may be long, to be there once.
DEVICE void store_tile(OUT_TYPE* c, const TensorMap* c_map, const float (&sums)[MMA_ROWS][MMA_N / 2], unsigned& box, int row,
                       int column, Sizes sizes, const Epilogue& epilogue) {
    constexpr int ACROSS = MMA_N / BOX_COLUMNS, PARTS = BOX_COLUMNS / PART_COLUMNS;
    const int lane = thread_index() % 32;
    const bool is_storing = C_BOXED && is_elected();
#pragma unroll 1
    for (int i = 0; i < MMA_ROWS * ACROSS; ++i) {
        const int down = row + i / ACROSS * 64, across = column + i % ACROSS * BOX_COLUMNS;
        if constexpr (C_BOXED) {
            if (is_storing) boxes_wait_read<1>();  // what was in this box
            sync_warp();
        }
#pragma unroll 1
        for (int part = 0; part < PARTS; ++part) {
            float chosen[PART_SUMS];
            choose(chosen, sums, i * PARTS + part);
            const int first = part * PART_COLUMNS;
            fill_box(box, first, chosen, c, down + lane / 4, across + first + lane % 4 * 2, sizes, epilogue);
        }
        if constexpr (C_BOXED) {
            fence_async();
            sync_warp();
            if (is_storing) {
                store_box(c_map, across, down, batch_index(), ring() + box);
                boxes_commit();
            }
        } else {
            sync_warp();
            store_lines(c, box, down, across, sizes);
        }
        box ^= BOX_BYTES;
    }
}

DEVICE void multiply_all(OUT_TYPE* c, const TensorMap* c_map, const SCALE_TYPE* a_scales, const SCALE_TYPE* b_scales,
                         Sizes sizes, const Epilogue& epilogue, void* workspace) {
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

    const Slice slice = slice_of_block(sizes.k);
    Place place;
    unsigned box = BOXES + warp * 2 * BOX_BYTES;
    for (unsigned index = block_index(); index < tile_count(sizes); index += block_count()) {
        Tile tile = tile_of(index, sizes);
        const bool is_beyond = CLUSTER > 1 && tile.row >= sizes.m;  // this sums zeroes, and stores nothing
        if (is_beyond) tile.row = 0;  // which scales are read of
        float sums[MMA_ROWS][MMA_N / 2];
        if constexpr (SCALED) {
            const int column = tile.column + group_column + (B_SCALE_COLUMNS == 1 ? lane % 4 * 2 : 0);
            const Scales scales = {a_scales, b_scales, tile.row + first_row + lane / 4, column};
            sum_scaled_tile(sums, place, a_offset, b_offset, scales, slice, sizes);
        } else {
            sum_tile(sums, place, a_offset, b_offset, slice);
        }
        if (is_beyond || !sum_slices_of_warp(sums, workspace, index, sizes)) continue;
        store_tile(c, c_map, sums, box, tile.row + first_row, tile.column + group_column, sizes, epilogue);
    }
    if (C_BOXED && is_elected()) boxes_wait();
}

#if SCALED
#define SCALE_PARAMETERS const SCALE_TYPE* a_scales, const SCALE_TYPE* b_scales,
#define SCALES a_scales, b_scales
#else
#define SCALE_PARAMETERS
#define SCALES nullptr, nullptr
#endif

#if C_BOXED
#define C_MAP_PARAMETER , const __grid_constant__ TensorMap c_map
#define C_MAP &c_map
#else
#define C_MAP_PARAMETER
#define C_MAP nullptr
#endif

KERNEL_ALONE(THREADS)
KERNEL_NAME(const IN_TYPE*, const IN_TYPE*, OUT_TYPE* c, SIZE_PARAMETERS, SCALE_PARAMETERS SUM_TYPE alpha, SUM_TYPE beta,
            const OUT_TYPE* bias, void* workspace, const __grid_constant__ TensorMap a_map,
            const __grid_constant__ TensorMap b_map C_MAP_PARAMETER) {
    const Sizes sizes = SIZES;
    static_cast<void>(WHOLE_K);  // the copy engine fills what lies beyond k
    if (thread_index() == 0) {
        Place place;
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(place.full(), 1);
            barrier_init(place.empty(), WARPS * CLUSTER);
            place.advance();
        }
        fence_async();
        if constexpr (CLUSTER > 1) fence_barriers();
    }
    sync_all();
    if (thread_index() >= GROUPS * GROUP) {
        if constexpr (DIVIDES_REGISTERS) shrink_registers<COPYING_REGISTERS>();
        if (thread_index() / 32 == GROUPS * 4 && is_elected()) copy_tiles(&a_map, &b_map, sizes);
    } else {
        if constexpr (DIVIDES_REGISTERS) grow_registers<MULTIPLYING_REGISTERS>();
        multiply_all(c, C_MAP, SCALES, sizes, {alpha, beta, bias}, workspace);
    }
    if constexpr (CLUSTER > 1) sync_cluster();
}

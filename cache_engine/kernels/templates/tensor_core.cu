// C(m x n) = A(m x k) * B(k x n) on tensor cores: inputs of 8, 16 or 32 bits, sums of fp32 or int32.
//
// A block computes BLOCK_M x BLOCK_N of C. Tiles of A and B stream from global to shared memory through a ring of
// STAGES buffers (cp.async); each warp holds a (BLOCK_M / WARPS_M) x (BLOCK_N / WARPS_N) part of C in registers and
// feeds mma.sync from shared memory with ldmatrix. Edges are filled with zeroes on the way in and masked on the way
// out, so every m, n and k is right.
//
// Constants: BLOCK_M BLOCK_N BLOCK_K WARPS_M WARPS_N STAGES SPLIT_K RASTER_ROWS A_TRANSPOSED B_TRANSPOSED A_VECTOR
// B_VECTOR (elements per copy) C_VECTOR (elements per store, 1 or 2), IN_TYPE SUM_TYPE OUT_TYPE KERNEL_NAME, and those of
// sizes.cuh and epilogue.cuh.

#include "primitives.cuh"
#include "sizes.cuh"
#include "raster.cuh"
#include "split_k.cuh"
#include "epilogue.cuh"

constexpr int WARP_M = BLOCK_M / WARPS_M;
constexpr int WARP_N = BLOCK_N / WARPS_N;
constexpr int MMA_ROWS = WARP_M / 16;
constexpr int MMA_COLUMNS = WARP_N / 8;
constexpr int MMA_K = 32 / sizeof(IN_TYPE);
constexpr int CHUNK = 16 / sizeof(IN_TYPE);  // elements in the 16 bytes of one row of a matrix that ldmatrix reads

// A tile of 16-bit elements lies in shared memory as it lies in global memory: contiguous in k as stored "n" for A and
// "t" for B, else in m or n; ldmatrix turns it on the way. It cannot turn others, so those are turned on the way in and
// always lie contiguous in k. "Columns" is the contiguous direction.
constexpr bool TURNS = sizeof(IN_TYPE) == 2;
constexpr bool A_ALONG_K = !A_TRANSPOSED || !TURNS;
constexpr bool B_ALONG_K = B_TRANSPOSED || !TURNS;
constexpr int A_COLUMNS = A_ALONG_K ? BLOCK_K : BLOCK_M;
constexpr int B_COLUMNS = B_ALONG_K ? BLOCK_K : BLOCK_N;
constexpr int A_STAGE = BLOCK_M * BLOCK_K;
constexpr int B_STAGE = BLOCK_N * BLOCK_K;

// Offset of an element in a tile. 16-byte chunks are permuted within each 128 bytes by an exclusive or with the row,
// so that the eight rows ldmatrix reads at once lie in different banks.
template <int COLUMNS>
DEVICE int swizzled(int row, int column) {
    constexpr int CHUNKS = COLUMNS / CHUNK;
    constexpr int MASK = CHUNKS < 8 ? CHUNKS - 1 : 7;
    constexpr int ROWS_PER_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
    const int chunk = (column / CHUNK) ^ ((row / ROWS_PER_LINE) & MASK);
    return row * COLUMNS + chunk * CHUNK + column % CHUNK;
}

// Starts the copy of one tile whose first element is (first_row, first_column) of a rows x columns matrix, as it lies.
// With TURNED, rows of the matrix become columns of the tile, of which there are BLOCK_K. Rows or columns that are WHOLE
// are multiples of the tile's.
template <int ROWS, int COLUMNS, int VECTOR, bool TURNED, bool WHOLE_ROWS, bool WHOLE_COLUMNS>
DEVICE void load_tile(IN_TYPE* tile, const IN_TYPE* matrix, int first_row, int first_column, int rows, int columns) {
    constexpr int VECTORS_PER_ROW = COLUMNS / VECTOR;
    constexpr int VECTORS = ROWS * VECTORS_PER_ROW;
    // Narrow copies are many: fully unrolled, their addresses alone would need more registers than there are.
    constexpr int UNROLL = VECTOR * sizeof(IN_TYPE) == 16 && !TURNED ? 64 : 4;
#pragma unroll UNROLL
    for (int base = 0; base < VECTORS; base += THREADS) {
        const int index = base + thread_index();
        if (VECTORS % THREADS != 0 && index >= VECTORS) break;
        const int row = index / VECTORS_PER_ROW;
        const int column = index % VECTORS_PER_ROW * VECTOR;
        const bool valid =
            (WHOLE_ROWS || first_row + row < rows) && (WHOLE_COLUMNS || first_column + column < columns);
        const IN_TYPE* source =
            valid ? matrix + static_cast<long long>(first_row + row) * columns + first_column + column : matrix;
        // cp.async moves no less than four bytes, in one piece.
        if constexpr (TURNED && sizeof(IN_TYPE) == 4) {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                copy_async<4>(tile + swizzled<BLOCK_K>(column + i, row), valid ? source + i : source, valid);
            }
        } else if constexpr (TURNED || VECTOR * sizeof(IN_TYPE) < 4) {
            Vector<IN_TYPE, VECTOR> elements = {};
            if (valid) elements = load_global<IN_TYPE, VECTOR>(source);
            if constexpr (TURNED) {
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) {
                    store_shared<IN_TYPE, 1>(tile + swizzled<BLOCK_K>(column + i, row), {elements.at[i]});
                }
            } else {
                store_shared<IN_TYPE, VECTOR>(tile + swizzled<COLUMNS>(row, column), elements);
            }
        } else {
            copy_async<VECTOR * sizeof(IN_TYPE)>(tile + swizzled<COLUMNS>(row, column), source, valid);
        }
    }
}

DEVICE void load_stage(IN_TYPE* a_tile, IN_TYPE* b_tile, const IN_TYPE* a, const IN_TYPE* b, Tile tile, int k,
                       Sizes sizes) {
    if constexpr (A_TRANSPOSED) {
        load_tile<BLOCK_K, BLOCK_M, A_VECTOR, A_ALONG_K, WHOLE_K, WHOLE_M>(a_tile, a, k, tile.row, sizes.k, sizes.m);
    } else {
        load_tile<BLOCK_M, BLOCK_K, A_VECTOR, false, WHOLE_M, WHOLE_K>(a_tile, a, tile.row, k, sizes.m, sizes.k);
    }
    if constexpr (B_TRANSPOSED) {
        load_tile<BLOCK_N, BLOCK_K, B_VECTOR, false, WHOLE_N, WHOLE_K>(b_tile, b, tile.column, k, sizes.n, sizes.k);
    } else {
        load_tile<BLOCK_K, BLOCK_N, B_VECTOR, B_ALONG_K, WHOLE_K, WHOLE_N>(b_tile, b, k, tile.column, sizes.k, sizes.n);
    }
}

DEVICE void round_inputs(unsigned (&fragment)[4]) {
    if constexpr (sizeof(IN_TYPE) == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) fragment[i] = rounded_to_tf32(fragment[i]);
    }
}

// The 16 x MMA_K part of A at (row, k): four matrices in the order mma wants them: down the rows, then along k.
DEVICE void load_a(unsigned (&fragment)[4], const IN_TYPE* tile, int row, int k, int lane) {
    if constexpr (A_ALONG_K) {
        const int offset = swizzled<A_COLUMNS>(row + lane % 16, k + lane / 16 * CHUNK);
        load_matrix(fragment, tile + offset);
    } else {
        const int offset = swizzled<A_COLUMNS>(k + lane % 8 + lane / 16 * 8, row + lane / 8 % 2 * 8);
        load_matrix_transposed(fragment, tile + offset);
    }
    round_inputs(fragment);
}

// Two neighbouring MMA_K x 8 parts of B at (k, column): {0, 1} are the k halves of the left one, {2, 3} of the right.
DEVICE void load_b(unsigned (&fragment)[4], const IN_TYPE* tile, int column, int k, int lane) {
    if constexpr (B_ALONG_K) {
        const int offset = swizzled<B_COLUMNS>(column + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * CHUNK);
        load_matrix(fragment, tile + offset);
    } else {
        const int offset = swizzled<B_COLUMNS>(k + lane % 16, column + lane / 16 * 8);
        load_matrix_transposed(fragment, tile + offset);
    }
    round_inputs(fragment);
}

KERNEL(THREADS) KERNEL_NAME(const IN_TYPE* a, const IN_TYPE* b, OUT_TYPE* c, SIZE_PARAMETERS, SUM_TYPE alpha,
                            SUM_TYPE beta, const OUT_TYPE* bias, void* workspace) {
    const Sizes sizes = SIZES;
    const long long batch = batch_index();
    a += batch * sizes.m * sizes.k;
    b += batch * sizes.n * sizes.k;
    c += batch * sizes.m * sizes.n;

    IN_TYPE* a_ring = reinterpret_cast<IN_TYPE*>(shared_memory());
    IN_TYPE* b_ring = a_ring + STAGES * A_STAGE;
    const Tile tile = tile_of_block(sizes);
    const int lane = thread_index() % 32;
    const int warp = thread_index() / 32;
    const int warp_row = warp / WARPS_N * WARP_M;
    const int warp_column = warp % WARPS_N * WARP_N;

    SUM_TYPE accumulator[MMA_ROWS][MMA_COLUMNS][4] = {};
    const Slice slice = slice_of_block(sizes.k);

    // One group is committed per step whether or not it holds copies, so that the count given to wait_copies holds to
    // the end.
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < slice.tiles()) {
            const int k = slice.first + stage * BLOCK_K;
            load_stage(a_ring + stage * A_STAGE, b_ring + stage * B_STAGE, a, b, tile, k, sizes);
        }
        commit_copies();
    }

    for (int step = 0; step < slice.tiles(); ++step) {
        // After this barrier the tile of this step is complete for all threads, and all have finished reading the
        // buffer that the next load overwrites.
        wait_copies<STAGES - 2>();
        sync_block();

        const IN_TYPE* a_tile = a_ring + step % STAGES * A_STAGE;
        const IN_TYPE* b_tile = b_ring + step % STAGES * B_STAGE;
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += MMA_K) {
            unsigned a_fragment[MMA_ROWS][4];
            unsigned b_fragment[MMA_COLUMNS / 2][4];
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) load_a(a_fragment[i], a_tile, warp_row + i * 16, k, lane);
#pragma unroll
            for (int j = 0; j < MMA_COLUMNS / 2; ++j) load_b(b_fragment[j], b_tile, warp_column + j * 16, k, lane);
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < MMA_COLUMNS; ++j) {
                    multiply_accumulate(IN_TYPE{}, accumulator[i][j], a_fragment[i], b_fragment[j / 2][j % 2 * 2],
                                        b_fragment[j / 2][j % 2 * 2 + 1]);
                }
            }
            if (k > 0) continue;
            // Behind the first products, which the tensor cores are busy with while addresses are computed.
            const int ahead = step + STAGES - 1;
            if (ahead < slice.tiles()) {
                const int buffer = ahead % STAGES;
                const int k_ahead = slice.first + ahead * BLOCK_K;
                load_stage(a_ring + buffer * A_STAGE, b_ring + buffer * B_STAGE, a, b, tile, k_ahead, sizes);
            }
            commit_copies();
        }
    }

    if (!sum_slices<MMA_ROWS * MMA_COLUMNS * 4>(&accumulator[0][0][0], workspace)) return;
    const Epilogue epilogue = {alpha, beta, bias};

    // Each lane holds, of every 16 x 8 part, two neighbours in row lane / 4 and two in the row eight below.
    const int first_column = tile.column + warp_column + lane % 4 * 2;
    // The bias is read once, ahead of all stores: the compiler must assume that any of them changes it.
    Vector<OUT_TYPE, C_VECTOR> bias_pairs[MMA_COLUMNS][2 / C_VECTOR] = {};
#pragma unroll
    for (int j = 0; j < MMA_COLUMNS * 2; j += C_VECTOR) {
        const int column = first_column + j / 2 * 8 + j % 2;
        if (WHOLE_N || column < sizes.n) bias_pairs[j / 2][j % 2] = load_bias<C_VECTOR>(column, epilogue);
    }
#pragma unroll
    for (int i = 0; i < MMA_ROWS * 2; ++i) {
        const int row = tile.row + warp_row + i * 8 + lane / 4;
        if (!WHOLE_M && row >= sizes.m) return;
        OUT_TYPE* target = c + static_cast<long long>(row) * sizes.n + first_column;
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS * 2; j += C_VECTOR) {
            const int offset = j / 2 * 8 + j % 2;
            if (!WHOLE_N && first_column + offset >= sizes.n) break;
            const SUM_TYPE* sums = &accumulator[i / 2][j / 2][i % 2 * 2 + j % 2];
            finish<C_VECTOR>(target + offset, sums, bias_pairs[j / 2][j % 2], epilogue);
        }
    }
}

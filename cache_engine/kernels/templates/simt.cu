// C(m x n) = A(m x k) * B(k x n) on the ordinary arithmetic units: sums of fp32, fp64 or int32, fused multiply-add.
//
// A block computes BLOCK_M x BLOCK_N of C. Tiles of A and B are read from global memory into registers one step ahead,
// then laid down in one of two shared buffers, widened to the type of the sums, with k as the slow direction. A warp's
// 32 lanes stand 4 x 8 over its part of C; each lane takes vectors of 16 bytes, interleaved across the warp, so that
// shared reads are conflict free. Edges are filled with zeroes on the way in and masked on the way out.
//
// Constants: BLOCK_M BLOCK_N BLOCK_K WARPS_M WARPS_N SPLIT_K RASTER_ROWS A_TRANSPOSED B_TRANSPOSED A_VECTOR B_VECTOR
// (elements per read) C_VECTOR (elements per store, 1 or those of 16 bytes of sums), IN_TYPE SUM_TYPE OUT_TYPE
// KERNEL_NAME, and those of sizes.cuh and epilogue.cuh.

#include "primitives.cuh"
#include "sizes.cuh"
#include "raster.cuh"
#include "split_k.cuh"
#include "epilogue.cuh"

constexpr int LANES_M = 4;
constexpr int LANES_N = 8;
constexpr int WARP_M = BLOCK_M / WARPS_M;
constexpr int WARP_N = BLOCK_N / WARPS_N;
constexpr int VECTOR = 16 / sizeof(SUM_TYPE);
constexpr int THREAD_M = WARP_M / LANES_M;
constexpr int THREAD_N = WARP_N / LANES_N;
// Steps of k at a time. Of all of a tile's, the compiler reads so many fragments of fp64 ahead that it spills.
constexpr int UNROLLED = sizeof(SUM_TYPE) == 8 ? 2 : BLOCK_K;

// Rows of a shared tile are padded by one vector: the transposing stores would else meet in the same banks.
constexpr int A_STRIDE = BLOCK_M + VECTOR;
constexpr int B_STRIDE = BLOCK_N + VECTOR;
constexpr int A_BUFFER = BLOCK_K * A_STRIDE;
constexpr int B_BUFFER = BLOCK_K * B_STRIDE;

// One operand's tile: SPAN rows of C's m or n, BLOCK_K deep. K_CONTIGUOUS tells how it lies in global memory; in shared
// memory k is always the slow direction, with rows of STRIDE elements. WHOLE tells that no tile reaches beyond m or n.
template <int SPAN, int STRIDE, bool K_CONTIGUOUS, int WIDTH, bool WHOLE>
struct TileReader {
    static constexpr int COLUMNS = K_CONTIGUOUS ? BLOCK_K : SPAN;
    static constexpr int PIECES_PER_ROW = COLUMNS / WIDTH;
    static constexpr int PIECES = SPAN * BLOCK_K / WIDTH;
    static constexpr int PIECES_PER_THREAD = (PIECES + THREADS - 1) / THREADS;
    static constexpr bool WHOLE_ROWS = K_CONTIGUOUS ? WHOLE : WHOLE_K;
    static constexpr bool WHOLE_COLUMNS = K_CONTIGUOUS ? WHOLE_K : WHOLE;

    // A thread's pieces are constant distances apart: rows are whole numbers of threads, or threads of rows.
    static constexpr bool IN_STEP = THREADS % PIECES_PER_ROW == 0 || PIECES_PER_ROW % THREADS == 0;

    Vector<IN_TYPE, WIDTH> held[PIECES_PER_THREAD];

    // Where a piece lies in the tile. The sums show the compiler that distances are constant: of the quotient of a sum it
    // computes an address for each piece, for which registers are too few.
    DEVICE static int row_of(int piece) {
        const int first = piece * THREADS, thread = thread_index();
        return IN_STEP ? first / PIECES_PER_ROW + thread / PIECES_PER_ROW : (first + thread) / PIECES_PER_ROW;
    }
    DEVICE static int column_of(int piece) {
        const int first = piece * THREADS, thread = thread_index();
        return (IN_STEP ? first % PIECES_PER_ROW + thread % PIECES_PER_ROW : (first + thread) % PIECES_PER_ROW) * WIDTH;
    }
    DEVICE static bool has(int piece) { return PIECES % THREADS == 0 || piece * THREADS + thread_index() < PIECES; }

    // first and extent run along m or n, depth along k.
    DEVICE void read(const IN_TYPE* matrix, int first, int extent, int k, int depth) {
        const int rows = K_CONTIGUOUS ? extent : depth;
        const int columns = K_CONTIGUOUS ? depth : extent;
        const int own_row = (K_CONTIGUOUS ? first : k) + row_of(0);
        const int own_column = (K_CONTIGUOUS ? k : first) + column_of(0);
        matrix += static_cast<long long>(own_row) * columns + own_column;
#pragma unroll
        for (int piece = 0; piece < PIECES_PER_THREAD; ++piece) {
            const int down = row_of(piece) - row_of(0), aside = column_of(piece) - column_of(0);
            const int row = own_row + down, column = own_column + aside;
            held[piece] = {};
            if (has(piece) && (WHOLE_ROWS || row < rows) && (WHOLE_COLUMNS || column < columns)) {
                held[piece] = load_global<IN_TYPE, WIDTH>(matrix + static_cast<long long>(down) * columns + aside);
            }
        }
    }

    DEVICE void lay_down(SUM_TYPE* tile) const {
#pragma unroll
        for (int piece = 0; piece < PIECES_PER_THREAD; ++piece) {
            if (!has(piece)) break;
            const int row = row_of(piece), column = column_of(piece);
            Vector<SUM_TYPE, WIDTH> wide;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) wide.at[i] = widen(held[piece].at[i]);
            if constexpr (K_CONTIGUOUS) {
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) {
                    store_shared<SUM_TYPE, 1>(tile + (column + i) * STRIDE + row, {wide.at[i]});
                }
            } else {
                store_shared<SUM_TYPE, WIDTH>(tile + row * STRIDE + column, wide);
            }
        }
    }
};

// COUNT elements of one row of a shared tile: vectors, LANES vectors apart.
template <int COUNT, int LANES>
DEVICE void load_fragment(SUM_TYPE (&fragment)[COUNT], const SUM_TYPE* row, int lane) {
#pragma unroll
    for (int i = 0; i < COUNT; i += VECTOR) {
        const Vector<SUM_TYPE, VECTOR> part = load_shared<SUM_TYPE, VECTOR>(row + i * LANES + lane * VECTOR);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) fragment[i + j] = part.at[j];
    }
}

DEVICE void store_row(OUT_TYPE* c, int row, int column, Sizes sizes, const SUM_TYPE* sums, const Epilogue& epilogue) {
    if (!WHOLE_M && row >= sizes.m) return;
    OUT_TYPE* target = c + static_cast<long long>(row) * sizes.n + column;
    if constexpr (C_VECTOR == VECTOR) {
        if (WHOLE_N || column < sizes.n) finish<VECTOR>(target, sums, load_bias<VECTOR>(column, epilogue), epilogue);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            if (column + i < sizes.n) finish<1>(target + i, sums + i, load_bias<1>(column + i, epilogue), epilogue);
        }
    }
}

KERNEL(THREADS) KERNEL_NAME(const IN_TYPE* a, const IN_TYPE* b, OUT_TYPE* c, SIZE_PARAMETERS, SUM_TYPE alpha,
                            SUM_TYPE beta, const OUT_TYPE* bias, void* workspace) {
    const Sizes sizes = SIZES;
    const long long batch = batch_index();
    a += batch * sizes.m * sizes.k;
    b += batch * sizes.n * sizes.k;
    c += batch * sizes.m * sizes.n;

    SUM_TYPE* a_buffers = reinterpret_cast<SUM_TYPE*>(shared_memory());
    SUM_TYPE* b_buffers = a_buffers + 2 * A_BUFFER;
    const Tile tile = tile_of_block(sizes);
    const int lane = thread_index() % 32;
    const int warp = thread_index() / 32;
    const int lane_m = lane / LANES_N;
    const int lane_n = lane % LANES_N;
    const int warp_row = warp / WARPS_N * WARP_M;
    const int warp_column = warp % WARPS_N * WARP_N;

    TileReader<BLOCK_M, A_STRIDE, !A_TRANSPOSED, A_VECTOR, WHOLE_M> a_reader;
    TileReader<BLOCK_N, B_STRIDE, B_TRANSPOSED, B_VECTOR, WHOLE_N> b_reader;
    SUM_TYPE accumulator[THREAD_M][THREAD_N] = {};
    const Slice slice = slice_of_block(sizes.k);

    // An empty slice begins behind the last of k, where nothing may be read: it reads the first tile, and does not use it.
    const int first = SPLIT_K == 1 || slice.tiles() > 0 ? slice.first : 0;
    a_reader.read(a, tile.row, sizes.m, first, sizes.k);
    b_reader.read(b, tile.column, sizes.n, first, sizes.k);
    a_reader.lay_down(a_buffers);
    b_reader.lay_down(b_buffers);
    sync_block();

    for (int step = 0; step < slice.tiles(); ++step) {
        if (step + 1 < slice.tiles()) {
            const int k = slice.first + (step + 1) * BLOCK_K;
            a_reader.read(a, tile.row, sizes.m, k, sizes.k);
            b_reader.read(b, tile.column, sizes.n, k, sizes.k);
        }
        const SUM_TYPE* a_tile = a_buffers + step % 2 * A_BUFFER + warp_row;
        const SUM_TYPE* b_tile = b_buffers + step % 2 * B_BUFFER + warp_column;
#pragma unroll UNROLLED
        for (int k = 0; k < BLOCK_K; ++k) {
            SUM_TYPE a_fragment[THREAD_M];
            SUM_TYPE b_fragment[THREAD_N];
            load_fragment<THREAD_M, LANES_M>(a_fragment, a_tile + k * A_STRIDE, lane_m);
            load_fragment<THREAD_N, LANES_N>(b_fragment, b_tile + k * B_STRIDE, lane_n);
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) {
                    accumulator[i][j] = multiply_add(a_fragment[i], b_fragment[j], accumulator[i][j]);
                }
            }
        }
        if (step + 1 < slice.tiles()) {
            // The other buffer was last read in the step before, which the barrier below has closed.
            a_reader.lay_down(a_buffers + (step + 1) % 2 * A_BUFFER);
            b_reader.lay_down(b_buffers + (step + 1) % 2 * B_BUFFER);
            sync_block();
        }
    }

    if (!sum_slices<THREAD_M * THREAD_N>(&accumulator[0][0], workspace)) return;
    const Epilogue epilogue = {alpha, beta, bias};
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const int row = tile.row + warp_row + i / VECTOR * VECTOR * LANES_M + lane_m * VECTOR + i % VECTOR;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += VECTOR) {
            const int column = tile.column + warp_column + j * LANES_N + lane_n * VECTOR;
            store_row(c, row, column, sizes, &accumulator[i][j], epilogue);
        }
    }
}

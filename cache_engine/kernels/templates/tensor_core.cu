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

#include "warp_tiles.cuh"
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

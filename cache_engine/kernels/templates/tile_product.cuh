// One tile of C, from A and B to its place.
//
// Tiles of A and B stream from global to shared memory through a ring of STAGES buffers (cp.async); each warp holds a
// (BLOCK_M / WARPS_M) x (BLOCK_N / WARPS_N) part of C in registers and feeds mma.sync from shared memory with ldmatrix.
// Edges are filled with zeroes on the way in and masked on the way out, so every m, n and k is right.
//
// Where operands have scales, sums of 128 products are multiplied by theirs and added up in fp32 outside of the tensor
// cores. These may keep fewer bits than fp32 has: an H100's keep 14 of sums of fp8 (DeepSeek-V3 Technical Report, 2024,
// section 3.3.2, from which the scheme is).

constexpr int SUMS = MMA_ROWS * MMA_COLUMNS * 4;

struct TileProduct {
    CopiesOfA a_copies;
    CopiesOfB b_copies;
    const SCALE_TYPE *a_scales, *b_scales;
    Tile tile;
    Slice slice;
    Sizes sizes;
    IN_TYPE *a_ring, *b_ring;
    int lane, warp_row, warp_column;

    DEVICE TileProduct(const IN_TYPE* a, const IN_TYPE* b, const SCALE_TYPE* a_scales, const SCALE_TYPE* b_scales,
                       Tile tile, Slice slice, Sizes sizes)
        : a_copies(copies_of_a(a, tile, slice.first, sizes)), b_copies(copies_of_b(b, tile, slice.first, sizes)),
          a_scales(a_scales), b_scales(b_scales), tile(tile), slice(slice), sizes(sizes) {
        a_ring = reinterpret_cast<IN_TYPE*>(shared_memory());
        b_ring = a_ring + STAGES * A_STAGE;
        lane = thread_index() % 32;
        const int warp = thread_index() / 32;
        warp_row = warp / WARPS_N * WARP_M;
        warp_column = warp % WARPS_N * WARP_N;
    }

    // Starts the copies of a step, whose turn it is, into a buffer.
    DEVICE void load(int step, int buffer) {
        // One group is committed per step whether or not it holds copies, so that the count given to wait_copies holds
        // to the end.
        if (step < slice.tiles()) {
            a_copies.start(a_ring + buffer * A_STAGE);
            b_copies.start(b_ring + buffer * B_STAGE);
        }
        commit_copies();
    }

    // Adds the products of a step, whose tiles are in a buffer, and starts the copies of a later one behind the first of
    // them: the tensor cores are busy with these while addresses are computed.
    DEVICE void multiply(SUM_TYPE (&sums)[MMA_ROWS][MMA_COLUMNS][4], int step, int buffer, int free_buffer) {
        const IN_TYPE* a_tile = a_ring + buffer * A_STAGE;
        const IN_TYPE* b_tile = b_ring + buffer * B_STAGE;
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += MMA_K) {
            unsigned a_fragment[MMA_ROWS][4];
            unsigned b_fragment[MMA_COLUMNS / 2][4];
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) load_a(a_fragment[i], a_tile, warp_row, i, k, lane);
#pragma unroll
            for (int j = 0; j < MMA_COLUMNS / 2; ++j) load_b(b_fragment[j], b_tile, warp_column, j, k, lane);
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < MMA_COLUMNS; ++j) {
                    multiply_accumulate(IN_TYPE{}, sums[i][j], a_fragment[i], b_fragment[j / 2][j % 2 * 2],
                                        b_fragment[j / 2][j % 2 * 2 + 1]);
                }
            }
            if (k == 0) load(step + STAGES - 1, free_buffer);
        }
    }

    DEVICE void sum(SUM_TYPE (&sums)[MMA_ROWS][MMA_COLUMNS][4]) {
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; ++stage) load(stage, stage);
        int buffer = 0, free_buffer = STAGES - 1;
#pragma unroll 1
        for (int step = 0; step < slice.tiles(); ++step) {
            // After this barrier the tile of this step is complete for all threads, and all have finished reading the
            // buffer that the next load overwrites.
            wait_copies<STAGES - 2>();
            sync_block();
            if constexpr (SCALED) {
                // A step is one block of scales. They are read ahead of its products, which hide the wait for them;
                // those of single columns are too many for the registers until the products are done.
                const int k = slice.first + step * BLOCK_K;
                const int column = tile.column + warp_column;
                StepScales<MMA_ROWS, 16, MMA_COLUMNS> scales;
                scales.read_a(a_scales, tile.row + warp_row + lane / 4, k, sizes);
                if constexpr (B_SCALE_COLUMNS > 1) scales.read_b(b_scales, column, k, sizes);
                SUM_TYPE partial[MMA_ROWS][MMA_COLUMNS][4] = {};
                multiply(partial, step, buffer, free_buffer);
                if constexpr (B_SCALE_COLUMNS == 1) scales.read_b(b_scales, column + lane % 4 * 2, k, sizes);
#pragma unroll
                for (int at = 0; at < SUMS; ++at) {
                    const int i = at / 4 / MMA_COLUMNS, j = at / 4 % MMA_COLUMNS, c = at % 4;
                    const SUM_TYPE factor = scales.factor(i, j, c);
                    sums[i][j][c] = multiply_add(partial[i][j][c], factor, sums[i][j][c]);
                }
            } else {
                multiply(sums, step, buffer, free_buffer);
            }
            free_buffer = buffer;
            buffer = buffer == STAGES - 1 ? 0 : buffer + 1;
        }
    }

    // Finishes the tile; c begins with the row that tiles are counted from. All boxes go through one loop, so that a long
    // epilogue is compiled once. They lie where the tiles of A and B did.
    DEVICE void store(OUT_TYPE* c, const SUM_TYPE (&sums)[MMA_ROWS][MMA_COLUMNS][4], const Epilogue& epilogue) {
        constexpr int LANES = BOX_COLUMNS / C_VECTOR, ROWS = 32 / LANES;  // for a row of a box, and rows at a time
        SUM_TYPE* box = reinterpret_cast<SUM_TYPE*>(shared_memory()) + thread_index() / 32 * BOX;
        const int own_row = lane / LANES, own_column = lane % LANES * C_VECTOR;
        sync_block();  // other warps may still read there
#pragma unroll 1
        for (int across = 0; across < WARP_N / BOX_COLUMNS; ++across) {
            const int row = tile.row + warp_row + own_row;
            const int column = tile.column + warp_column + across * BOX_COLUMNS + own_column;
            const bool is_inside = WHOLE_N || column < sizes.n;
            OUT_TYPE* own_c = c + static_cast<long long>(row) * sizes.n + column;
            Vector<OUT_TYPE, C_VECTOR> bias = {};
            if (is_inside) bias = load_bias<C_VECTOR>(column, epilogue);
#pragma unroll 1
            for (int down = 0; down < WARP_M; down += BOX_ROWS) {
                Vector<OUT_TYPE, C_VECTOR> before[BOX_ROWS / ROWS] = {};
#pragma unroll
                for (int i = 0; i < BOX_ROWS; i += ROWS) {
                    if (epilogue.adds_c() && is_inside && (WHOLE_M || row + down + i < sizes.m)) {
                        const OUT_TYPE* source = own_c + static_cast<long long>(down + i) * sizes.n;
                        before[i / ROWS] = load_global<OUT_TYPE, C_VECTOR>(source);
                    }
                }
                fill_box(box, sums, (across * WARP_M + down) / BOX_ROWS, lane);
                sync_warp();
#pragma unroll
                for (int i = 0; i < BOX_ROWS; i += ROWS) {
                    SUM_TYPE own[C_VECTOR];
                    read_box(own, box, own_row + i, own_column);
                    const auto result = finished<C_VECTOR>(own, before[i / ROWS], bias, epilogue);
                    if (is_inside && (WHOLE_M || row + down + i < sizes.m)) {
                        store_global<OUT_TYPE, C_VECTOR>(own_c + static_cast<long long>(down + i) * sizes.n, result);
                    }
                }
                sync_warp();
            }
        }
    }
};

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

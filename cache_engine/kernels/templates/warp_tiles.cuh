constexpr int WARP_M = BLOCK_M / WARPS_M;
constexpr int WARP_N = BLOCK_N / WARPS_N;
constexpr int MMA_ROWS = WARP_M / 16;
constexpr int MMA_COLUMNS = WARP_N / 8;
constexpr int MMA_K = 32 / sizeof(IN_TYPE);
constexpr int CHUNK = 16 / sizeof(IN_TYPE);  // elements in the 16 bytes of one row of a matrix that ldmatrix reads

// A tile lies in shared memory as it lies in global memory: contiguous in k as stored "n" for A and "t" for B, else in m or
// n, and turned on the way to the registers: 16-bit elements by ldmatrix, 32-bit ones by reading each. Those of 8 bits
// are turned on the way in and always lie contiguous in k. "Columns" is the contiguous direction.
constexpr bool TURNS = sizeof(IN_TYPE) > 1;
enum Order { ALONG_K, ACROSS_K, TURNED_ALONG_K };
constexpr Order A_ORDER = !A_TRANSPOSED ? ALONG_K : TURNS ? ACROSS_K : TURNED_ALONG_K;
constexpr Order B_ORDER = B_TRANSPOSED ? ALONG_K : TURNS ? ACROSS_K : TURNED_ALONG_K;
constexpr int A_COLUMNS = A_ORDER == ACROSS_K ? BLOCK_M : BLOCK_K;
constexpr int B_COLUMNS = B_ORDER == ACROSS_K ? BLOCK_N : BLOCK_K;
constexpr int A_STAGE = BLOCK_M * BLOCK_K;
constexpr int B_STAGE = BLOCK_N * BLOCK_K;

// Rows of a tile of which a warp reads a part at once: a chunk of each (ldmatrix), or, of 32-bit elements that do not lie along
// k, two chunks.
template <Order ORDER>
constexpr int ROWS_AT_ONCE = sizeof(IN_TYPE) == 4 && ORDER == ACROSS_K ? 4 : 8;

// Offset of an element in a tile. 16-byte chunks are permuted within each 128 bytes by an exclusive or with the row, so
// that what a warp reads at once lies in different banks; of a tile that is turned, what it writes at once too: 16 bytes
// of each fourth row, for which rows that share 128 bytes are permuted together.
template <int COLUMNS, Order ORDER>
DEVICE int swizzled(int row, int column) {
    constexpr int CHUNKS = COLUMNS / CHUNK;
    constexpr int MASK = CHUNKS < 8 ? CHUNKS - 1 : 7;
    constexpr int ROWS_PER_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
    if constexpr (ORDER == TURNED_ALONG_K) {
        const int line = row / ROWS_PER_LINE;
        const int chunk = (row % ROWS_PER_LINE * CHUNKS + column / CHUNK) ^ ((line ^ row / 16) & 7);
        return line * ROWS_PER_LINE * COLUMNS + chunk * CHUNK + column % CHUNK;
    }
    const int chunk = (column / CHUNK) ^ ((row / ROWS_PER_LINE * (8 / ROWS_AT_ONCE<ORDER>)) & MASK);
    return row * COLUMNS + chunk * CHUNK + column % CHUNK;
}

#include "odd_rows.cuh"

// The copies of one operand's tiles into the ring, each BLOCK_K further along k than the one before. What does not change
// from tile to tile is computed once: addresses would else be most of the loop's instructions.
//
// A tile lies as the matrix does, rows x columns; where it is turned, rows of the matrix become columns of the tile, of which
// there are BLOCK_K. Rows or columns that are WHOLE are multiples of the tile's.
template <int ROWS, int COLUMNS, int VECTOR, Order ORDER, bool WHOLE_ROWS, bool WHOLE_COLUMNS>
struct Copies {
    static constexpr bool TURNED = ORDER == TURNED_ALONG_K;
    static constexpr int PER_ROW = COLUMNS / VECTOR;
    static constexpr int RUNS = 0;  // that a thread prefetches
    static constexpr int COUNT = (ROWS * PER_ROW + THREADS - 1) / THREADS;  // of a thread
    static constexpr int STRIDE = THREADS / PER_ROW;  // rows from one of the thread's to its next, where it has one column
    // As many rows further as are read at once, a row is permuted in the same way: a thread's copies differ by constants.
    static constexpr bool REGULAR = !TURNED && VECTOR * sizeof(IN_TYPE) >= 4 && THREADS % PER_ROW == 0 &&
                                    STRIDE % ROWS_AT_ONCE<ORDER> == 0;

    const IN_TYPE* next;  // the first element of the next tile, or, where REGULAR, of the thread's part of it
    int rows_left, columns_left;  // from there to the ends of the matrix
    int columns;
    bool is_first;  // next is the first element of the matrix

    DEVICE Copies(const IN_TYPE* matrix, int first_row, int first_column, int rows, int columns)
        : columns(columns), is_first(first_row == 0 && first_column == 0) {
        if constexpr (REGULAR) {
            first_row += thread_index() / PER_ROW;
            first_column += thread_index() % PER_ROW * VECTOR;
        }
        next = matrix + static_cast<long long>(first_row) * columns + first_column;
        rows_left = rows - first_row;
        columns_left = columns - first_column;
    }

    // Starts those of the next tile.
    DEVICE void start(IN_TYPE* tile) {
        if constexpr (REGULAR) {
            start_regular(tile);
        } else if constexpr (TURNED) {
            start_turned(tile);
        } else {
            start_each(tile);
        }
        next += ORDER == ALONG_K ? BLOCK_K : static_cast<long long>(BLOCK_K) * columns;
        (ORDER == ALONG_K ? columns_left : rows_left) -= BLOCK_K;
        is_first = false;
    }

    DEVICE void start_regular(IN_TYPE* tile) {
        const int first_row = thread_index() / PER_ROW;
        IN_TYPE* target = tile + swizzled<COLUMNS, ORDER>(first_row, thread_index() % PER_ROW * VECTOR);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int row = i * STRIDE;
            if (ROWS % STRIDE != 0 && first_row + row >= ROWS) break;
            const bool valid = (WHOLE_ROWS || row < rows_left) && (WHOLE_COLUMNS || columns_left > 0);
            copy_async<VECTOR * sizeof(IN_TYPE)>(target + row * COLUMNS, next + static_cast<long long>(row) * columns, valid);
        }
    }

    // Four rows of four bytes at once, turned in registers. A warp reads whole sectors of 32 bytes, of sixteen rows, and each
    // of its stores fills 16 bytes of eight.
    DEVICE void start_turned(IN_TYPE* tile) {
        constexpr int ACROSS = COLUMNS < 32 ? COLUMNS / 4 : 8, SQUARES = ROWS * COLUMNS / 16;
#pragma unroll 2
        for (int base = 0; base < SQUARES; base += THREADS) {
            const int index = base + thread_index();
            if (SQUARES % THREADS != 0 && index >= SQUARES) break;
            const int row = (index / COLUMNS * 4 + index / ACROSS % 4) * 4;
            const int column = (index / (ACROSS * 4) * ACROSS + index % ACROSS) * 4 % COLUMNS;
            const IN_TYPE* source = next + static_cast<long long>(row) * columns + column;
            unsigned read[4] = {};
            if constexpr (VECTOR < 4) {
                const OddSquare square = {source, rows_left - row, columns_left - column, columns};
                square.read(read, is_first && row == 0 && column == 0);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const bool valid = (WHOLE_ROWS || row + i < rows_left) && (WHOLE_COLUMNS || column < columns_left);
                    if (valid) read[i] = load_global<unsigned, 1>(reinterpret_cast<const unsigned*>(source)).at[0];
                    source += columns;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned low = chosen_bytes(read[0], read[1], i | (i + 4) << 4);
                const unsigned high = chosen_bytes(read[2], read[3], i | (i + 4) << 4);
                auto* target = reinterpret_cast<unsigned*>(tile + swizzled<BLOCK_K, ORDER>(column + i, row));
                store_shared<unsigned, 1>(target, {chosen_bytes(low, high, 0x5410)});
            }
        }
    }

    DEVICE void start_each(IN_TYPE* tile) {
        // Narrow copies are many: fully unrolled, their addresses alone would need more registers than there are.
        constexpr int UNROLL = VECTOR * sizeof(IN_TYPE) == 16 ? 64 : 4;
#pragma unroll UNROLL
        for (int base = 0; base < ROWS * PER_ROW; base += THREADS) {
            const int index = base + thread_index();
            if (ROWS * PER_ROW % THREADS != 0 && index >= ROWS * PER_ROW) break;
            const int row = index / PER_ROW;
            const int column = index % PER_ROW * VECTOR;
            const bool valid = (WHOLE_ROWS || row < rows_left) && (WHOLE_COLUMNS || column < columns_left);
            const IN_TYPE* source = next + static_cast<long long>(row) * columns + column;
            // cp.async moves no less than four bytes, in one piece.
            if constexpr (VECTOR * sizeof(IN_TYPE) < 4) {
                Vector<IN_TYPE, VECTOR> elements = {};
                if (valid) elements = load_global<IN_TYPE, VECTOR>(source);
                store_shared<IN_TYPE, VECTOR>(tile + swizzled<COLUMNS, ORDER>(row, column), elements);
            } else {
                copy_async<VECTOR * sizeof(IN_TYPE)>(tile + swizzled<COLUMNS, ORDER>(row, column), source, valid);
            }
        }
    }
};

template <int ROWS, int COLUMNS, int VECTOR, Order ORDER, bool WHOLE_ROWS, bool WHOLE_COLUMNS>
using CopiesOf = typename Either<VECTOR * sizeof(IN_TYPE) < 4 && ORDER != TURNED_ALONG_K &&
                                     OddCopies<ROWS, COLUMNS, ORDER, WHOLE_ROWS>::FIT,
                                 Copies<ROWS, COLUMNS, VECTOR, ORDER, WHOLE_ROWS, WHOLE_COLUMNS>,
                                 OddCopies<ROWS, COLUMNS, ORDER, WHOLE_ROWS>>::type;

// A is m x k, or as stored "t" k x m; B n x k, or as stored "n" k x n.
using CopiesOfA = CopiesOf<A_TRANSPOSED ? BLOCK_K : BLOCK_M, A_TRANSPOSED ? BLOCK_M : BLOCK_K, A_VECTOR, A_ORDER,
                           A_TRANSPOSED ? WHOLE_K : WHOLE_M, A_TRANSPOSED ? WHOLE_M : WHOLE_K>;
using CopiesOfB = CopiesOf<B_TRANSPOSED ? BLOCK_N : BLOCK_K, B_TRANSPOSED ? BLOCK_K : BLOCK_N, B_VECTOR, B_ORDER,
                           B_TRANSPOSED ? WHOLE_N : WHOLE_K, B_TRANSPOSED ? WHOLE_K : WHOLE_N>;

DEVICE CopiesOfA copies_of_a(const IN_TYPE* a, Tile tile, int k, Sizes sizes) {
    if constexpr (A_TRANSPOSED) return {a, k, tile.row, sizes.k, sizes.m};
    return {a, tile.row, k, sizes.m, sizes.k};
}

DEVICE CopiesOfB copies_of_b(const IN_TYPE* b, Tile tile, int k, Sizes sizes) {
    if constexpr (B_TRANSPOSED) return {b, tile.column, k, sizes.n, sizes.k};
    return {b, k, tile.column, sizes.k, sizes.n};
}

DEVICE void round_inputs(unsigned (&fragment)[4]) {
    if constexpr (sizeof(IN_TYPE) == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) fragment[i] = rounded_to_tf32(fragment[i]);
    }
}

// What ldmatrix would give of four matrices of 8 x 4 elements of 32 bits, could it turn them: a part of 16 columns of a tile
// that does not lie along k, counted from one, by two times four of k.
template <int COLUMNS, bool OF_A>
DEVICE void load_turned(unsigned (&fragment)[4], const IN_TYPE* tile, int column, int part, int k, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        // Two parts further a row is permuted in the same way.
        const int first = swizzled<COLUMNS, ACROSS_K>(lane % 4, column + part % 2 * 16 + half * 8 + lane / 4) + part / 2 * 32;
#pragma unroll
        for (int depth = 0; depth < 2; ++depth) {
            const IN_TYPE* source = tile + first + (k + depth * 4) * COLUMNS;
            const unsigned bits = load_shared<unsigned, 1>(reinterpret_cast<const unsigned*>(source)).at[0];
            fragment[OF_A ? half + depth * 2 : half * 2 + depth] = bits;
        }
    }
}

// Part i of 16 x MMA_K of A, counted from a row, at k: four matrices in the order mma wants them: down the rows, then along
// k. Parts are whole eights of rows apart, so that along k their addresses differ by constants, if rows are not turned.
DEVICE void load_a(unsigned (&fragment)[4], const IN_TYPE* tile, int row, int i, int k, int lane) {
    if constexpr (A_ORDER == TURNED_ALONG_K) {
        load_matrix(fragment, tile + swizzled<A_COLUMNS, A_ORDER>(row + i * 16 + lane % 16, k + lane / 16 * CHUNK));
    } else if constexpr (A_ORDER == ALONG_K) {
        const int offset = swizzled<A_COLUMNS, A_ORDER>(row + lane % 16, k + lane / 16 * CHUNK);
        load_matrix(fragment, tile + offset + i * 16 * A_COLUMNS);
    } else if constexpr (sizeof(IN_TYPE) == 4) {
        load_turned<A_COLUMNS, true>(fragment, tile, row, i, k, lane);
    } else {
        const int offset = swizzled<A_COLUMNS, A_ORDER>(lane % 8 + lane / 16 * 8, row + i * 16 + lane / 8 % 2 * 8);
        load_matrix_transposed(fragment, tile + offset + k * A_COLUMNS);
    }
}

// Parts 2j and 2j + 1 of MMA_K x 8 of B, counted from a column, at k: {0, 1} are the k halves of the left one, {2, 3} of the
// right.
DEVICE void load_b(unsigned (&fragment)[4], const IN_TYPE* tile, int column, int j, int k, int lane) {
    const int across = lane % 8 + lane / 16 * 8, along = lane / 8 % 2 * CHUNK;
    if constexpr (B_ORDER == TURNED_ALONG_K) {
        load_matrix(fragment, tile + swizzled<B_COLUMNS, B_ORDER>(column + j * 16 + across, k + along));
    } else if constexpr (B_ORDER == ALONG_K) {
        const int offset = swizzled<B_COLUMNS, B_ORDER>(column + across, k + along);
        load_matrix(fragment, tile + offset + j * 16 * B_COLUMNS);
    } else if constexpr (sizeof(IN_TYPE) == 4) {
        load_turned<B_COLUMNS, false>(fragment, tile, column, j, k, lane);
    } else {
        const int offset = swizzled<B_COLUMNS, B_ORDER>(lane % 16, column + j * 16 + lane / 16 * 8);
        load_matrix_transposed(fragment, tile + offset + k * B_COLUMNS);
    }
}

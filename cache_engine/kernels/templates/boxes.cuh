// How a warp's sums get to the lanes that store them.
//
// mma leaves four lanes a row of eight sums: of bf16 that is 16 bytes of C, and memory is written in sectors of 32. So a warp
// puts its sums into shared memory, one box of them at a time, and each lane takes those of up to 16 bytes of C from there.

constexpr int BOX_COLUMNS = WARP_N < 32 ? WARP_N : 32;
// GELU's long code is there for 8 sums of a lane, not for 16.
constexpr int BOX_ROWS = ACTIVATION == 2 && BOX_COLUMNS == 32 ? 8 : 16;
constexpr int BOX = BOX_ROWS * BOX_COLUMNS;

// Offset of a sum in a box. Runs of four are permuted within a row: lanes that write two neighbours, to four rows at once,
// lie in different banks, and so do lanes that read eight, of two rows at once.
DEVICE int place_in_box(int row, int column) {
    const int run = column / 4 ^ ((row % 4 * 2 + row % 2) & (BOX_COLUMNS / 4 - 1));
    return row * BOX_COLUMNS + run * 4 + column % 4;
}

// Puts the sums of a box there. Boxes are counted down the rows; registers cannot be indexed, so each number is a branch.
template <int NUMBER = 0>
DEVICE void fill_box(SUM_TYPE* box, const SUM_TYPE (&sums)[MMA_ROWS][MMA_COLUMNS][4], int number, int lane) {
    if constexpr (NUMBER + 1 < WARP_M * WARP_N / BOX) {
        if (number > NUMBER) return fill_box<NUMBER + 1>(box, sums, number, lane);
    }
    constexpr int DOWN = NUMBER % (WARP_M / BOX_ROWS) * BOX_ROWS / 8, ACROSS = NUMBER / (WARP_M / BOX_ROWS) * BOX_COLUMNS / 8;
    const int own = place_in_box(lane / 4, lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < BOX_ROWS / 8; ++i) {
#pragma unroll
        for (int j = 0; j < BOX_COLUMNS / 8; ++j) {
            const SUM_TYPE* pair = &sums[(DOWN + i) / 2][ACROSS + j][(DOWN + i) % 2 * 2];
            store_shared<SUM_TYPE, 2>(box + (own ^ j * 8) + i * 8 * BOX_COLUMNS, {pair[0], pair[1]});
        }
    }
}

// Reads COUNT neighbours of row + further; column is a multiple of COUNT. Rows four apart have the same permutation.
template <int COUNT>
DEVICE void read_box(SUM_TYPE (&taken)[COUNT], const SUM_TYPE* box, int row, int further, int column) {
    constexpr int RUN = COUNT < 4 ? COUNT : 4;
    const int place = place_in_box(row + further % 4, column);
#pragma unroll
    for (int i = 0; i < COUNT; i += RUN) {
        const SUM_TYPE* source = box + (place ^ i) + further / 4 * 4 * BOX_COLUMNS;
        const Vector<SUM_TYPE, RUN> part = load_shared<SUM_TYPE, RUN>(source);
#pragma unroll
        for (int j = 0; j < RUN; ++j) taken[i + j] = part.at[j];
    }
}

// How large a block is, and which tile of C it computes.
//
// Blocks are numbered along x alone (y and z are limited to 65 535). Consecutive blocks walk down RASTER_ROWS rows of
// tiles before they move one column on, so that blocks running together share rows of A and columns of B in L2.

constexpr int THREADS = 32 * WARPS_M * WARPS_N;

struct Tile { int row, column; };

DEVICE Tile tile_of_block(Sizes sizes) {
    if constexpr (M_MOST <= BLOCK_M) return {0, static_cast<int>(block_index()) * BLOCK_N};
    const unsigned rows = (sizes.m + BLOCK_M - 1) / BLOCK_M;
    const unsigned columns = (sizes.n + BLOCK_N - 1) / BLOCK_N;
    constexpr bool ONE_BAND = M_MOST <= RASTER_ROWS * BLOCK_M;
    const unsigned band = ONE_BAND ? 0 : block_index() / (RASTER_ROWS * columns);
    const unsigned within = block_index() - band * RASTER_ROWS * columns;
    const unsigned rows_left = rows - band * RASTER_ROWS;
    const unsigned band_rows = rows_left < RASTER_ROWS ? rows_left : RASTER_ROWS;
    const unsigned row = band * RASTER_ROWS + within % band_rows;
    const unsigned column = within / band_rows;
    return {static_cast<int>(row) * BLOCK_M, static_cast<int>(column) * BLOCK_N};
}

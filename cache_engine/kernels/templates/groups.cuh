// Groups of rows, each multiplied by a B of its own; how many rows each has is read from the device.
//
// Constants: MASKED: 0, groups lie one behind the other in one A and one C of m rows; 1, each has an A and a C of its own,
// with room for m rows. A count below 0 counts as 0; one that reaches beyond m, or beyond what groups before it have left,
// is cut off. So no count has anything read or written outside of the operands.

// Tiles of all groups are numbered one group after the other. A block computes every block_count()-th of them, and walks
// through the groups once.
struct GroupWalk {
    const int* counts;
    int groups, m;
    unsigned columns;  // of tiles
    int group, rows;  // the group that the walk is at, and its rows
    int first_row;  // in its A and C
    long long first_tile, tiles;  // of the group: the number of its first, and how many

    DEVICE GroupWalk(const int* counts, int groups, Sizes sizes)
        : counts(counts), groups(groups), m(sizes.m), columns((sizes.n + BLOCK_N - 1) / BLOCK_N), group(0), rows(0),
          first_row(0), first_tile(0), tiles(0) {
        if (groups > 0) enter();
    }

    DEVICE void enter() {
        const int count = load_global<int, 1>(counts + group).at[0];
        const int most = MASKED ? m : m - first_row;
        rows = count < 0 ? 0 : count < most ? count : most;
        tiles = static_cast<long long>((rows + BLOCK_M - 1) / BLOCK_M) * columns;
    }

    // Goes on to the group that has a tile; whether there is one.
    DEVICE bool find(long long tile) {
        while (group < groups && tile >= first_tile + tiles) {
            first_tile += tiles;
            if (!MASKED) first_row += rows;
            if (++group < groups) enter();
        }
        return group < groups;
    }

    // Where a tile lies in its group, in the order of raster.cuh.
    DEVICE Tile place(long long tile) const {
        const unsigned index = static_cast<unsigned>(tile - first_tile);
        const unsigned rows_of_tiles = (rows + BLOCK_M - 1) / BLOCK_M;
        const unsigned band = index / (RASTER_ROWS * columns);
        const unsigned within = index - band * RASTER_ROWS * columns;
        const unsigned rows_left = rows_of_tiles - band * RASTER_ROWS;
        const unsigned band_rows = rows_left < RASTER_ROWS ? rows_left : RASTER_ROWS;
        const unsigned row = band * RASTER_ROWS + within % band_rows;
        return {static_cast<int>(row) * BLOCK_M, static_cast<int>(within / band_rows) * BLOCK_N};
    }

    // The row of A and C, counted over all of their matrices, that the group begins with.
    DEVICE long long origin() const { return MASKED ? static_cast<long long>(group) * m : first_row; }
};

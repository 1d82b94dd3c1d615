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

// Odd rows are prefetched for a whole step if registers are left for their words and two blocks still fit in the 65,536
// registers of an SM, else for one MMA_K at a time.
constexpr int RUNS_AHEAD = CopiesOfA::RUNS + CopiesOfB::RUNS;
constexpr int REGISTERS = SUMS + MMA_ROWS * 4 + MMA_COLUMNS * 2 + RUNS_AHEAD * (RUN_WORDS + 1) + 40;  // estimated
constexpr bool AT_ONCE = REGISTERS <= 168 && REGISTERS * THREADS * 2 <= 65536;
constexpr int PART_K = AT_ONCE ? BLOCK_K : MMA_K;

// A warp's part of A and B, MMA_K deep, in the layout of mma's operands.
struct Fragments {
    unsigned a[MMA_ROWS][4];
    unsigned b[MMA_COLUMNS / 2][4];

    // For tf32. Called before the products, not after the reads: otherwise the compiler truncates again the fragments
    // that one step hands to the next.
    DEVICE void round() {
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) round_inputs(a[i]);
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS / 2; ++j) round_inputs(b[j]);
    }
};

// Double-buffered fragments: each is read one MMA_K ahead, across steps too. Not with odd rows: the words that these
// prefetch need the registers.
constexpr bool FRAGMENTS_AHEAD = RUNS_AHEAD == 0;
// How many steps ahead copies start. With double-buffered fragments it is one more, because a step's own buffer is free
// before its last products.
constexpr int STEPS_AHEAD = FRAGMENTS_AHEAD ? STAGES : STAGES - 1;

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

    // Starts the copies of a step into a buffer; steps come in order. In the loop, Ahead copies odd rows instead.
    template <bool IN_LOOP>
    DEVICE void load(int step, int buffer) {
        // One group is committed per step whether or not it holds copies, so that the count given to wait_copies holds
        // to the end.
        if (step < slice.tiles()) {
            if constexpr (!IN_LOOP || CopiesOfA::RUNS == 0) a_copies.start(a_ring + buffer * A_STAGE);
            if constexpr (!IN_LOOP || CopiesOfB::RUNS == 0) b_copies.start(b_ring + buffer * B_STAGE);
        }
        commit_copies();
    }

    // Waits until all threads have finished the copies of all started steps but the last STEPS, and have finished reading
    // the buffer that the next load overwrites.
    template <int STEPS>
    DEVICE void meet() {
        wait_copies<STEPS>();
        sync_block();
    }

    // Reads the warp's fragments at k from the tiles in a buffer.
    DEVICE void read(Fragments& fragments, int buffer, int k) const {
#pragma unroll
        for (int i = 0; i < MMA_ROWS; ++i) load_a(fragments.a[i], a_ring + buffer * A_STAGE, warp_row, i, k, lane);
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS / 2; ++j) {
            load_b(fragments.b[j], b_ring + buffer * B_STAGE, warp_column, j, k, lane);
        }
    }

    // Adds the products of a step, whose tiles are in a buffer. It starts the copies of a later step after products, so
    // that the tensor cores are busy while addresses are computed. With double-buffered fragments they are busy during
    // the barrier too: it comes before the last products, when the whole buffer has been read.
    DEVICE void multiply(SUM_TYPE (&sums)[MMA_ROWS][MMA_COLUMNS][4], Fragments& fragments, int step, int buffer,
                         int next_buffer, int free_buffer) {
        Ahead<CopiesOfA, CopiesOfA::RUNS ? PART_K : 0> a_ahead;
        Ahead<CopiesOfB, CopiesOfB::RUNS ? PART_K : 0> b_ahead;
        const bool is_more = step + STEPS_AHEAD < slice.tiles();
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += MMA_K) {
            const bool is_last = k + MMA_K == BLOCK_K;
            if constexpr (!FRAGMENTS_AHEAD) {
                read(fragments, buffer, k);
            } else if (is_last) {
                meet<STAGES - 2>();
            }
            fragments.round();
            Fragments next;
            if constexpr (FRAGMENTS_AHEAD) read(next, is_last ? next_buffer : buffer, is_last ? 0 : k + MMA_K);
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < MMA_COLUMNS; ++j) {
                    multiply_accumulate(IN_TYPE{}, sums[i][j], fragments.a[i], fragments.b[j / 2][j % 2 * 2],
                                        fragments.b[j / 2][j % 2 * 2 + 1]);
                }
                if (i == 0 && is_more) {
                    a_ahead.read(a_copies, k);
                    b_ahead.read(b_copies, k);
                }
            }
            if constexpr (FRAGMENTS_AHEAD) fragments = next;
            if (FRAGMENTS_AHEAD ? is_last : k == 0) load<true>(step + STEPS_AHEAD, free_buffer);
            if (is_more) {
                a_ahead.store(a_copies, a_ring + free_buffer * A_STAGE, k);
                b_ahead.store(b_copies, b_ring + free_buffer * B_STAGE, k);
            }
        }
    }

    DEVICE void sum(SUM_TYPE (&sums)[MMA_ROWS][MMA_COLUMNS][4]) {
#pragma unroll 1
        for (int stage = 0; stage < STEPS_AHEAD; ++stage) load<false>(stage, stage);
        Fragments fragments;
        if constexpr (FRAGMENTS_AHEAD) {
            if (slice.tiles() == 0) return;
            meet<STAGES - 1>();
            read(fragments, 0, 0);
        }
        int buffer = 0, free_buffer = FRAGMENTS_AHEAD ? 0 : STAGES - 1;
#pragma unroll 1
        for (int step = 0; step < slice.tiles(); ++step) {
            if constexpr (!FRAGMENTS_AHEAD) meet<STAGES - 2>();
            int next_buffer = buffer == STAGES - 1 ? 0 : buffer + 1;
            // Nothing uses the fragments that the last step reads ahead: it reads its own buffer again.
            if (FRAGMENTS_AHEAD && step + 1 == slice.tiles()) next_buffer = buffer;
            if constexpr (SCALED) {
                // A step is one block of scales. They are read ahead of its products, which hide the wait for them;
                // those of single columns are too many for the registers until the products are done.
                const int k = slice.first + step * BLOCK_K;
                const int column = tile.column + warp_column;
                StepScales<MMA_ROWS, 16, MMA_COLUMNS> scales;
                scales.read_a(a_scales, tile.row + warp_row + lane / 4, k, sizes);
                if constexpr (B_SCALE_COLUMNS > 1) scales.read_b(b_scales, column, k, sizes);
                SUM_TYPE partial[MMA_ROWS][MMA_COLUMNS][4] = {};
                multiply(partial, fragments, step, buffer, next_buffer, free_buffer);
                if constexpr (B_SCALE_COLUMNS == 1) scales.read_b(b_scales, column + lane % 4 * 2, k, sizes);
#pragma unroll
                for (int at = 0; at < SUMS; ++at) {
                    const int i = at / 4 / MMA_COLUMNS, j = at / 4 % MMA_COLUMNS, c = at % 4;
                    const SUM_TYPE factor = scales.factor(i, j, c);
                    sums[i][j][c] = multiply_add(partial[i][j][c], factor, sums[i][j][c]);
                }
            } else {
                multiply(sums, fragments, step, buffer, next_buffer, free_buffer);
            }
            free_buffer = FRAGMENTS_AHEAD ? next_buffer : buffer;
            buffer = next_buffer;
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
            const int column = tile.column + warp_column + across * BOX_COLUMNS + own_column;
            const bool is_inside = WHOLE_N || column < sizes.n;
            int row = tile.row + warp_row + own_row;
            OUT_TYPE* own_c = c + static_cast<long long>(row) * sizes.n + column;
            Vector<OUT_TYPE, C_VECTOR> bias = {};
            if (is_inside) bias = load_bias<C_VECTOR>(column, epilogue);
#pragma unroll 1
            for (int down = 0; down < WARP_M; down += BOX_ROWS) {
                Vector<OUT_TYPE, C_VECTOR> before[BOX_ROWS / ROWS] = {};
#pragma unroll
                for (int i = 0; i < BOX_ROWS; i += ROWS) {
                    if (epilogue.adds_c() && is_inside && (WHOLE_M || row + i < sizes.m)) {
                        const OUT_TYPE* source = own_c + static_cast<long long>(i) * sizes.n;
                        before[i / ROWS] = load_global<OUT_TYPE, C_VECTOR>(source);
                    }
                }
                fill_box(box, sums, (across * WARP_M + down) / BOX_ROWS, lane);
                sync_warp();
#pragma unroll
                for (int i = 0; i < BOX_ROWS; i += ROWS) {
                    SUM_TYPE own[C_VECTOR];
                    read_box(own, box, own_row, i, own_column);
                    const auto result = finished<C_VECTOR>(own, before[i / ROWS], bias, epilogue);
                    if (is_inside && (WHOLE_M || row + i < sizes.m)) {
                        store_global<OUT_TYPE, C_VECTOR>(own_c + static_cast<long long>(i) * sizes.n, result);
                    }
                }
                row += BOX_ROWS;
                own_c += static_cast<long long>(BOX_ROWS) * sizes.n;
                sync_warp();
            }
        }
    }
};

// Split-k where threads of a block have no barrier in common, as some of them only start copies: the scheme of split_k.cuh
// for each warp by itself. So the workspace begins with a counter for each warp of a tile.

// Adds up what the SPLIT_K warps at one place of a tile hold; whether this one is to store it.
DEVICE bool sum_slices_of_warp(float (&sums)[MMA_ROWS][MMA_N / 2], void* workspace, unsigned index, Sizes sizes) {
    if constexpr (SPLIT_K > 1) {
        constexpr int COLUMNS = MMA_N / 2, COUNT = MMA_ROWS * COLUMNS;
        constexpr int FOUR = 4, APART = WARPS * 32 * FOUR;  // sums that are moved at once, and those of all threads
        constexpr int ALIGNED = 64;  // counters before the sums begin, a multiple of it: 256 bytes
        const long long tiles = static_cast<long long>(tile_count(sizes)) * batch_count();
        const long long tile = static_cast<long long>(batch_index()) * tile_count(sizes) + index;
        unsigned* counters = static_cast<unsigned*>(workspace);
        float* slices = reinterpret_cast<float*>(counters + (tiles * WARPS + ALIGNED - 1) / ALIGNED * ALIGNED);
        slices += tile * SPLIT_K * (COUNT / FOUR * APART) + thread_index() * FOUR;
        float* own = slices + static_cast<long long>(slice_index()) * (COUNT / FOUR * APART);
#pragma unroll
        for (int i = 0; i < COUNT; i += FOUR) {
            const float* four = &sums[i / COLUMNS][i % COLUMNS];
            store_global<float, FOUR>(own + i / FOUR * APART, {four[0], four[1], four[2], four[3]});
        }
        fence();
        sync_warp();
        unsigned* counter = counters + tile * WARPS + thread_index() / 32;
        const bool counts = thread_index() % 32 == 0;
        bool is_last = false;
        if (counts) is_last = count_up(counter) == SPLIT_K - 1;
        is_last = any_lane(is_last);
        sync_warp();
        if (!is_last) return false;
        fence();
        if (counts) store_global<unsigned, 1>(counter, {0u});
        clear(sums);
#pragma unroll 1
        for (int slice = 0; slice < SPLIT_K; ++slice) {
#pragma unroll
            for (int i = 0; i < COUNT; i += FOUR) {
                const Vector<float, FOUR> read = load_global<float, FOUR>(slices + i / FOUR * APART);
#pragma unroll
                for (int j = 0; j < FOUR; ++j) sums[i / COLUMNS][i % COLUMNS + j] += read.at[j];
            }
            slices += COUNT / FOUR * APART;
        }
    }
    return true;
}

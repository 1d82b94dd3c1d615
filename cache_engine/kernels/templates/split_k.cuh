// Split-k: SPLIT_K blocks share a tile of C, each summing a slice of k, so that a small C fills the GPU.
//
// Every block writes its sums to the workspace and counts itself in; the last one adds up all slices, in their order, so
// that the result does not depend on who came last, and stores C. The workspace begins with one counter per tile, which
// must be 0 before the first launch and are 0 again after each. With SPLIT_K = 1 nothing of this is compiled.

struct Slice {
    int first;  // of k
    int end;

    DEVICE int tiles() const { return (end - first + BLOCK_K - 1) / BLOCK_K; }
};

DEVICE Slice slice_of_block(int k) {
    if constexpr (SPLIT_K == 1) return {0, k};
    const int k_tiles = (k + BLOCK_K - 1) / BLOCK_K;
    const int tiles = (k_tiles + SPLIT_K - 1) / SPLIT_K;
    const long long first = static_cast<long long>(slice_index()) * tiles * BLOCK_K;
    const long long end = first + tiles * BLOCK_K;
    return {static_cast<int>(first < k ? first : k), static_cast<int>(end < k ? end : k)};
}

// Adds up the COUNT sums each thread of the tile's blocks holds; whether this block is to store the result.
template <int COUNT>
DEVICE bool sum_slices(SUM_TYPE* sums, void* workspace) {
    if constexpr (SPLIT_K > 1) {
        constexpr int ALIGNED = 64;  // counters before the sums begin, a multiple of it: 256 bytes
        const long long tiles = static_cast<long long>(block_count()) * batch_count();
        const long long tile = static_cast<long long>(batch_index()) * block_count() + block_index();
        unsigned* counters = static_cast<unsigned*>(workspace);
        SUM_TYPE* slices = reinterpret_cast<SUM_TYPE*>(counters + (tiles + ALIGNED - 1) / ALIGNED * ALIGNED);
        // Sum i of thread t of slice s lies at (s * COUNT + i) * THREADS + t: neighbours write to neighbours.
        slices += tile * SPLIT_K * COUNT * THREADS + thread_index();
        SUM_TYPE* own = slices + static_cast<long long>(slice_index()) * COUNT * THREADS;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) store_global<SUM_TYPE, 1>(own + i * THREADS, {sums[i]});
        fence();
        sync_block();
        unsigned* arrived = reinterpret_cast<unsigned*>(shared_memory());
        if (thread_index() == 0) store_shared<unsigned, 1>(arrived, {count_up(counters + tile)});
        sync_block();
        if (load_shared<unsigned, 1>(arrived).at[0] != SPLIT_K - 1) return false;
        fence();
        if (thread_index() == 0) store_global<unsigned, 1>(counters + tile, {0u});
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = 0;
#pragma unroll 1
        for (int slice = 0; slice < SPLIT_K; ++slice) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sums[i] += load_global<SUM_TYPE, 1>(slices + i * THREADS).at[0];
            slices += COUNT * THREADS;
        }
    }
    return true;
}

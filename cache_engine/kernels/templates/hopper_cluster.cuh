// Clusters: CLUSTER blocks next to each other compute tiles of C one below the other. They need the same tiles of B, so each
// copies a part to all of them: B is read from L2 once where it was read CLUSTER times.
//
// A buffer is filled by all blocks of its cluster, so its `empty` barrier waits for the warps of all of them, and each warp gives a
// buffer back to all. `full` barriers count what other blocks copy too; it may land before their own block has said how much to
// expect, and is then owed. A block must be there as long as others access its shared memory.
//
// Sources: PTX ISA 9.2, 9.7.13.5 "barrier.cluster", 9.7.9.24 "mapa", 9.7.9.27 "Tensor copy" with .multicast::cluster, 9.7.13.4
// "fence.mbarrier_init"; CUDA C++ Programming Guide, "Thread Block Clusters".

#ifdef CLUSTER
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER 1
#define CLUSTERED
#endif

static_assert(RASTER_ROWS % CLUSTER == 0, "tiles of a cluster lie one below the other");

// The number of this block in its cluster.
DEVICE unsigned block_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Barriers that were initialised are seen by other blocks after it.
DEVICE void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// All threads of all blocks of a cluster meet.
DEVICE void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at a barrier of another block, or of this one: that which has this address there. Without the scope of a cluster, as
// CUTLASS does (include/cutlass/arch/barrier.h, ClusterBarrier::arrive): it says that products have read a buffer, which they
// have, and no store has to become visible. With that scope ptxas puts a fence of the whole GPU before each arrival.
DEVICE void barrier_arrive_in(unsigned rank, unsigned barrier) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(rank));
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
}

// Copies a box as copy_box does, to the same place in every block, for the barrier of this address in each.
DEVICE void copy_box_to_all(unsigned target, const TensorMap* map, int x, int y, int z, unsigned barrier) {
    const unsigned short all_blocks = (1 << CLUSTER) - 1;
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3, %4}], [%5], %6;"
                 :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(all_blocks) : "memory");
}

// ---- The same for one block alone and for a cluster -----------------------------------------------------------------

// The lanes of a warp that give a buffer back: one for each block.
DEVICE bool gives_back() {
    return CLUSTER == 1 ? thread_index() % 32 == 0 : thread_index() % 32 < CLUSTER;
}

DEVICE void give_back(unsigned empty) {
    if constexpr (CLUSTER == 1) {
        barrier_arrive(empty);
    } else {
        barrier_arrive_in(thread_index() % 32, empty);
    }
}

DEVICE void sync_all() {
    if constexpr (CLUSTER == 1) {
        sync_block();
    } else {
        sync_cluster();
    }
}

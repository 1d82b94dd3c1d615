// C = A * B of groups of rows, each with a B of its own, on tensor cores: for mixtures of experts.
//
// A is stored by rows. A block stays on its SM and computes one tile of C after the other, of whichever groups; a tile
// belongs to one group, so the last tile of a group may have few rows. The scheme within a tile is that of tensor_core.cu,
// and of scaled.cu where operands have scales. Rows of C that belong to no group are not written.
//
// Constants: those of tensor_core.cu, of scales.cuh and of groups.cuh; SPLIT_K is 1. bias has n elements for each group.

#include "primitives.cuh"
#include "sizes.cuh"
#include "raster.cuh"
#include "split_k.cuh"
#include "epilogue.cuh"
#include "warp_tiles.cuh"
#include "scales.cuh"
#include "boxes.cuh"
#include "tile_product.cuh"
#include "groups.cuh"

KERNEL(THREADS) KERNEL_NAME(const IN_TYPE* a, const IN_TYPE* b, OUT_TYPE* c, SIZE_PARAMETERS, const int* counts,
                            int groups, const SCALE_TYPE* a_scales, const SCALE_TYPE* b_scales, SUM_TYPE alpha,
                            SUM_TYPE beta, const OUT_TYPE* bias, void* workspace) {
    const Sizes sizes = SIZES;
    const long long scales_of_a_row = scales_per_row(sizes.k);
    const long long scales_of_b = scale_rows_of_b(sizes.n) * scales_of_a_row;
    GroupWalk walk(counts, groups, sizes);
#pragma unroll 1
    for (long long tile = block_index(); walk.find(tile); tile += block_count()) {
        const long long group = walk.group, row = walk.origin();
        const Sizes own = {walk.rows, sizes.n, sizes.k};
        TileProduct product(a + row * sizes.k, b + group * sizes.n * sizes.k, a_scales + row * scales_of_a_row,
                            b_scales + group * scales_of_b, walk.place(tile), {0, sizes.k}, own);
        SUM_TYPE sums[MMA_ROWS][MMA_COLUMNS][4] = {};
        product.sum(sums);
        product.store(c + row * sizes.n, sums, {alpha, beta, WITH_BIAS ? bias + group * sizes.n : bias});
        sync_block();  // the next tile's copies go where other warps may still read boxes of this one
    }
}

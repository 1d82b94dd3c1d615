// C(m x n) = A(m x k) * B(k x n) on tensor cores, of fp8 with a scale for each block of 128 along k; sums of fp32.
//
// A is stored m x k and B n x k. The scheme is that of tensor_core.cu, with BLOCK_K of 128: one step, one block of scales.
// Edges of m and n are filled with zeroes on the way in and masked on the way out; k is a multiple of 128.
//
// Constants: those of tensor_core.cu, and those of scales.cuh.

#include "primitives.cuh"
#include "sizes.cuh"
#include "raster.cuh"
#include "split_k.cuh"
#include "epilogue.cuh"
#include "warp_tiles.cuh"
#include "scales.cuh"
#include "boxes.cuh"
#include "tile_product.cuh"

KERNEL(THREADS) KERNEL_NAME(const IN_TYPE* a, const IN_TYPE* b, OUT_TYPE* c, SIZE_PARAMETERS,
                            const SCALE_TYPE* a_scales, const SCALE_TYPE* b_scales, SUM_TYPE alpha, SUM_TYPE beta,
                            const OUT_TYPE* bias, void* workspace) {
    const Sizes sizes = SIZES;
    const long long batch = batch_index();
    a += batch * sizes.m * sizes.k;
    b += batch * sizes.n * sizes.k;
    c += batch * sizes.m * sizes.n;
    a_scales += batch * sizes.m * scales_per_row(sizes.k);
    b_scales += batch * scale_rows_of_b(sizes.n) * scales_per_row(sizes.k);

    TileProduct product(a, b, a_scales, b_scales, tile_of_block(sizes), slice_of_block(sizes.k), sizes);
    SUM_TYPE sums[MMA_ROWS][MMA_COLUMNS][4] = {};
    product.sum(sums);
    if (!sum_slices<SUMS>(&sums[0][0][0], workspace)) return;
    product.store(c, sums, {alpha, beta, bias});
}

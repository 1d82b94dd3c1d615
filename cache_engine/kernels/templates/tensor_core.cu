// C(m x n) = A(m x k) * B(k x n) on tensor cores: inputs of 8, 16 or 32 bits, sums of fp32 or int32.
//
// A block computes BLOCK_M x BLOCK_N of C, or a slice of k of it; tile_product.cuh has the scheme.
//
// Constants: BLOCK_M BLOCK_N BLOCK_K WARPS_M WARPS_N STAGES SPLIT_K RASTER_ROWS A_TRANSPOSED B_TRANSPOSED A_VECTOR
// B_VECTOR (elements per copy) C_VECTOR (elements per store, 16 bytes at most), IN_TYPE SUM_TYPE OUT_TYPE KERNEL_NAME, and those of
// sizes.cuh and epilogue.cuh.

#include "primitives.cuh"
#include "sizes.cuh"
#include "raster.cuh"
#include "split_k.cuh"
#include "epilogue.cuh"

#include "warp_tiles.cuh"

// Operands have no scales.
#define SCALED 0
#define SCALE_TYPE float
#define B_SCALE_COLUMNS 1
#include "scales.cuh"
#include "boxes.cuh"
#include "tile_product.cuh"

KERNEL(THREADS) KERNEL_NAME(const IN_TYPE* a, const IN_TYPE* b, OUT_TYPE* c, SIZE_PARAMETERS, SUM_TYPE alpha,
                            SUM_TYPE beta, const OUT_TYPE* bias, void* workspace) {
    const Sizes sizes = SIZES;
    const long long batch = batch_index();
    a += batch * sizes.m * sizes.k;
    b += batch * sizes.n * sizes.k;
    c += batch * sizes.m * sizes.n;

    TileProduct product(a, b, nullptr, nullptr, tile_of_block(sizes), slice_of_block(sizes.k), sizes);
    SUM_TYPE sums[MMA_ROWS][MMA_COLUMNS][4] = {};
    product.sum(sums);
    if (!sum_slices<SUMS>(&sums[0][0][0], workspace)) return;
    product.store(c, sums, {alpha, beta, bias});
}

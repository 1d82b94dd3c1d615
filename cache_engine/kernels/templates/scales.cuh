// Scales of blocks of 128 along k: one for each row of A, and one for each column of B or for 128 of them.
//
// Constants: SCALED (0: there are none, and nothing of this is compiled), B_SCALE_COLUMNS (1 or 128), SCALE_TYPE: float,
// or unsigned char for E8M0, whose code stands for 2^(code - 127), and 255 for NaN (OCP Microscaling Formats 1.0, 5.4.1).
// Scales of A lie row by row, one for each block of k; those of B likewise, a row for each column of B or for 128 of
// them. Rows of E8M0 are whole words of four: k / 128 rounded up to a multiple of 4 bytes.

constexpr int SCALE_K = 128;

DEVICE float scale_value(float scale) { return scale; }
DEVICE float scale_value(unsigned char code) {
    // It is the exponent of fp32, in which 2^-127 is subnormal.
    const unsigned bits = code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : static_cast<unsigned>(code) << 23;
    float value;
    memcpy(&value, &bits, sizeof(bits));
    return value;
}

DEVICE int scales_per_row(int k) {
    constexpr int WORD = 4 / sizeof(SCALE_TYPE);
    return (k / SCALE_K + WORD - 1) / WORD * WORD;
}

DEVICE int scale_rows_of_b(int n) { return (n + B_SCALE_COLUMNS - 1) / B_SCALE_COLUMNS; }

// The scales that a lane needs for its part of one tile, of one block of k: of ROWS x COLUMNS parts, 16 x 8 each, those
// of rows APART rows apart. Of a part it holds two neighbours in one row, and two in the row eight below.
template <int ROWS, int APART, int COLUMNS>
struct StepScales {
    static_assert(!SCALED || COLUMNS * 8 <= SCALE_K, "the columns of a warp are of one block");
    static constexpr int B_COUNT = B_SCALE_COLUMNS == 1 ? COLUMNS * 2 : 1;
    float a[ROWS * 2];
    float b[B_COUNT];

    // row is that of the lane's first element.
    DEVICE void read_a(const SCALE_TYPE* a_scales, int row, int k, Sizes sizes) {
        const int per_row = scales_per_row(sizes.k);
        const int block = k / SCALE_K;
#pragma unroll
        for (int i = 0; i < ROWS * 2; ++i) {
            const int of = row + i / 2 * APART + i % 2 * 8;
            a[i] = 0;
            if (WHOLE_M || of < sizes.m) {
                const long long at = static_cast<long long>(of) * per_row + block;
                a[i] = scale_value(load_global<SCALE_TYPE, 1>(a_scales + at).at[0]);
            }
        }
    }

    // column is that of the lane's first element, or of the warp's where columns share a scale.
    DEVICE void read_b(const SCALE_TYPE* b_scales, int column, int k, Sizes sizes) {
        const int per_row = scales_per_row(sizes.k);
        const int block = k / SCALE_K;
#pragma unroll
        for (int j = 0; j < B_COUNT; ++j) {
            const int of = column + j / 2 * 8 + j % 2;
            b[j] = 0;
            if (WHOLE_N || of < sizes.n) {
                const long long at = static_cast<long long>(of / B_SCALE_COLUMNS) * per_row + block;
                b[j] = scale_value(load_global<SCALE_TYPE, 1>(b_scales + at).at[0]);
            }
        }
    }

    // The factor of element c of part (i, j).
    DEVICE float factor(int i, int j, int c) const {
        return a[i * 2 + c / 2] * b[B_SCALE_COLUMNS == 1 ? j * 2 + c % 2 : 0];
    }
};

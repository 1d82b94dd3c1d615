// Copies of rows that are not whole 4 bytes, as of bf16 with an odd number of columns: no cp.async moves them, since it wants
// its source aligned. A thread reads the aligned words that hold a run of 8 bytes of a row, puts the run together, and stores it.
// In the loop it reads them ahead of products, which hide the wait. Near the ends of the matrix it copies single elements instead,
// so no word is read that is not wholly in the matrix, and what lies beyond in k is zero.
//
// Runs of 16 bytes would take fewer instructions, but more time: a warp's reads of words that are so far apart go over four times
// 128 bytes.

constexpr int RUN = 8 / sizeof(IN_TYPE), RUN_WORDS = 2;
// Elements in the words that hold a run, wherever in the first it begins. A kernel without such rows has no use of it.
[[maybe_unused]] constexpr int COVER = 12 / sizeof(IN_TYPE);

DEVICE unsigned byte_in_word(const IN_TYPE* element) { return reinterpret_cast<unsigned long long>(element) & 3; }

DEVICE const unsigned* word_of(const IN_TYPE* element) {
    return reinterpret_cast<const unsigned*>(reinterpret_cast<const unsigned char*>(element) - byte_in_word(element));
}

// Chooses four bytes of two words: those from where an element lies in the first.
DEVICE unsigned choice_of(const IN_TYPE* element) { return 0x3210 + byte_in_word(element) * 0x1111; }

// What Copies is for other rows. A thread's runs have one column, and rows STRIDE apart, so all begin at the same place of a word.
template <int ROWS, int COLUMNS, Order ORDER, bool WHOLE_ROWS>
struct OddCopies {
    static constexpr int PER_ROW = COLUMNS / RUN;
    static constexpr int STRIDE = THREADS / PER_ROW;
    static constexpr bool FIT = THREADS % PER_ROW == 0 && STRIDE * sizeof(IN_TYPE) % 4 == 0 && (STRIDE & (STRIDE - 1)) == 0;
    static constexpr int RUNS = FIT ? (ROWS + STRIDE - 1) / STRIDE : 0;
    using Words = unsigned[RUN_WORDS + 1];

    const IN_TYPE* next;  // where the thread's first run of the next tile begins
    int rows_left, columns_left;  // from there to the ends of the matrix
    int columns;
    bool is_first_word;  // it begins before the matrix

    DEVICE OddCopies(const IN_TYPE* matrix, int first_row, int first_column, int rows, int columns) : columns(columns) {
        const int row = first_row + thread_index() / PER_ROW, column = first_column + thread_index() % PER_ROW * RUN;
        rows_left = rows - row;
        columns_left = columns - column;
        // A column of m or n that the matrix has not may hold anything, as its sums are not stored: what lies in the first.
        const bool has_column = ORDER == ALONG_K || columns_left > 0;
        next = matrix + static_cast<long long>(row) * columns + (has_column ? column : first_column);
        is_first_word = word_of(next) < reinterpret_cast<const unsigned*>(matrix);
    }

    // Copies the next tile, and waits for it.
    DEVICE void start(IN_TYPE* tile) {
        if (reads_words() && !is_first_word) {
            Words words[RUNS];
            read(words, 0);
            write(words, 0, tile);
        } else {
            copy_elements(tile);
        }
        advance();
    }

    DEVICE void advance() {
        next += ORDER == ALONG_K ? BLOCK_K : static_cast<long long>(BLOCK_K) * columns;
        (ORDER == ALONG_K ? columns_left : rows_left) -= BLOCK_K;
        is_first_word = false;
    }

    // Whether words are read of the next tile, not elements: all are in the matrix, and along k hold no more than belongs into the
    // tile. Only in the last steps elements are read, and in most of these by few threads.
    DEVICE bool reads_words() const {
        if constexpr (ORDER == ALONG_K) return columns_left >= COVER;
        const bool has_rows = rows_left > (RUNS - 1) * STRIDE;
        return has_rows && (columns_left >= COVER || (rows_left > ROWS && columns >= COVER));
    }

    // The words of so many runs of the next tile, from one on; zeroes for rows beyond the matrix.
    template <int HELD>
    DEVICE void read(Words (&words)[HELD], int from) const {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int row = (from + i) * STRIDE;
            const bool valid = has_run(from + i) && (WHOLE_ROWS || ORDER != ALONG_K || row < rows_left);
            const unsigned* source = word_of(next) + static_cast<long long>(row / (4 / sizeof(IN_TYPE))) * columns;
#pragma unroll
            for (int j = 0; j <= RUN_WORDS; ++j) words[i][j] = valid ? load_global<unsigned, 1>(source + j).at[0] : 0;
        }
    }

    // Stores those.
    template <int HELD>
    DEVICE void write(const Words (&words)[HELD], int from, IN_TYPE* tile) const {
        const unsigned choice = choice_of(next);
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            if (!has_run(from + i)) continue;
            Vector<unsigned, RUN_WORDS> run;
#pragma unroll
            for (int j = 0; j < RUN_WORDS; ++j) {
                run.at[j] = chosen_bytes(words[i][j], words[i][j + 1], choice);
            }
            store_shared<unsigned, RUN_WORDS>(reinterpret_cast<unsigned*>(tile + place_of(from + i)), run);
        }
    }

    DEVICE void copy_elements(IN_TYPE* tile) const {
        const IN_TYPE* source = next;
#pragma unroll 1
        for (int i = 0; has_run(i); ++i) {
            Vector<IN_TYPE, 1> elements[RUN] = {};
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                const bool valid = (WHOLE_ROWS || i * STRIDE < rows_left) && j < columns_left;
                if (valid) elements[j] = load_global<IN_TYPE, 1>(source + j);
            }
#pragma unroll
            for (int j = 0; j < RUN; ++j) store_shared<IN_TYPE, 1>(tile + place_of(i) + j, elements[j]);
            source += static_cast<long long>(STRIDE) * columns;
        }
    }

    // Threads may be more than a tile has runs.
    DEVICE static bool has_run(int i) {
        return i < RUNS && (ROWS % STRIDE == 0 || thread_index() / PER_ROW + i * STRIDE < ROWS);
    }

    // Where a run lies in the tile. Its row is that of the first and a distance that have no bits in common: the run is permuted by
    // the one and by the other.
    DEVICE static int place_of(int i) {
        const int first = swizzled<COLUMNS, ORDER>(thread_index() / PER_ROW, thread_index() % PER_ROW * RUN);
        const int permuted = swizzled<COLUMNS, ORDER>(i * STRIDE, 0) - i * STRIDE * COLUMNS;
        return i * STRIDE * COLUMNS + (first ^ permuted);
    }
};

// Four rows of four bytes that are turned, where rows are odd: read by words likewise, but waited for.
struct OddSquare {
    const IN_TYPE* first;
    int rows_left, columns_left;  // from there to the ends of the matrix
    int columns;

    // What a column of m or n holds that the matrix has not does not matter.
    DEVICE void read(unsigned (&rows)[4], bool begins_matrix) const {
        const bool has_words = rows_left >= 4 && !(begins_matrix && byte_in_word(first) > 0);
        if (has_words && columns_left > 0 && (columns_left >= 8 || (rows_left > 4 && columns >= 8))) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const IN_TYPE* source = first + static_cast<long long>(i) * columns;
                const unsigned low = load_global<unsigned, 1>(word_of(source)).at[0];
                const unsigned high = load_global<unsigned, 1>(word_of(source) + 1).at[0];
                rows[i] = chosen_bytes(low, high, choice_of(source));
            }
            return;
        }
#pragma unroll 1
        for (int j = 0; j < 4 && j < columns_left; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i >= rows_left) continue;
                const auto* source = reinterpret_cast<const unsigned char*>(first + static_cast<long long>(i) * columns + j);
                rows[i] |= static_cast<unsigned>(load_global<unsigned char, 1>(source).at[0]) << j * 8;
            }
        }
    }
};

// What a thread has read of an operand's next tile while products are computed: of all of k, or of one slice after the other.
template <typename OPERAND, int PART_K>
struct Ahead {
    static constexpr int HELD = (OPERAND::RUNS * PART_K + BLOCK_K - 1) / BLOCK_K;

    unsigned words[HELD][RUN_WORDS + 1];

    // In the slice of k that begins there, behind its first products: the tensor cores are busy meanwhile.
    DEVICE void read(const OPERAND& copies, int k) {
        if (k % PART_K == 0 && copies.reads_words()) copies.read(words, k / PART_K * HELD);
    }

    // Behind the slice's products.
    DEVICE void store(OPERAND& copies, IN_TYPE* tile, int k) const {
        if ((k + MMA_K) % PART_K == 0) {
            if (copies.reads_words()) {
                copies.write(words, k / PART_K * HELD, tile);
            } else if (k + MMA_K == PART_K) {
                copies.copy_elements(tile);
            }
        }
        if (k + MMA_K == BLOCK_K) copies.advance();
    }
};

// Of rows that cp.async moves nothing is read ahead.
template <typename OPERAND>
struct Ahead<OPERAND, 0> {
    DEVICE void read(const OPERAND&, int) {}
    DEVICE void store(OPERAND&, IN_TYPE*, int) const {}
};

template <bool ODD, typename WHOLE_WORDS, typename ODD_ROWS> struct Either { using type = WHOLE_WORDS; };
template <typename WHOLE_WORDS, typename ODD_ROWS> struct Either<true, WHOLE_WORDS, ODD_ROWS> { using type = ODD_ROWS; };

// Copies of odd rows: rows whose length is not a multiple of 4 bytes, such as bf16 with an odd number of columns.
// cp.async cannot copy them, because it wants an aligned source. A thread reads the aligned words that hold 8 bytes of a
// row (a run), shifts them into place and stores the run. In the loop it prefetches the words, so that products hide the
// latency. Near the ends of the matrix it copies single elements instead. So it reads no word that is partly outside of
// the matrix, and elements beyond k are zero.
//
// Runs of 16 bytes would take fewer instructions but more time: the words that a warp then reads at once are spread
// over four times 128 bytes.

constexpr int RUN = 8 / sizeof(IN_TYPE), RUN_WORDS = 2;
// Elements in the words that hold a run, at any byte of the first word. Kernels without odd rows do not use it.
[[maybe_unused]] constexpr int COVER = 12 / sizeof(IN_TYPE);

DEVICE unsigned byte_in_word(const IN_TYPE* element) { return reinterpret_cast<unsigned long long>(element) & 3; }

DEVICE const unsigned* word_of(const IN_TYPE* element) {
    return reinterpret_cast<const unsigned*>(reinterpret_cast<const unsigned char*>(element) - byte_in_word(element));
}

// Selector for chosen_bytes: the four bytes of two words that begin with an element in the first word.
DEVICE unsigned choice_of(const IN_TYPE* element) { return 0x3210 + byte_in_word(element) * 0x1111; }

// The counterpart of Copies for odd rows. A thread's runs have the same column, and their rows are STRIDE apart, so all
// begin at the same byte of a word.
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
    bool is_first_word;  // the word at next begins before the matrix

    DEVICE OddCopies(const IN_TYPE* matrix, int first_row, int first_column, int rows, int columns) : columns(columns) {
        const int row = first_row + thread_index() / PER_ROW, column = first_column + thread_index() % PER_ROW * RUN;
        rows_left = rows - row;
        columns_left = columns - column;
        // A column of m or n beyond the matrix may hold anything, because its sums are not stored. The thread reads the
        // tile's first column instead.
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

    // Whether the next tile is copied by words, not by elements: all words are in the matrix, and no run goes beyond k.
    // Only the last steps copy elements, and in most of these only few threads do.
    DEVICE bool reads_words() const {
        if constexpr (ORDER == ALONG_K) return columns_left >= COVER;
        const bool has_rows = rows_left > (RUNS - 1) * STRIDE;
        return has_rows && (columns_left >= COVER || (rows_left > ROWS && columns >= COVER));
    }

    // Reads the words of HELD runs of the next tile, beginning with run `from`; zeroes for rows beyond the matrix.
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

    // Stores these runs into the tile.
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

    // A tile may have too few runs for all threads.
    DEVICE static bool has_run(int i) {
        return i < RUNS && (ROWS % STRIDE == 0 || thread_index() / PER_ROW + i * STRIDE < ROWS);
    }

    // Offset of run i in the tile. Its row is the row of the thread's first run plus a distance, and these two have no
    // bits in common. So its swizzle is the exclusive or of their swizzles.
    DEVICE static int place_of(int i) {
        const int first = swizzled<COLUMNS, ORDER>(thread_index() / PER_ROW, thread_index() % PER_ROW * RUN);
        const int permuted = swizzled<COLUMNS, ORDER>(i * STRIDE, 0) - i * STRIDE * COLUMNS;
        return i * STRIDE * COLUMNS + (first ^ permuted);
    }
};

// Four bytes of each of four odd rows, to be turned. They too are read by words, but not prefetched.
struct OddSquare {
    const IN_TYPE* first;
    int rows_left, columns_left;  // from there to the ends of the matrix
    int columns;

    // A column of m or n beyond the matrix may hold anything.
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

// The words of an operand's next tile that a thread prefetches while products are computed: of the whole tile, or of one
// MMA_K after another.
template <typename OPERAND, int PART_K>
struct Ahead {
    static constexpr int HELD = (OPERAND::RUNS * PART_K + BLOCK_K - 1) / BLOCK_K;

    unsigned words[HELD][RUN_WORDS + 1];

    // Called after the first products at k, so that the tensor cores are busy meanwhile.
    DEVICE void read(const OPERAND& copies, int k) {
        if (k % PART_K == 0 && copies.reads_words()) copies.read(words, k / PART_K * HELD);
    }

    // Called after all products at k.
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

// cp.async is asynchronous already: rows that it copies are not prefetched.
template <typename OPERAND>
struct Ahead<OPERAND, 0> {
    DEVICE void read(const OPERAND&, int) {}
    DEVICE void store(OPERAND&, IN_TYPE*, int) const {}
};

template <bool ODD, typename WHOLE_WORDS, typename ODD_ROWS> struct Either { using type = WHOLE_WORDS; };
template <typename WHOLE_WORDS, typename ODD_ROWS> struct Either<true, WHOLE_WORDS, ODD_ROWS> { using type = ODD_ROWS; };

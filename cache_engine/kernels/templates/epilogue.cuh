// What becomes of a sum before it is stored: activation(alpha * sum + beta * C + bias), rounded to C's type.
//
// Constants, each 0 or 1: WITH_ALPHA WITH_BETA WITH_BIAS; ACTIVATION: 0 none, 1 ReLU, 2 GELU. What a constant leaves out
// costs nothing, and its argument is not looked at. bias has n elements, one for each column of C.

struct Epilogue {
    SUM_TYPE alpha, beta;
    const OUT_TYPE* bias;

    // As in BLAS, C is not read when beta is 0: it may hold anything, NaN included.
    DEVICE bool adds_c() const { return WITH_BETA && beta != 0; }
};

#include "activation.cuh"

// What becomes of the sums of COUNT neighbours in a row, and of C as it was: 0 where it is not added.
template <int COUNT>
DEVICE Vector<OUT_TYPE, COUNT> finished(const SUM_TYPE* sums, const Vector<OUT_TYPE, COUNT>& c,
                                        const Vector<OUT_TYPE, COUNT>& bias, const Epilogue& epilogue) {
    Vector<OUT_TYPE, COUNT> result;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        SUM_TYPE value = sums[i];
        if constexpr (WITH_ALPHA) value *= epilogue.alpha;
        if constexpr (WITH_BETA) value = multiply_add(epilogue.beta, widen(c.at[i]), value);
        if constexpr (WITH_BIAS) value += widen(bias.at[i]);
        result.at[i] = convert<OUT_TYPE>(activated(value));
    }
    return result;
}

// Finishes and stores them.
template <int COUNT>
DEVICE void finish(OUT_TYPE* target, const SUM_TYPE* sums, const Vector<OUT_TYPE, COUNT>& bias, const Epilogue& epilogue) {
    Vector<OUT_TYPE, COUNT> before = {};
    if (epilogue.adds_c()) before = load_global<OUT_TYPE, COUNT>(target);
    store_global<OUT_TYPE, COUNT>(target, finished<COUNT>(sums, before, bias, epilogue));
}

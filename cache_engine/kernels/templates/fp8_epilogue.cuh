// The epilogue where C is of fp8, in place of epilogue.cuh: activation(alpha * sum + bias) * scale, rounded to the nearest code.
//
// Constants: those of epilogue.cuh, with WITH_BETA 0, since C as it was would have had a scale of its own. So kernels take the scale
// in place of the factor of C: their argument `beta`.

#include "fp8_codes.cuh"

struct Epilogue {
    SUM_TYPE alpha, scale;
    const OUT_TYPE* bias;

    DEVICE bool adds_c() const { return false; }
};

#include "activation.cuh"

// What becomes of the sums of COUNT neighbours in a row; C as it was is not looked at.
template <int COUNT>
DEVICE Vector<OUT_TYPE, COUNT> finished(const SUM_TYPE* sums, const Vector<OUT_TYPE, COUNT>&,
                                        const Vector<OUT_TYPE, COUNT>& bias, const Epilogue& epilogue) {
    Vector<OUT_TYPE, COUNT> result;
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        SUM_TYPE pair[2] = {};
#pragma unroll
        for (int j = 0; j < 2 && i + j < COUNT; ++j) {
            SUM_TYPE value = sums[i + j];
            if constexpr (WITH_ALPHA) value *= epilogue.alpha;
            if constexpr (WITH_BIAS) value += widen(bias.at[i + j]);
            pair[j] = activated(value) * epilogue.scale;
        }
        const unsigned codes = two_codes(OUT_TYPE{}, pair[0], pair[1]);
        result.at[i].bits = codes;
        if (i + 1 < COUNT) result.at[i + 1].bits = codes >> 8;
    }
    return result;
}

// Finishes and stores them.
template <int COUNT>
DEVICE void finish(OUT_TYPE* target, const SUM_TYPE* sums, const Vector<OUT_TYPE, COUNT>& bias, const Epilogue& epilogue) {
    store_global<OUT_TYPE, COUNT>(target, finished<COUNT>(sums, {}, bias, epilogue));
}

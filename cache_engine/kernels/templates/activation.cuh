template <typename T>
DEVICE T activated(T value) {
    if constexpr (ACTIVATION == 1) {
        return value < 0 ? 0 : value;  // NaN stays what it is
    } else if constexpr (ACTIVATION == 2) {
        // The exact form, x * Phi(x) (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
        return static_cast<T>(0.5) * value * (1 + error_function(value * static_cast<T>(0.70710678118654752440)));
    } else {
        return value;
    }
}

// The bias of COUNT columns from the given one on.
template <int COUNT>
DEVICE Vector<OUT_TYPE, COUNT> load_bias(int column, const Epilogue& epilogue) {
    if constexpr (WITH_BIAS) return load_global<OUT_TYPE, COUNT>(epilogue.bias + column);
    return {};
}

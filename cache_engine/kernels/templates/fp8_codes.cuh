// The two 8-bit types of results, as the hardware converts them: on 8.9 and later, two at a time.
//
// Source: PTX ISA 9.2, "cvt".

#define FP8_CODES(TYPE, KIND)                                                                                       \
    DEVICE float widen(TYPE value) {                                                                                \
        unsigned halves;                                                                                            \
        asm("cvt.rn.f16x2." KIND " %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(value.bits)));         \
        return widen(fp16{static_cast<unsigned short>(halves)});                                                    \
    }                                                                                                               \
    /* To the nearest, ties to even; beyond the largest value, infinity included, to that one. NaN stays NaN. */    \
    DEVICE unsigned two_codes(TYPE, float low, float high) {                                                        \
        unsigned short codes;                                                                                       \
        asm("cvt.rn.satfinite." KIND ".f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));                       \
        return codes;                                                                                               \
    }
FP8_CODES(e4m3, "e4m3x2")
FP8_CODES(e5m2, "e5m2x2")

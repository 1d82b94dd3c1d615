// m, n and k: each a constant of the kernel, or an argument of it. Which, is the kernel's specialisation.
//
// Constants: M, where m is one; M_MOST, where m is an argument that is at most so large; N and K, both or neither. m is
// always given, and not looked at where it is a constant.

struct Sizes { int m, n, k; };

#ifdef M
#define M_MOST M
#define SIZE_M M
constexpr bool WHOLE_M = M % BLOCK_M == 0;  // no tile of C reaches beyond the last row, so nothing need be checked
#else
#define SIZE_M m
constexpr bool WHOLE_M = false;
#endif

#ifndef M_MOST
#define M_MOST 16777216
#endif

#ifdef N
#define SIZE_PARAMETERS int m
#define SIZES {SIZE_M, N, K}
constexpr bool WHOLE_N = N % BLOCK_N == 0;
constexpr bool WHOLE_K = K % BLOCK_K == 0;
#else
#define SIZE_PARAMETERS int m, int n, int k
#define SIZES {m, n, k}
constexpr bool WHOLE_N = false;
constexpr bool WHOLE_K = false;
#endif

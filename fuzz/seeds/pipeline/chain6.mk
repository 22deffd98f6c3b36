gemm(a, b) -> all_reduce

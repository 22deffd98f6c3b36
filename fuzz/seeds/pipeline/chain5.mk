gemm(a, b) -> reduce_scatter

gather(a) -> gemm(b) -> reduce_scatter

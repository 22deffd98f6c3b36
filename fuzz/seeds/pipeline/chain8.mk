gather(x) -> gemm(w1) -> gelu -> gemm(w2) -> reduce_scatter

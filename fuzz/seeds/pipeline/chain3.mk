gather(a) -> gemm(b)

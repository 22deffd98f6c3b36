gather(x) -> gemm(w1) -> bias(c) -> silu -> gemm(w2) -> all_reduce

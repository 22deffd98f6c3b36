gemm(x, w1) -> relu -> gemm(w2) -> bias(d)

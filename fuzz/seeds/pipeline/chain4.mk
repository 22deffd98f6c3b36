gather(a) -> gemm(b) -> bias(c) -> gelu

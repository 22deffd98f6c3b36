//! A plan over a stack of weights, one matrix for each of three experts.

/// 72 deep, which is no multiple of a step.
#[allow(dead_code)]
const EXPERTS: &str = r#"plan "experts"
mesh world=1
target sm_90a
dim dim0 M = 128
dim dim1 K = 72
dim dim2 F = 256
buffer buf0 "x" in bf16[3, M, K]
buffer buf1 "w" in bf16[WEIGHTS]
buffer buf2 "y" out bf16[3, M, F]
role role0 compute ctas 2
family fam0 "gemm" role0 {
  leaf mma_tile block=128x256x64 stages=3 b=LAYOUT store=tmaEPILOGUE
  for e in 3
  for j in TILES
  edge e1 full
  edge e2 empty
  edge e3 staged
  edge e4 drained
  access a: read buf0 @ rank [e : 1, 0 : M, 0 : K] at start
  access b: read buf1 @ rank [e : 1, REGION] at start
  access c: write buf2 @ rank [e : 1, 0 : M, j * WIDTH : WIDTH] at end
}
"#;

/// The plan's text, with weights `[3, K, F]` (layout `kn`) or `[3, F, K]` (`nk`); gated, of gates and ups.
#[allow(dead_code)]
pub fn experts(layout: &str, gated: bool) -> String {
    let (weights, region) = match (layout == "kn", gated) {
        (true, true) => ("3, K, 2, F", "0 : K, 0 : 2, j * 128 : 128"),
        (false, true) => ("3, 2, F, K", "0 : 2, j * 128 : 128, 0 : K"),
        (true, false) => ("3, K, F", "0 : K, j * 256 : 256"),
        (false, false) => ("3, F, K", "j * 256 : 256, 0 : K"),
    };
    EXPERTS
        .replace("WEIGHTS", weights)
        .replace("REGION", region)
        .replace("LAYOUT", layout)
        .replace("EPILOGUE", if gated { " epilogue=swiglu" } else { "" })
        .replace("TILES", if gated { "2" } else { "1" })
        .replace("WIDTH", if gated { "128" } else { "256" })
}

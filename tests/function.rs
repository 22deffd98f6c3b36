//! Which global sizes follow from the tensors of a rank, and what is said of tensors that do not fit.

use mk::{
    Program,
    abi::DType,
    function::{ArgumentError, Signature, Sizes},
};

const MLP: &str = "
    pub fn mlp(x: bf16[M, K] @ shard(0), w: bf16[K, F] @ shard(1), v: bf16[F, K] @ shard(0)) -> bf16[M, K] @ shard(0) {
        gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter
    }";

fn signature(text: &str, ranks: u32, sizes: Sizes) -> Result<Signature, ArgumentError> {
    Signature::new(Program::parse(text).expect("parses"), ranks, sizes)
}

fn shape(name: &str, shape: &[u64]) -> Sizes {
    Sizes { shapes: [(name.to_string(), shape.to_vec())].into(), ..Sizes::default() }
}

/// The global shapes of the parameters, by the local ones of a rank.
fn infer(
    text: &str,
    ranks: u32,
    given: Sizes,
    rank: u32,
    local: &[&[u64]],
) -> Result<Vec<Vec<u64>>, String> {
    let signature = signature(text, ranks, given).map_err(|e| e.to_string())?;
    let bound = signature.infer(rank, &[local.to_vec()]).map_err(|e| e.to_string())?;
    let tensors = signature.program().tensors().iter();
    Ok(tensors.map(|t| bound.shape(t.id).unwrap_or(&[]).to_vec()).collect())
}

#[test]
fn even_shards_say_it_all() {
    let found = infer(MLP, 4, Sizes::default(), 3, &[&[32, 64], &[64, 16], &[16, 64]]);
    assert_eq!(found, Ok(vec![vec![128, 64], vec![64, 64], vec![64, 64]]));
    let found = infer("gather(a) -> gemm(b)", 2, Sizes::default(), 0, &[&[5, 64], &[64, 8]]);
    assert_eq!(found, Ok(vec![vec![10, 64], vec![64, 16]]));
    // Contributions have the shape of their sum.
    let found = infer("gemm(a, b) -> reduce_scatter", 2, Sizes::default(), 1, &[&[6, 8], &[8, 4]]);
    assert_eq!(found.map(|s| s.len()), Ok(2));
}

#[test]
fn ragged_shards_need_the_global_shape() {
    let text = "gather(a) -> gemm(b)";
    let given = || shape("a", &[5, 64]);
    let found = |rank, rows| infer(text, 3, given(), rank, &[&[rows, 64], &[64, 8]]);
    let global = vec![vec![5, 64], vec![64, 24]];
    assert_eq!(
        (found(0, 2), found(1, 2), found(2, 1)),
        (Ok(global.clone()), Ok(global.clone()), Ok(global))
    );
    assert_eq!(
        found(2, 2).unwrap_err(),
        "`a` has shape [2, 64] on rank 2, and [1, 64] is that rank's part of [5, 64] @ shard(0) over 3 ranks\n  \
         help: cut it as torch.chunk does; if the shards are uneven, give the global shape of `a` when compiling"
    );
    // Without it, ranks of one process contradict each other.
    let signature = signature(text, 2, Sizes::default()).expect("fits");
    let error = signature.infer(0, &[vec![&[3u64, 64][..], &[64, 8]], vec![&[2, 64], &[64, 8]]]);
    assert!(error.unwrap_err().to_string().contains("give the global shape of `a`"));
}

#[test]
fn mistakes_name_the_tensor_and_a_way_out() {
    let found = |local: &[&[u64]]| infer(MLP, 4, Sizes::default(), 0, local).unwrap_err();
    let error = found(&[&[32, 64], &[60, 16], &[16, 64]]);
    assert!(
        error.starts_with(
            "`K` is 64 by dimension 1 of `x`, which is [32, 64], and 60 by dimension 0 of `w`, which is [60, 16]\n  help: "
        ),
        "{error}"
    );
    assert_eq!(
        found(&[&[32, 64], &[64, 16]]),
        "2 tensors were given, and 3 are needed: `x`, `w`, `v`"
    );
    assert_eq!(
        found(&[&[32, 64, 1], &[64, 16], &[16, 64]]),
        "`x` has 2 dimensions in the pipeline, and [32, 64, 1] has 3"
    );
    assert!(found(&[&[0, 64], &[64, 16], &[16, 64]]).contains("`M` is 0 by dimension 0 of"));
    assert!(found(&[&[u64::MAX, 64], &[64, 16], &[16, 64]]).contains("outside 1..="));
    let unknown = |sizes| signature(MLP, 4, sizes).unwrap_err().to_string();
    assert_eq!(
        unknown(shape("y", &[1])),
        "the pipeline has no tensor `y`\n  help: its tensors are `x`, `w`, `v`"
    );
    let dims = [("Q".to_string(), 3)].into();
    assert_eq!(
        unknown(Sizes { dims, ..Sizes::default() }),
        "the pipeline has no symbol `Q`\n  help: its symbols are `M`, `K`, `F`"
    );
    let error = signature(MLP, 4, Sizes::default()).expect("fits").check_dtype(1, DType::F16);
    assert_eq!(
        error.unwrap_err().to_string(),
        "`w` is f16, and the pipeline says bf16\n  help: convert it, or write the pipeline as an item that says `w: f16[..] \
         @ shard(1)`"
    );
}

#[test]
fn sizes_bind_without_tensors() {
    let signature = signature(MLP, 4, shape("x", &[128, 64])).expect("fits");
    let missing = signature.bind(&Sizes::default()).unwrap_err();
    assert!(missing.to_string().contains("`F` has no value"), "{missing}");
    let dims = [("F".to_string(), 256)].into();
    let bound = signature.bind(&Sizes { dims, ..Sizes::default() }).expect("binds");
    assert_eq!(bound.sizes(), [128, 64, 256]);
    let again = signature.bind(&shape("x", &[256, 64])).unwrap_err();
    assert!(again.to_string().contains("`F` has no value"), "what is given later counts: {again}");
}

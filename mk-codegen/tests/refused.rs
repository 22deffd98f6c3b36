//! Plans that say what no template carries out are refused, and not emitted as something else.

use mk_abi::Share;
use mk_codegen::{emit::emit, plan::Plan};
use std::{fs, path::Path};

/// Every rank pushes its rows to all, and copies what arrived.
const PUSH: &str = r#"plan "push"
mesh world=3
target sm_90a
dim dim0 N = 64
dim dim1 R = 4
buffer buf0 "x" in bf16[R, N]
buffer buf1 "y" out bf16[12, N]
buffer buf2 "w" workspace bf16[12, N]
signal sig0 "entered" [3]
signal sig1 "arrived" [3]
role role0 prologue ctas 0
role role1 intra_comm ctas 2
family fam0 "enter" role0 {
  leaf enter
  post e0 sig0[rank] @ p += 1 by lead after program_order scope sys at start each p in 3
}
family fam1 "push" role1 {
  leaf copy_tile via=ldst stages=1
  for d in 3
  access src: read buf0 @ rank [0 : 4, 0 : N] at start
  access dst: write buf2 @ d [rank * 4 : 4, 0 : N] at end
  wait e1 sig0[d] >= 1 by copier for generic scope sys at start
  post e2 sig1[rank] @ d += 1 by copier after program_order scope sys at end
}
family fam2 "out" role1 {
  leaf copy_tile via=ldst stages=1
  for s in 3
  access src: read buf2 @ rank [s * 4 : 4, 0 : N] at start
  access dst: write buf1 @ rank [s * 4 : 4, 0 : N] at end
  wait e3 sig1[s] >= 1 by copier for generic scope sys at start
}
"#;

/// One tile.
const TILE: &str = r#"plan "tile"
mesh world=1
target sm_90a
dim dim0 M = 128
dim dim1 K = 144
dim dim2 N = 256
buffer buf0 "a" in bf16[M, K]
buffer buf1 "b" in bf16[K, N]
buffer buf2 "c" out bf16[M, N]
role role0 compute ctas 1
family fam0 "gemm" role0 {
  leaf mma_tile block=128x256x64 stages=3 b=kn store=tma
  edge e1 full
  edge e2 empty
  edge e3 staged
  edge e4 drained
  access a: read buf0 @ rank [0 : M, 0 : K] at start
  access b: read buf1 @ rank [0 : K, 0 : N] at start
  access c: write buf2 @ rank [0 : M, 0 : N] at end
}
"#;

/// What is said of a plan with some lines changed.
#[track_caller]
fn refused_of(text: &str, edits: &[(&str, &str)], says: &str) {
    emit(&text.parse().expect("reads")).expect("without the edits");
    let text = edits.iter().fold(text.to_string(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    let plan: Plan = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let error = emit(&plan).expect_err(says).to_string();
    assert!(error.contains(says), "{error}");
}

#[track_caller]
fn refused(edits: &[(&str, &str)], says: &str) {
    refused_of(PUSH, edits, says);
}

#[test]
fn an_epilogue_that_waits_for_what_no_engine_posts() {
    let wait = "\
family fam3 \"wait\" role2 {
  leaf signal
  wait e4 sig2[0] >= 3 by lead for generic scope sys at start
}
";
    let last = "  wait e3 sig1[s] >= 1 by copier for generic scope sys at start\n}\n";
    let posts = last.replace(
        '}',
        "  post e5 sig2[0] @ rank += 1 by copier after program_order scope sys at end\n}",
    );
    refused(
        &[
            ("intra_comm ctas 2\n", "intra_comm ctas 2\nrole role2 epilogue ctas 0\n"),
            ("\"arrived\" [3]\n", "\"arrived\" [3]\nsignal sig2 \"done\" [1]\n"),
            (last, &(posts + wait)),
        ],
        "the end of a launch can only wait for its copy engines",
    );
}

#[test]
fn own_rows_that_no_template_ends_at() {
    let says = "no template of copy_tile ends where a rank's own rows of buf1 do";
    refused(&[("out bf16[12, N]", "out bf16[12, N] own")], says);
    let tile = [("\"a\" in bf16[M, K]", "\"a\" in bf16[M, K] own")];
    refused_of(TILE, &tile, "no template of mma_tile ends where a rank's own rows of buf0 do");
}

#[test]
fn tensors_of_peers() {
    let says = "is the caller's: a kernel reaches it only `@ rank`";
    refused(&[("in bf16", "in shared bf16"), ("buf0 @ rank", "buf0 @ d")], says);
    refused(&[("out bf16", "out shared bf16"), ("buf1 @ rank", "buf1 @ (rank + s) % 3")], says);
}

#[test]
fn ranks_that_enter_in_another_way() {
    for (from, to) in [
        ("sig0[rank] @ p", "sig0[(rank + 1) % 3] @ p"),
        ("sig0[rank] @ p", "sig0[rank] @ 2 - p / 2"),
        ("sig0[rank] @ p += 1", "sig0[rank] @ p += 2"),
        ("at start each p in 3", "at start each p in 2"),
        ("at start each p in 3", "at start each p in 3 when p < 3"),
        ("scope sys at start each p in 3", "scope gpu at start each p in 3"),
        ("leaf enter", "leaf enter\n  for i in 2"),
        ("leaf enter", "leaf enter\n  wait e9 sig1[0] >= 1 by lead for generic scope sys at start"),
        ("post e2 sig1[rank]", "post e2 sig0[rank]"),
    ] {
        refused(&[(from, to)], "ranks enter by one family with one post");
    }
    let again = "family fam3 \"again\" role0 {\n  leaf enter\n  post e9 sig1[rank] @ p += 1 by lead \
                 after program_order scope sys at start each p in 3\n}\n";
    let last = "  wait e3 sig1[s] >= 1 by copier for generic scope sys at start\n}\n";
    refused(&[(last, &(last.to_string() + again))], "fam3 \"again\": ranks enter by one family");
    refused(&[("wait e1 sig0[d] >= 1", "wait e1 sig0[d] >= 2")], "entry is signalled once");
}

#[test]
fn memory_of_peers_that_has_other_extents() {
    refused(
        &[
            ("\"arrived\" [3]", "\"arrived\" [3, rank + 1]"),
            ("sig1[rank]", "sig1[rank, 0]"),
            ("sig1[s]", "sig1[s, 0]"),
        ],
        "e2 posts sig1 to another rank, and only the first extent",
    );
    let says = "buf2 \"w\", of operand `dst`, is another rank's, and only its first extent";
    refused(
        &[
            ("workspace bf16[12, N]", "workspace bf16[3, 4 + rank, N]"),
            ("[rank * 4 : 4, 0 : N]", "[rank : 1, 0 : 4, 0 : N]"),
            ("buf2 @ rank [s * 4 : 4, 0 : N]", "buf2 @ rank [s : 1, 0 : 4, 0 : N]"),
        ],
        says,
    );
    refused(&[("workspace bf16[12, N]", "workspace bf16[12, N + rank]")], says);
}

#[test]
fn numbers_of_rows_and_words_that_an_int_does_not_hold() {
    let wide =
        [("bf16[R, N]", "bf16[65536, 65536, 1]"), ("[0 : 4, 0 : N]", "[0 : 4, 0 : N, 0 : 1]")];
    refused(&wide, "buf0 \"x\": has more than 2147483647 rows");
    let words =
        [("\"arrived\" [3]", "\"arrived\" [65536, 65536]"), ("sig1[rank]", "sig1[rank, 0]")];
    let all = [words[0], words[1], ("sig1[s]", "sig1[s, 0]")];
    refused(&all, "sig1 \"arrived\": has more than 2147483647 words");
    let large = [("workspace bf16[12, N]", "workspace bf16[2000000000, 2000000000]")];
    refused(&large, "larger than the memory of any GPU");
}

#[test]
fn places_that_a_launch_decides() {
    let rows =
        [("R = 4", "R = 4 runtime <= 4"), ("bf16[12, N]\nsignal", "bf16[12, 16 * R]\nsignal")];
    refused(&rows, "buf2 \"w\": its rows are as long in every launch: give them the bound");
    let deep = [("K = 144", "K = 144 runtime <= 144")];
    refused_of(TILE, &deep, "rows of buf0 \"a\" are as many elements as a launch says apart");
}

/// Rows that tensor maps cannot have, whoever is asked.
#[test]
fn rows_that_tma_does_not_take() {
    let odd = ("bf16[M, K]", "bf16[M, K] pitch K + 4");
    let says = "rows of buf0 \"a\" are 296 bytes apart";
    refused_of(TILE, &[odd], says);
    let plan: Plan = TILE.replace(odd.0, odd.1).parse().expect("a plan");
    let failure = mk_codegen::valid::verify(&plan).expect_err("rows of 296 bytes");
    assert!(failure.to_string().contains(says), "{failure}");
}

#[test]
fn places_that_an_epoch_decides() {
    let says = "expressions over `epoch` are not emitted";
    for (from, to) in [
        ("write buf2 @ d [rank * 4 : 4", "write buf2 @ d [rank * 4 : 4 - epoch % 2"),
        (
            "read buf0 @ rank [0 : 4, 0 : N] at start",
            "read buf0 @ rank [0 : 4, 0 : N] at start when epoch % 2 < 1",
        ),
        (
            "sig1[rank] @ d += 1 by copier after program_order scope sys at end",
            "sig1[rank] @ d += 1 by copier after program_order scope sys at end each i in 1 + epoch % 2",
        ),
        (
            "sig1[s] >= 1 by copier for generic scope sys at start",
            "sig1[s] >= 1 by copier for generic scope sys at start each i in 1 + epoch % 2",
        ),
        ("  for d in 3\n", "  for d in 3\n  order d = (t + epoch) % 3\n"),
    ] {
        refused(&[(from, to)], says);
    }
}

#[test]
fn copies_that_convert() {
    refused(&[("out bf16[12, N]", "out f32[12, N]")], "copy_tile converts nothing, bf16 to f32");
    let other = ("in bf16[R, N]", "in f16[R, N]");
    refused(&[other], "copy_tile converts nothing, f16 to bf16");
    let by_engine = [
        ("intra_comm ctas 2\n", "intra_comm ctas 2\nrole role2 copy_engine ctas 0\n"),
        (
            "\"push\" role1 {\n  leaf copy_tile via=ldst stages=1",
            "\"push\" role2 {\n  leaf host_copy",
        ),
        (
            "wait e1 sig0[d] >= 1 by copier for generic scope sys at start",
            "wait e1 sig0[p] >= 1 by engine for host scope sys at start each p in 3",
        ),
        ("@ d += 1 by copier", "@ d += 1 by engine"),
    ];
    let text = by_engine.iter().fold(PUSH.to_string(), |text, (from, to)| text.replace(from, to));
    refused_of(&text, &[other], "host_copy converts nothing, f16 to bf16");
}

#[test]
fn names_that_would_hide_those_of_the_kernel() {
    let says = "would hide a name of the kernel";
    for name in ["kDim_N", "kSig0", "kBuf2", "step", "source", "destination_"] {
        let (loops, word, place) =
            (format!("for {name} in"), format!("sig1[{name}]"), format!("[{name} * 4"));
        refused(&[("for s in", &loops), ("sig1[s]", &word), ("[s * 4", &place)], says);
        refused(&[("@ p", &format!("@ {name}")), ("each p", &format!("each {name}"))], says);
    }
}

#[test]
fn two_dimensions_of_one_name() {
    let plan: Plan =
        PUSH.replace("dim1 R =", "dim1 N =").replace("bf16[R,", "bf16[4,").parse().expect("reads");
    let errors = plan.check_structure().expect_err("two dimensions N");
    assert_eq!(errors[0].to_string(), "dim1: `N` is already a dimension: use another name");
}

#[test]
fn parts_of_steps_that_end_inside_a_tensor() {
    let half = [("[0 : M, 0 : K]", "[0 : M, 0 : 72]"), ("[0 : K, 0 : N]", "[0 : 72, 0 : N]")];
    refused_of(TILE, &half, "reads 72 of `a` along k, which are no multiple of 64");
    let deep = [("buf1 \"b\" in bf16[K, N]", "buf1 \"b\" in bf16[K + 8, N]")];
    refused_of(TILE, &deep, "reads 144 of `b` along k, which are no multiple of 64");
}

#[test]
fn tiles_that_are_added_to_what_memory_holds() {
    let adds = [("access c: write", "access c: accumulate")];
    refused_of(TILE, &adds, "no template adds tiles to what buf2 holds");
}

#[test]
fn rows_that_lie_along_several_dimensions() {
    let says = "rows of a tile are contiguous in buf2";
    let c = ("0 : M, 0 : N] at end", "0 : M, 0 : 1, 0 : N] at end");
    refused_of(TILE, &[("out bf16[M, N]", "out bf16[M, 1, N]"), c], says);
    let says = "rows of `a` lie along several dimensions of buf0";
    let a = ("[0 : M, 0 : K]", "[0 : 2, 0 : 64, 0 : K]");
    refused_of(TILE, &[("\"a\" in bf16[M, K]", "\"a\" in bf16[2, 64, K]"), a], says);
    let says = "rows of operand B are contiguous";
    let b = ("[0 : K, 0 : N] at", "[0 : K, 0 : 1, 0 : N] at");
    refused_of(TILE, &[("\"b\" in bf16[K, N]", "\"b\" in bf16[K, 1, N]"), b], says);
}

/// The barriers of a role's tiles are one set, by one set of ids.
#[test]
fn tiles_of_one_role_with_edges_of_their_own() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans/gather_gemm.plan");
    let text = fs::read_to_string(path).expect("the fixture");
    let error = emit(&text.parse().expect("reads")).expect_err("two sets of ids").to_string();
    let says = "fam3 \"gemm.peers\": its tiles share the barriers of \"gemm.own\", and need its internal edges: e5 full, e6 empty, e7 staged, e8 drained";
    assert_eq!(error, says);
    let names = ["full", "empty", "staged", "drained"];
    let one = names.iter().enumerate().fold(text, |text, (i, name)| {
        text.replace(&format!("edge e{} {name}", i + 9), &format!("edge e{} {name}", i + 5))
    });
    emit(&one.parse().expect("reads")).expect("one set of ids");
}

#[test]
fn parts_of_rows_that_leave_in_vectors() {
    let direct = [("store=tma\n", "store=direct\n")];
    let text = direct.iter().fold(TILE.to_string(), |text, (from, to)| text.replace(from, to));
    let columns = "N] at start\n  access c: write buf2 @ rank [0 : M, 0 : N]";
    let fewer = |n: u32| columns.replace("0 : N", &format!("0 : {n}"));
    let says =
        "writes elements 0 to 57 of rows of 256 to `c`: parts of rows are multiples of 16 bytes";
    refused_of(&text, &[(columns, &fewer(57))], says);
    refused_of(&text, &[("0 : N] at end", "4 : 252] at end")], "writes elements 4 to 256");
    let odd = [("dim2 N = 256", "dim2 N = 255"), ("in bf16[K, N]", "in bf16[K, N] pitch 256")];
    let text = odd.iter().fold(text, |text, (from, to)| text.replace(from, to));
    let gap = ("out bf16[M, N]", "out bf16[M, N] pitch 256");
    refused_of(&text, &[gap], "rows of an odd number lie side by side");
    let saves = [
        ("store=tma\n", "store=tma epilogue=save,gelu\n"),
        ("out bf16[M, N]\n", "out bf16[M, N]\nbuffer buf3 \"h\" out bf16[M, N]\n"),
        ("  access c:", "  access e0: write buf3 @ rank [0 : M, 0 : N] at end\n  access c:"),
    ];
    let text = saves.iter().fold(TILE.to_string(), |text, (from, to)| text.replace(from, to));
    let wider = (
        "out bf16[M, N]\nbuffer buf3 \"h\" out bf16[M, N]",
        "out bf16[M, N]\nbuffer buf3 \"h\" out bf16[M, 264]",
    );
    let cut = ("dim2 N = 256", "dim2 N = 250");
    let pitch = ("buf1 \"b\" in bf16[K, N]", "buf1 \"b\" in bf16[K, N] pitch 256");
    let out = ("out bf16[M, N]\n", "out bf16[M, N] pitch 256\n");
    refused_of(&text, &[wider, cut, pitch, out], "writes elements 0 to 250 of rows of 264 to `e0`");
    let narrow = ("block=128x256x64", "block=128x96x64");
    let f32 = ("\"h\" out bf16[M, N]", "\"h\" out f32[M, N]");
    refused_of(&text, &[narrow, f32], "store f32 in whole panels of 64 columns");
}

#[test]
fn what_goes_on_with_sums_saves_nothing() {
    let carries = [
        ("store=tma\n", "store=tma epilogue=carry\n"),
        (
            "out bf16[M, N]\n",
            "out bf16[M, N]\nbuffer buf3 \"passed\" scratch bf16[M, N]\nbuffer buf4 \"h\" out bf16[M, N]\n",
        ),
        ("  access c:", "  access acc_in: read buf3 @ rank [0 : M, 0 : N] at start\n  access c:"),
    ];
    let text = carries.iter().fold(TILE.to_string(), |text, (from, to)| text.replace(from, to));
    let save = (
        "  access acc_in",
        "  access e0: write buf4 @ rank [0 : M, 0 : N] at end\n  access acc_in",
    );
    refused_of(&text, &[("epilogue=carry", "epilogue=save,carry"), save], "saves nothing");
}

#[test]
fn waits_at_the_end() {
    let signal = [
        ("role role0", "signal sig0 \"there\" [1]\nrole role0"),
        (
            "  access a:",
            "  wait e5 sig0[0] >= 1 by loader for async scope sys at start\n  access a:",
        ),
    ];
    let text = signal.iter().fold(TILE.to_string(), |text, (from, to)| text.replace(from, to));
    let late = ("scope sys at start", "scope sys at end");
    refused_of(&text, &[late], "e5 waits at end, by loader: mma_tile waits by loader at start");
}

#[test]
fn places_that_a_sum_s_operands_have() {
    let text = r#"plan "finished"
mesh world=2
target sm_90a
dim dim0 M = 256
dim dim1 N = 64
buffer buf0 "slots" in bf16[2, M, N]
buffer buf1 "c" in bf16[N]
buffer buf2 "y" in bf16[M, N]
buffer buf3 "out" out bf16[M, N]
role role0 compute ctas 1
family fam0 "reduce" role0 {
  leaf reduce_tile epilogue=bias,add
  access src: read buf0 @ rank [s : 1, 0 : M, 0 : N] at start each s in 2
  access e0: read buf1 @ rank [0 : N] at start
  access e1: read buf2 @ rank [0 : M, 0 : N] at start
  access dst: write buf3 @ rank [0 : M, 0 : N] at end
}
"#;
    let says = "operand `e1` does not lie as the sums do";
    refused_of(text, &[("buf2 @ rank [0 : M, 0 : N]", "buf2 @ rank [0 : 128, 0 : N]")], says);
    let bias = ("buf1 @ rank [0 : N]", "buf1 @ rank [0 : 32]");
    refused_of(text, &[bias], "operand `e0` does not lie as the sums do");
    let never = ("0 : N] at start\n  access dst", "0 : N] at start when 0\n  access dst");
    refused_of(text, &[never], "operand `e1` must be one unconditional access");
}

#[test]
fn places_that_an_epilogue_saves_to() {
    let saves = [
        ("store=tma\n", "store=tma epilogue=save,gelu\n"),
        ("out bf16[M, N]\n", "out bf16[M, N]\nbuffer buf3 \"h\" out bf16[M, N]\n"),
        ("  access c:", "  access e0: write buf3 @ rank [0 : M, 0 : N] at end\n  access c:"),
    ];
    let text = saves.iter().fold(TILE.to_string(), |text, (from, to)| text.replace(from, to));
    let says = "operand `e0` does not lie as C does";
    refused_of(&text, &[("buf3 \"h\" out", "buf3 \"h\" scratch")], says);
    refused_of(&text, &[("e0: write", "e0: accumulate")], says);
    let cut = ("e0: write buf3 @ rank [0 : M, 0 : N]", "e0: write buf3 @ rank [0 : M, 0 : 128]");
    refused_of(&text, &[cut], says);
    let gated = [
        ("in bf16[K, N]", "in bf16[K, 2, N]"),
        (
            "bf16[M, N]\nbuffer buf3 \"h\" out bf16[M, N]",
            "bf16[M, N]\nbuffer buf3 \"h\" out bf16[M, 2, N]",
        ),
        ("save,gelu", "save,swiglu"),
        ("256\nbuffer", "128\nbuffer"),
        ("[0 : K, 0 : N]", "[0 : K, 0 : 2, 0 : N]"),
        ("buf3 @ rank [0 : M, 0 : N]", "buf3 @ rank [0 : M, 0 : 2, 0 : N]"),
    ];
    let text = gated.iter().fold(text, |text, (from, to)| text.replace(from, to));
    refused_of(&text, &[("out bf16[M, 2, N]", "out bf16[M, 3, N]")], says);
}

/// A leaf that no file of the emitter describes is named with its family, and not taken for another.
#[test]
fn leaves_without_emission() {
    for (name, says) in [
        ("ring_attention_registers", "in attention the loader waits and the storer posts"),
        ("two_nodes_nic", "a network without nodes (`local=`) has no templates"),
    ] {
        let path = format!("{}/../tests/plans/{name}.plan", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).expect("the fixture");
        let error = emit(&text.parse().expect("reads")).expect_err(name).to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
}

/// Rows that come with each launch, by value: however a plan writes them.
#[test]
fn rows_that_a_launch_decides() {
    let copy = r#"plan "rows"
mesh world=3
target sm_90a
dim dim0 M = 5000 runtime <= 5000
buffer buf0 "x" in bf16[ROWS, 8]
buffer buf1 "y" out bf16[ROWS, 8]
role role0 compute ctas 1
family fam0 "copy" role0 {
  leaf copy_tile via=ldst stages=1
  access src: read buf0 @ rank [0 : ROWS, 0 : 8] at start
  access dst: write buf1 @ rank [0 : ROWS, 0 : 8] at end
}
"#;
    let emits = |rows: &str| {
        let plan: Plan = copy.replace("ROWS", rows).parse().unwrap_or_else(|e| panic!("{e}"));
        emit(&plan).map(|k| k.runtime_dims[0].tensors.iter().map(|t| t.share).collect::<Vec<_>>())
    };
    for (rows, share) in [
        ("M", Share::Whole),
        ("M + 1 - 1", Share::Whole),
        ("max(0, min((M + 2) / 3, M - rank * ((M + 2) / 3)))", Share::Part),
        ("min(max(M - (M + 2) / 3 * rank, 0), (M + 2) / 3)", Share::Part),
        (
            "min((M + 5) / 6, max(M - rank * ((M + 5) / 6), 0)) + \
             min((M + 5) / 6, max(M - (5 - rank) * ((M + 5) / 6), 0))",
            Share::Zigzag,
        ),
    ] {
        assert_eq!(emits(rows).unwrap_or_else(|e| panic!("{rows}: {e}")), [share, share], "{rows}");
    }
    for rows in
        ["M / 3", "M + 1", "min(M, 4999)", "max(0, min((M + 3) / 4, M - rank * ((M + 3) / 4)))"]
    {
        let error = emits(rows).expect_err(rows).to_string();
        assert!(error.contains("more than its rows, or their part on each rank"), "{error}");
    }
}

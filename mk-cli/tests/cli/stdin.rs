//! `-` for a pipeline, a file or a plan.

use crate::command::{TempDir, mk, mk_reads, root};

#[test]
fn a_pipeline_or_a_file() {
    let sizes = ["--shape", "a=64x64", "--shape", "b=64x64"];
    let said = mk_reads(&[&["check", "-"], &sizes[..]].concat(), b"gather(a) -> gemm(b)\n").ok();
    assert!(said.ends_with("OK\n"), "{said}");
    let file = std::fs::read(root().join("examples/gather_gemm.mk")).expect("reads");
    let of_file = mk(&["plan", "examples/gather_gemm.mk"]).ok();
    assert_eq!(mk_reads(&["plan", "-"], &file).ok(), of_file);
    mk_reads(&["check", "-"], b"// M = 8\ngathr(x)")
        .fails(1, &["unknown operation", "--> stdin:2:1"]);
    mk_reads(&["check", "-"], b"\xff").fails(1, &["cannot read stdin: it is not UTF-8 text"]);
    mk(&["check", "-"]).fails(1, &["expected a chain, found the end"]);
}

#[test]
fn a_plan_as_text_and_as_json() {
    let text = mk(&["plan", "examples/gemm.mk"]).ok();
    assert_eq!(mk_reads(&["plan", "-"], text.as_bytes()).ok(), text);
    let json = mk(&["plan", "examples/gemm.mk", "--format", "json"]).ok();
    assert_eq!(mk_reads(&["plan", "-"], json.as_bytes()).ok(), text);
    let comment = format!("// a comment\n{text}");
    assert_eq!(mk_reads(&["plan", "-"], comment.as_bytes()).ok(), text);
    mk_reads(&["check", "-", "--ranks", "2"], text.as_bytes())
        .fails(1, &["`--ranks` does not apply"]);
    mk_reads(&["check", "-"], b"plan \"x\"\nmesh").fails(1, &["stdin: "]);
    let run = ["run", "-", "--device", "cpu", "--reference"];
    let judged = mk_reads(&[&run[..], &["examples/gemm.mk"]].concat(), text.as_bytes()).ok();
    assert!(judged.contains("PASS: "), "{judged}");
    mk_reads(&[&run[..], &["-"]].concat(), text.as_bytes())
        .fails(1, &["stdin cannot be a plan and the pipeline of `--reference`"]);
}

/// The file that a search leaves names the pipeline, with its sizes, and not where it came from.
#[test]
fn a_search() {
    let dir = TempDir::new();
    let json = dir.file("out.json");
    let text = b"// M = 64, K = 64, N = 64\npub fn f(x: bf16[M, K], w: bf16[K, N]) { gemm(x, w) }";
    let tune = ["tune", "-", "--ranks", "1", "--device", "model", "--top", "1", "--json", &json];
    let said = mk_reads(&tune, text).ok();
    assert!(said.contains("pub fn f"), "{said}");
    mk(&["tune", "--from", &json]).ok();
}

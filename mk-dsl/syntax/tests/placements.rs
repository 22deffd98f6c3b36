//! Help lines of mistakes in placements and punctuation, followed: each is accepted, or leads on to what is.

#[path = "../../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;

use mk_syntax::Program;

/// The edits that a help line names, one for each way out.
fn edits(text: &str, help: &str) -> Vec<String> {
    help.split(", or ").flat_map(|way| of_way(text, way)).collect()
}

fn of_way(text: &str, way: &str) -> Vec<String> {
    let words: Vec<&str> = way.split('`').collect();
    let quoted: Vec<&str> = words.iter().skip(1).step_by(2).copied().collect();
    match (words[0], quoted.as_slice()) {
        ("write ", [op, before, name, place]) if words.contains(&" and declare ") => {
            vec![declared(&before_stage(text, op, before), name, place)]
        }
        ("write ", [ops @ .., before]) if !ops.is_empty() && words[words.len() - 2] == *before => {
            ops.iter().map(|op| before_stage(text, op, before)).collect()
        }
        ("write ", ["ring(k, v) -> attention(q)"]) => {
            vec![text.replace("attention(q, k, v)", "ring(k, v) -> attention(q)")]
        }
        ("write ", [scatter]) if scatter.starts_with("reduce_scatter(dim") => {
            vec![text.replace("-> reduce_scatter", &format!("-> {scatter}"))]
        }
        ("declare ", [name, place, other, with]) if !other.starts_with('@') => {
            vec![declared(&declared(text, name, place), other, with)]
        }
        ("declare ", [name, places @ ..]) => {
            places.iter().map(|place| declared(text, name, place)).collect()
        }
        ("remove ", [op]) => vec![removed(text, op)],
        ("the body gives ", [ty]) => {
            let (before, rest) = text.split_once(") -> ").unwrap();
            let (_, body) = rest.split_once(" {").unwrap();
            vec![format!("{before}) -> {ty} {{{body}")]
        }
        _ => panic!("{text}\nnobody can follow: {way}"),
    }
}

/// `gather ->` before `gemm`, which may be the first stage with its input as first argument.
fn before_stage(text: &str, op: &str, before: &str) -> String {
    let (head, body) = text.split_once('{').unwrap();
    let at = body.find(before).unwrap();
    let first = !body[..at].contains("->") && body[at + before.len()..].starts_with('(');
    if !first {
        return format!("{head}{{{}{op} {}", &body[..at], &body[at..]);
    }
    let call = &body[at + before.len() + 1..];
    let (input, rest) = call.split_once(", ").unwrap();
    let op = op.trim_end_matches(" ->");
    format!("{head}{{{}{op}({input}) -> {before}({rest}", &body[..at])
}

fn declared(text: &str, name: &str, place: &str) -> String {
    let at = text.find(&format!("{name}: ")).unwrap();
    let close = at + text[at..].find(']').unwrap() + 1;
    let rest = &text[close..];
    let end = match rest.starts_with(" @ ") {
        true => 3 + rest[3..].find([' ', ',', ')']).unwrap() + usize::from(rest[3..].contains('(')),
        false => 0,
    };
    // `shard(0)` ends behind its bracket.
    let end = match rest[..end].contains('(') {
        true => rest.find(')').unwrap() + 1,
        false if end > 0 => 3 + rest[3..].find([' ', ',', ')']).unwrap(),
        false => 0,
    };
    format!("{} {place}{}", &text[..close], &rest[end..])
}

fn removed(text: &str, op: &str) -> String {
    let (head, body) = text.split_once('{').unwrap();
    let stage = [format!(" -> {op}(dim = 1)"), format!(" -> {op}")];
    if let Some(stage) = stage.iter().find(|stage| body.contains(stage.as_str())) {
        return format!("{head}{{{}", body.replacen(stage.as_str(), "", 1));
    }
    let (before, rest) = body.split_once(&format!("{op}(")).unwrap();
    let (input, after) = rest.split_once(')').unwrap();
    format!("{head}{{{before}{input}{after}")
}

/// Follows the help of each mistake by every way that it names, until nothing is left to be said.
fn follow(text: &str, steps: usize) -> usize {
    let Err(mistakes) = Program::parse(text) else { return 0 };
    let mistake = mistakes.iter().next().unwrap();
    assert!(steps > 0, "{text}\nhelp leads nowhere:\n{mistakes}");
    let ways = edits(text, &mistake.help);
    assert!(!ways.is_empty(), "{mistakes}");
    let followed = ways.iter().map(|edited| {
        let same = |d: &mk_syntax::Diagnostic| d.message == mistake.message;
        let again = Program::parse(edited).is_err_and(|m| m.iter().any(same));
        assert!(!again, "{text}\n{mistakes}\nthe mistake is still in\n{edited}");
        follow(edited, steps - 1)
    });
    1 + followed.sum::<usize>()
}

/// Pipelines with `@` where each parameter's placement goes.
const PIPELINES: &[(&str, &[usize])] = &[
    ("pub fn f(a: bf16[M, K]@, b: bf16[K, N]@) { a -> gemm(b) }", &[2, 2]),
    ("pub fn f(a: bf16[M, K]@, b: bf16[N, K]@) { a -> gemm(b.t) }", &[2, 2]),
    ("pub fn f(a: bf16[M, K]@, b: bf16[K, N]@) { gather(a) -> gemm(b) }", &[2, 2]),
    (
        "pub fn f(a: bf16[M, K]@, b: bf16[K, N]@) { gather(a) -> gemm(b) -> reduce_scatter }",
        &[2, 2],
    ),
    ("pub fn f(a: bf16[M, K]@, b: bf16[K, N]@) { gemm(a, b) -> all_reduce }", &[2, 2]),
    (
        "pub fn f(a: bf16[M, K]@, b: bf16[K, N]@) -> bf16[M, N] @ shard(0) { gemm(a, b) -> reduce_scatter }",
        &[2, 2],
    ),
    ("pub fn f(a: bf16[M, K]@, b: bf16[K, N]@) { gemm(a, b) -> gelu }", &[2, 2]),
    ("pub fn f(a: bf16[M, K]@, b: bf16[K, N]@, c: bf16[N]@) { gemm(a, b) -> bias(c) }", &[2, 2, 1]),
    (
        "pub fn f(a: bf16[M, K]@, b: bf16[K, N]@, c: bf16[M, N]@) { gemm(a, b) -> add(c) }",
        &[2, 2, 2],
    ),
    (
        "pub fn f(a: bf16[M, K]@, b: bf16[K, N]@, c: bf16[M, N]@) { gemm(a, b) -> mul(c) }",
        &[2, 2, 2],
    ),
    ("pub fn f(a: bf16[M, K]@, b: bf16[K, 2, N]@) { gather(a) -> gemm(b) -> swiglu }", &[2, 3]),
    (
        "pub fn f(q: bf16[B, S, H, 128]@, k: bf16[B, S, G, 128]@, v: bf16[B, S, G, 128]@) { attention(q, k, v) }",
        &[4, 4, 4],
    ),
    (
        "pub fn f(q: bf16[B, S, H, 128]@, k: bf16[B, S, G, 128]@, v: bf16[B, S, G, 128]@) { ring(k, v) -> attention(q) }",
        &[4, 4, 4],
    ),
    (
        "pub fn f(x: bf16[R, K]@, n: i32[E]@, w: bf16[E, K, N]@) { ragged(x, n) -> grouped_gemm(w) }",
        &[2, 1, 3],
    ),
    (
        "pub fn f(x: bf16[T, H]@, ids: i32[T, K]@, w: bf16[E, H, N]@, g: f32[T, K]@) { dispatch(x, ids) -> grouped_gemm(w) -> combine(g) }",
        &[2, 2, 3, 2],
    ),
];

fn placements(n_dims: usize) -> Vec<String> {
    let mut all = vec!["replicate".to_owned(), "partial".to_owned()];
    all.extend((0..n_dims).map(|dim| format!("shard({dim})")));
    all.extend((n_dims == 4).then(|| "zigzag(1)".to_owned()));
    all
}

#[test]
fn help_of_placements_is_accepted() {
    let (mut texts, mut followed) = (0, 0);
    for (pipeline, dims) in PIPELINES {
        let parts: Vec<&str> = pipeline.split("]@").collect();
        assert_eq!(parts.len(), dims.len() + 1);
        let mut all = vec![parts[0].to_owned()];
        for (part, n_dims) in parts[1..].iter().zip(*dims) {
            let places = placements(*n_dims);
            let more = |text: &String| -> Vec<String> {
                places.iter().map(|p| format!("{text}] @ {p}{part}")).collect()
            };
            all = all.iter().flat_map(more).collect();
        }
        for text in drawn::some(all, 4) {
            texts += 1;
            followed += follow(&text, 5);
        }
    }
    let least = if drawn::whole() { 1000 } else { 250 };
    assert!(texts > least && followed > texts, "{followed} of {texts}");
}

/// The one that users of NCCL write.
#[test]
fn a_reduction_of_shards_asks_for_contributions() {
    let text = "pub fn f(a: bf16[M, K] @ shard(0), b: bf16[K, N] @ shard(1)) -> bf16[M, N] @ shard(0) \
                { gather(a) -> gemm(b) -> reduce_scatter }";
    let mistakes = Program::parse(text).unwrap_err();
    let help: Vec<_> = mistakes.iter().map(|d| d.help.as_str()).collect();
    assert_eq!(help, ["declare `b` `@ partial`"]);
}

/// What is missing is said once, and what follows is read all the same.
#[test]
fn a_missing_semicolon_is_one_mistake() {
    let mut tried = 0;
    for text in [
        "let h = gather(a);\nh -> gemm(b)",
        "let h = gather(a); let g = h -> gemm(b); (g -> gelu, h)",
        "let h = gather(a); h",
        "pub fn f(x: bf16[M, K] @ shard(0)) -> bf16[M, K] { let h = gather(x); h }",
        "pub fn f(x: bf16[M, K] @ shard(0)) -> bf16[M, K] { let h = gather(x); let g = h -> gelu; g }",
        "let h = gather(a);",
    ] {
        for (at, _) in text.match_indices(';') {
            let cut = format!("{}{}", &text[..at], &text[at + 1..]);
            let mistakes = Program::parse(&cut).unwrap_err();
            assert_eq!(mistakes.iter().count(), 1, "{cut}\n{mistakes}");
            assert!(mistakes.to_string().contains("expected `->` or `;`"), "{mistakes}");
            tried += 1;
        }
    }
    assert_eq!(tried, 8);
}

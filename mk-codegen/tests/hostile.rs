//! No text makes the plan reader, the structure check or the verifier panic, overflow the stack, or work for long.

use mk_codegen::{ir::Plan, valid};
use proptest::prelude::*;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Generous for a busy machine; the work itself takes milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// Reads, prints, checks and verifies, and looks at the time.
fn read(text: &str) -> Result<(), String> {
    let begin = Instant::now();
    let done = text.parse::<Plan>().map_err(|e| e.to_string()).map(|plan| {
        let printed = plan.to_string();
        assert_eq!(printed.parse::<Plan>().as_ref(), Ok(&plan), "{printed}");
        let Err(failure) = valid::verify(&plan) else { return };
        // A failure can be said and drawn.
        assert!(!failure.to_string().is_empty());
        assert!(valid::timeline(&plan, &failure).ends_with("</svg>\n"));
    });
    assert!(begin.elapsed() < LIMIT, "took {:?}", begin.elapsed());
    done
}

fn fixtures() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans");
    let files = fs::read_dir(&dir).expect("tests/plans").map(|e| e.expect("an entry").path());
    let mut files: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "plan")).collect();
    files.sort();
    files.iter().map(|p| fs::read_to_string(p).expect("readable")).collect()
}

const HEAD: &str = "plan \"p\"\nmesh world=2\ntarget sm_90a\n";

#[test]
fn a_megabyte_of_one_thing() {
    for part in ["role role0 compute ctas 1\n", "x ", "\"", "// \n", "mesh ", "é", "\0", "9"] {
        let text = HEAD.to_owned() + &part.repeat((1 << 20) / part.len());
        assert!(read(&text).is_err() || part == "// \n", "{part:?}");
    }
}

#[test]
fn ten_thousand_brackets() {
    for (open, close) in [("(", ")"), ("[", "]"), ("min(", ")"), ("select(1, 2, ", ")"), ("-", "")]
    {
        let expr = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
        assert!(read(&format!("{HEAD}signal sig0 \"s\" [{expr}]\n")).is_err(), "{open}");
        assert!(read(&format!("{HEAD}signal sig0 \"s\" [{}", open.repeat(10_000))).is_err());
    }
    // Long, but flat.
    let sum = vec!["1"; 20_000].join(" + ");
    let _ = read(&format!("{HEAD}signal sig0 \"s\" [{sum}]\n"));
}

#[test]
fn loops_without_end_are_refused() {
    let task = |loops: &str| {
        format!(
            "{HEAD}signal sig0 \"s\" [1]\nrole role0 compute ctas 1\nfamily fam0 \"f\" role0 {{\n  leaf signal\n{loops}  post e0 sig0[0] @ rank += 1 by lead after program_order scope gpu at start\n}}\n"
        )
    };
    assert_eq!(read(&task("  for i in 4\n")), Ok(()));
    let huge = ["  for i in 2147483647\n", "  for i in 65536\n  for j in 65536\n  for k in 0\n"];
    for loops in huge {
        let plan: Plan = task(loops).parse().expect("a plan");
        assert!(valid::verify(&plan).is_err(), "{loops}");
        assert_eq!(read(&task(loops)), Ok(()));
    }
}

/// A fixture with a few pieces cut out, doubled, or replaced by pieces of another place.
fn spliced() -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..24usize, 0..4u8);
    let number = prop::sample::select(vec!["0", "1", "2", "-1", "65536", "2147483647", "rank"]);
    let all = fixtures();
    (0..all.len(), prop::collection::vec((edit, number), 1..5)).prop_map(move |(i, edits)| {
        let mut text: Vec<char> = all[i].chars().collect();
        for ((at, from, len, kind), number) in edits {
            let at = at.index(text.len());
            let end = (at + len).min(text.len());
            let with: Vec<char> = match kind {
                0 => Vec::new(),
                1 => text[at..end].repeat(2),
                2 => number.chars().collect(),
                _ => {
                    let from = from.index(text.len());
                    text[from..(from + len).min(text.len())].to_vec()
                }
            };
            text.splice(at..end, with);
            if text.is_empty() {
                text.push(' ');
            }
        }
        text.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in "\\PC{0,200}") {
        let _ = read(&text);
        let _ = read(&(HEAD.to_owned() + &text));
    }

    #[test]
    fn fixtures_in_pieces(text in spliced()) {
        let _ = read(&text);
    }
}

//! No text makes the plan reader, the structure check or the verifier panic, overflow the stack, or work for long.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
#[path = "common/memory.rs"]
mod memory;

use mk_codegen::{
    emit,
    plan::{Expr, Plan},
    valid,
};
use proptest::prelude::*;
use std::{
    fs,
    path::Path,
    thread,
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

/// A plan whose one family posts, with tables and lines of its own.
fn poster(tables: &str, loops: &str, tail: &str) -> Plan {
    let text = format!(
        "plan \"p\"\nmesh world=1\ntarget sm_90a\n{tables}signal sig0 \"s\" [1]\nrole role0 compute ctas 1\nfamily fam0 \"f\" role0 {{\n  leaf signal\n{loops}  post e0 sig0[0] @ rank += 1 by lead after program_order scope gpu at start{tail}\n}}\n"
    );
    text.parse().expect("a plan")
}

#[test]
fn a_text_is_read_in_time_that_grows_with_it() {
    let names = format!("{HEAD}signal sig0 \"s\" [{}]\n", vec!["rank"; 400_000].join(", "));
    assert_eq!(read(&names), Ok(()));
    let dims: String = (0..100_000).map(|i| format!("dim dim{i} d{i} = 1\n")).collect();
    let last = vec!["d99999"; 300_000].join(", ");
    assert_eq!(read(&format!("{HEAD}{dims}signal sig0 \"s\" [{last}]\n")), Ok(()));
    let family =
        |lines: &str| format!("{HEAD}family fam0 \"f\" role0 {{\nleaf signal\n{lines}}}\n");
    // Lines whose words are looked up, and that have limits of their own.
    for line in ["edge e0 full\n", "access src: read buf0 @ rank [0 : 1] at start\n"] {
        assert_eq!(read(&family(&line.repeat((4 << 20) / line.len()))), Ok(()), "{line}");
    }
    let head = "leaf mma_tile block=64x64x64 stages=2 b=kn store=tma";
    let families: String = (0..20_000)
        .map(|i| {
            format!("family fam{i} \"f\" role0 {{\n{head}\nfor x{i} in 1\ninner y{i} in 1\n}}\n")
        })
        .collect();
    assert_eq!(read(&format!("{HEAD}{dims}{families}")), Ok(()));
}

/// Families that do nothing: a name, how many, and the text of one.
const FAMILIES: &[(&str, usize, &str)] = &[
    ("signal", 10_000, "{ID} role0 {\n  leaf signal\n}\n"),
    ("none", 10_000, "{ID} role0 {\n  leaf signal\n  for i in 0\n}\n"),
    (
        "copy",
        1000,
        "{ID} role0 {\n  leaf copy_tile via=ldst stages=1\n  access src: read buf0 @ rank [0 : 0, 0 : N] at start\n  access dst: write buf1 @ rank [0 : 0, 0 : N] at end\n}\n",
    ),
    (
        "bulk",
        1000,
        "{ID} role0 {\n  leaf copy_tile via=bulk stages=2\n  for i in 0\n  edge e0 full\n  edge e1 empty\n  access src: read buf0 @ rank [i : 1, 0 : N] at start\n  access dst: write buf1 @ rank [i : 1, 0 : N] at end\n}\n",
    ),
    (
        "product",
        1000,
        "{ID} role0 {\n  leaf mma_tile block=128x256x64 stages=3 b=kn store=direct cluster=2\n  for i in 0\n  edge e0 full\n  edge e1 empty\n  edge e2 staged\n  edge e3 drained\n  access a: read buf0 @ rank [0 : 1, 0 : N] at start\n  access b: read buf2 @ rank [0 : N, 0 : N] at start\n  access c: write buf1 @ rank [0 : 1, 0 : N] at end\n}\n",
    ),
];

/// Four times as many families take about four times as long: read, checked, proved, printed and emitted, whether a kernel comes of it or none.
#[test]
fn families_take_time_that_grows_with_them() {
    let head = "plan \"p\"\nmesh world=1\ntarget sm_90a\ndim dim0 N = 64\nbuffer buf0 \"x\" in bf16[1, N]\nbuffer buf1 \"y\" out bf16[1, N]\nbuffer buf2 \"w\" in bf16[N, N]\nrole role0 intra_comm ctas 2\n";
    for (name, few, family) in drawn::some(FAMILIES, 4) {
        let took = |n: usize| {
            let one = |i: usize| family.replace("{ID}", &format!("family fam{i} \"f{i}\""));
            let text = head.to_string() + &(0..n).map(one).collect::<String>();
            let begin = Instant::now();
            let plan: Plan = text.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
            let read = begin.elapsed();
            let refused = valid::verify(&plan).err().map(|e| e.to_string());
            let proved = begin.elapsed();
            let emitted = emit::emit(&plan).map(|kernel| kernel.cuda.len());
            let all = begin.elapsed();
            assert_eq!(plan.to_string().parse::<Plan>().as_ref(), Ok(&plan), "{name}");
            println!(
                "{n} {name}: read in {read:.1?}, proved by {proved:.1?}, emitted by {all:.1?}, {refused:?}, {emitted:?}"
            );
            begin.elapsed()
        };
        // Whoever else is at work: the shortest of three.
        let [few, many] = [*few, 4 * few].map(|n| took(n).min(took(n)).min(took(n)));
        assert!(
            many < 8 * few + Duration::from_secs(1),
            "{name}: {few:?}, and {many:?} for 4 times as many"
        );
    }
}

#[test]
fn what_lines_repeat_is_short() {
    let family =
        |lines: &str| format!("{HEAD}family fam0 \"f\" role0 {{\nleaf signal\n{lines}}}\n");
    assert_eq!(read(&family("inner a in 1\n")), Ok(()));
    let error = read(&family("inner a in 1\ninner b in 1\n")).expect_err("two loops");
    assert!(error.contains("line 7, column 7: a family has one inner loop"), "{error}");
    let error = read(&family("leaf enter\n")).expect_err("two leaves");
    assert!(error.contains("no second `leaf` line"), "{error}");
    for (n, fine) in [(4096, true), (4097, false)] {
        let name = "x".repeat(n);
        assert_eq!(read(&format!("{HEAD}dim dim0 {name} = 1\n")).is_ok(), fine);
        // Quotes count.
        assert_eq!(read(&format!("{HEAD}signal sig0 \"{}\" [1]\n", &name[2..])).is_ok(), fine);
    }
}

#[test]
fn deep_expressions_fit_a_small_stack() {
    let nested = |n: usize| {
        let sums = (0..n).fold("1".to_string(), |e, _| format!("({e}{})", " + 0".repeat(50)));
        format!("{HEAD}signal sig0 \"s\" [{sums}]\n")
    };
    let calls = |open: &str| {
        let expr = format!("{}1{}", open.repeat(100), ")".repeat(100));
        format!("{HEAD}signal sig0 \"s\" [{expr}]\n")
    };
    let chain = format!("{HEAD}signal sig0 \"s\" [1{}]\n", " * 1".repeat(200));
    let deepest =
        [nested(4), calls("select(1, 1, "), calls("min(1, "), calls("max(0, 1 + "), chain];
    let walk = move || {
        for text in deepest {
            assert_eq!(read(&text), Ok(()), "{text}");
            let plan: Plan = text.parse().expect("a plan");
            let e = &plan.signals.values().next().expect("a signal").shape[0];
            assert!(!e.mentions(mk_codegen::plan::Var::EPOCH) && e.clone() == *e);
            assert!(!mk_codegen::plan::CPrinter::new(&plan, None).print(e).is_empty());
            assert_ne!(format!("{e:?}"), format!("{:?}", Expr::Const(0)));
        }
    };
    // Half of what a thread has, which suffices without optimisation, too.
    thread::Builder::new().stack_size(1 << 20).spawn(walk).expect("a thread").join().expect("ok");
    for text in [nested(5), nested(100), nested(4).replacen("1", "1 * 1", 1)] {
        let error = read(&text).expect_err("too deep");
        assert!(error.contains("too deep: at most 200 operations"), "{error}");
    }
}

#[test]
fn tables_are_bounded_before_they_are_filled() {
    let table = |ranks: u32, shape: &str| {
        format!(
            "plan \"p\"\nmesh world={ranks}\ntarget sm_90a\ntable tab0 \"a\" [{shape}] runtime 0..=1\nrole role0 compute ctas 1\n"
        )
    };
    let errors = |text: &str| {
        let plan: Plan = text.parse().expect("a plan");
        let errors = plan.check_structure().err().unwrap_or_default();
        assert_eq!(valid::verify(&plan).is_err(), !errors.is_empty());
        errors.iter().map(|e| e.to_string()).collect::<String>()
    };
    assert_eq!(errors(&table(2, "1024")), "");
    for text in [
        table(2, "8388609"),
        table(64, "16777216"),
        table(1, "16777216").replace("role role0", "table tab1 \"b\" [1] const 0\nrole role0"),
    ] {
        let (said, bytes) = memory::peak_bytes(|| errors(&text));
        assert!(said.contains("on all ranks together, more than 16777216 entries"), "{said}");
        assert!(bytes < 1 << 20, "{bytes}");
    }
    // The length of the counts, and one, is no number of 32 bits.
    let text = table(1, "4294967295")
        .replace("role role0", "table tab1 \"b\" [1] prefix tab0 align 1\nrole role0");
    assert!(errors(&text).contains("tab1 \"b\": must have one more entry"), "{text}");
}

#[test]
fn counts_are_as_many_as_their_tables_allow() {
    // Two thousand fillings of a large table.
    let table = |n: u64| format!("table tab0 \"n\" [{n}] runtime 0..=2000\n");
    let proof = |plan| valid::verify(&plan).expect("a proof");
    let entries = 1 << 20;
    let large = proof(poster(&table(entries), "", " when tab0[0] < 5"));
    assert!(!large.exhaustive && large.counts * entries < 1 << 27, "{large}");
    let small = proof(poster(&table(64), "", " when tab0[0] < 5"));
    assert!(small.exhaustive && small.counts == 2001, "{small}");
    // One task at the greatest count, and many at all others.
    let table = "table tab0 \"n\" [1] runtime 0..=100\n";
    let late = proof(poster(table, "  for i in select(tab0[0] < 100, 200000, 1)\n", ""));
    assert!(!late.exhaustive && late.counts < 20, "{late}");
}

const COPIES: &str = "plan \"p\"\nmesh world=2\ntarget sm_90a\nbuffer buf0 \"x\" in bf16[8]\nbuffer buf1 \"w\" workspace bf16[2, 8]\nbuffer buf2 \"y\" scratch bf16[6000]\nsignal sig0 \"s\" [1]\nrole role0 compute ctas 1\nrole role1 intra_comm ctas 1
family fam0 \"f\" role1 {
  leaf copy_tile via=ldst stages=1
  access src: read buf0 @ rank [0 : 8] at start
  access dst: write buf1 @ 1 - rank [epoch % 2 : 1, 0 : 8] at end
  wait e2 sig0[0] >= 1 lag 1 by copier for generic scope gpu at start
  post e3 sig0[0] @ rank += 1 by copier after program_order scope gpu at end
}
family fam1 \"g\" role0 {
  leaf copy_tile via=ldst stages=1
  for i in 6000
  access src: read buf0 @ rank [0 : 1] at start
  access dst: write buf2 @ rank [i : 1] at end
}
family fam2 \"h\" role0 {
  leaf copy_tile via=ldst stages=1
  access src: read buf0 @ rank [0 : 8] at start
  access dst: write buf1 @ rank [epoch % 2 : 1, 0 : 8] version 1 at end
}
";

#[test]
fn a_counterexample_visits_a_kernel_once() {
    let plan: Plan = COPIES.parse().expect("a plan");
    let (failure, bytes) = memory::peak_bytes(|| valid::verify(&plan).expect_err("races"));
    assert!(failure.to_string().contains("rule 1: race"), "{failure}");
    assert!(bytes < 64 << 20, "{bytes}");
}

#[test]
fn posts_after_an_access_are_looked_at_once() {
    let n = 40_000;
    let text = format!(
        "plan \"p\"\nmesh world=1\ntarget sm_90a\nbuffer buf0 \"x\" in bf16[{n}]\nbuffer buf1 \"w\" scratch bf16[{n}]\nbuffer buf2 \"y\" out bf16[{n}]\nsignal sig0 \"s\" [{n}]\nrole role0 compute ctas 1\nrole role1 intra_comm ctas 1
family fam0 \"f\" role1 {{
  leaf copy_tile via=ldst stages=1
  access src: read buf0 @ rank [0 : {n}] at start
  access dst: write buf1 @ rank [0 : {n}] at end
  post e0 sig0[i] @ rank += 1 by copier after program_order scope gpu at end each i in {n}
}}
family fam1 \"g\" role0 {{
  leaf copy_tile via=ldst stages=1
  for i in {n}
  access src: read buf1 @ rank [i : 1] at start
  access dst: write buf2 @ rank [i : 1] at end
  wait e1 sig0[i] >= 1 by copier for generic scope gpu at start
}}
"
    );
    let plan: Plan = text.parse().expect("a plan");
    assert_eq!(valid::verify(&plan).map(|p| p.searched), Ok(n));
    assert_eq!(read(&text), Ok(()));
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

//! The text format prints and reads back identically; expressions mean in C what they mean here.

use mk_codegen::{emit, passes::lower, plan::Plan, settings::Config, valid};
use mk_syntax::Program;
use std::{collections::BTreeMap, fs, path::Path};

#[test]
fn every_fixture_prints_and_reads_back_identically() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans");
    let mut seen = 0;
    for entry in fs::read_dir(&dir).expect("tests/plans") {
        let path = entry.expect("entry").path();
        if path.extension().is_none_or(|e| e != "plan") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        let plan: Plan = text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        plan.check_structure().unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
        let printed = plan.to_string();
        let again: Plan = printed.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(plan, again, "{}", path.display());
        assert_eq!(printed, again.to_string(), "{}", path.display());
        seen += 1;
    }
    assert!(seen > 0, "no fixtures in {}", dir.display());
}

#[test]
fn a_plan_has_its_head_lines_exactly_once() {
    let read = |text: &str| text.parse::<Plan>().map_err(|e| e.message);
    assert!(read("plan \"p\"\nmesh world=2\ntarget sm_90a\n").is_ok());
    // Nothing at all was read as a plan once, and could not be printed and read back.
    assert_eq!(read(""), Err("a plan needs a `plan` line".into()));
    assert_eq!(read("plan \"p\"\nmesh world=2\n"), Err("a plan needs a `target` line".into()));
    let twice = read("plan \"p\"\nmesh world=2\nmesh local=2\ntarget sm_90a\n").unwrap_err();
    assert!(twice.contains("no second `mesh` line"), "{twice}");
}

/// What `check_structure` says of some lines behind the head of a plan of four ranks; nothing if it is well formed.
fn structure(lines: &str) -> String {
    let text =
        format!("plan \"p\"\nmesh world=4\ntarget sm_90a\n{lines}\nrole role0 compute ctas 1\n");
    let plan: Plan = text.parse().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(plan.to_string().parse(), Ok(plan.clone()), "{lines}");
    let json = plan.to_json().expect("JSON");
    assert_eq!(Plan::from_json(&json).expect("a plan"), plan, "{lines}");
    let errors = plan.check_structure().err().unwrap_or_default();
    errors.iter().map(|e| format!("{e}\n")).collect()
}

#[test]
fn nodes_are_of_equally_many_ranks() {
    let net = "buffer buf0 \"b\" net bf16[8]\nsignal sig0 \"s\" net [1]";
    assert_eq!(structure(&format!("nic in_order local=2 fifo=4 lanes=4\n{net}")), "");
    assert_eq!(structure(&format!("nic unordered local=4 fifo=1\n{net}")), "");
    assert_eq!(structure("nic unordered fifo=1"), "");
    assert!(structure("nic in_order local=3 fifo=4").contains("equally many of the 4 ranks"));
    assert!(structure("nic in_order local=0 fifo=4").contains("equally many of the 4 ranks"));
    assert!(structure("nic in_order fifo=4 lanes=0").contains("1 to 64 lanes"));
    for head in ["", "nic in_order fifo=4\n"] {
        let errors = structure(&format!("{head}{net}"));
        assert_eq!(errors.matches("is for the network between nodes").count(), 2, "{errors}");
    }
}

#[test]
fn blocks_are_made_of_counts_and_places_of_blocks() {
    let table = |shape: &str, source: &str| format!("\ntable tab1 \"t\" [{shape}] {source}");
    let of = |counts: &str, shape: &str, source: &str| {
        structure(&format!("table tab0 \"n\" {counts}{}", table(shape, source)))
    };
    let counts = "[3] runtime 0..=9";
    assert_eq!(of(counts, "5, 2", "blocks tab0 rows 4"), "");
    assert!(of(counts, "5", "blocks tab0 rows 4").contains("must be [blocks, 2]"));
    assert!(of(counts, "0, 2", "blocks tab0 rows 4").contains("must be [blocks, 2]"));
    assert!(of(counts, "5, 2", "blocks tab0 rows 0").contains("at least 1 row"));
    assert!(of(counts, "5, 2", "blocks tab1 rows 4").contains("before it that comes with"));
    let fixed = of("[3] const 1 2 3", "5, 2", "blocks tab0 rows 4");
    assert!(fixed.contains("that comes with each launch"), "{fixed}");
    let least = of("[3] runtime 5..=9", "5, 2", "blocks tab0 rows 4");
    assert!(least.contains("no room for the fewest rows"), "{least}");
    assert!(of(counts, "4, 2", "places tab0").contains("places in a table of blocks"));
    let places = |shape: &str| {
        let blocks = table("5, 2", "blocks tab0 rows 4");
        structure(&format!(
            "table tab0 \"n\" {counts}{blocks}\ntable tab2 \"p\" [{shape}] places tab1"
        ))
    };
    assert_eq!(places("4, 3, 2"), "");
    assert!(places("4, 3").contains("must be [.., 2]"));
}

#[test]
fn names_print_as_they_were_read() {
    let read =
        |name: &str| format!("plan \"{name}\"\nmesh world=2\ntarget sm_90a\n").parse::<Plan>();
    for name in ["gather(a) -> gemm", "größe", "it's"] {
        let plan = read(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(plan.to_string().parse(), Ok(plan), "{name}");
    }
    // These came back with escapes once, which the reader does not know.
    for name in ["a\u{1}b", "a\\b", "a\tb", "\u{200b}"] {
        assert!(read(name).is_err(), "{name:?}");
    }
}

/// Lowers a pipeline whose symbols and tensors have hostile names.
fn with_names(m: &str, k: &str, n: &str, tensors: [&str; 2]) -> Plan {
    let [x, w] = tensors;
    let text = format!(
        "fn f<{m}: dyn <= 300>({x}: bf16[{m}, {k}] @ shard(0), {w}: bf16[{k}, {n}] @ shard(1)) {{ gather({x}) -> gemm({w}) }}"
    );
    let program = Program::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let dims = BTreeMap::from([(k.to_string(), 64), (n.to_string(), 72)]);
    let bound = program.bind(&dims, &BTreeMap::new()).expect("sizes");
    let config = Config { ranks: 2, ..Config::default() };
    lower(&program, &bound, &config).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Names that mean something in plans or kernels, or that passes give.
const HOSTILE: &[&str] = &[
    "t", "rank", "epoch", "min", "max", "select", "and", "each", "when", "at", "by", "lag",
    "version", "runtime", "in", "i", "j", "s", "p", "c", "kDim_M", "int", "dim0", "dim1", "dim7",
    "tab0", "buf0", "M_", "pitch", "family", "x_all", "slots", "out", "w_packed", "hidden",
];

#[test]
fn any_name_of_a_pipeline_prints_and_reads_back() {
    let mut tried = 0;
    for (i, name) in HOSTILE.iter().enumerate() {
        let other = HOSTILE[(i + 1) % HOSTILE.len()];
        let third = HOSTILE[(i + 2) % HOSTILE.len()];
        for (dims, tensors) in
            [([*name, other, third], ["x", "w"]), (["M", "K", "N"], [*name, other])]
        {
            // The language has words of its own.
            let [m, k, n] = dims;
            let word = |w: &&str| ["in", "fn", "let", "dyn"].contains(w);
            if dims.iter().chain(&tensors).any(word) {
                continue;
            }
            let plan = with_names(m, k, n, tensors);
            let text = plan.to_string();
            let again: Plan = text.parse().unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            assert_eq!(again, plan, "{name}");
            assert_eq!(again.to_string(), text, "{name}");
            let json = plan.to_json().expect("JSON");
            assert_eq!(Plan::from_json(&json).expect(name), plan);
            valid::verify(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
            let source = emit::emit(&plan);
            let source = source.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(!plan.dims.is_empty());
            for dim in plan.dims.values().map(|d| &d.name) {
                assert!(source.cuda.contains(&format!("int kDim_{dim} = ")), "{name}: {dim}");
            }
            tried += 1;
        }
    }
    assert!(tried > 50, "{tried}");
}

#[test]
fn a_dollar_marks_the_name_of_a_dimension() {
    let plan = with_names("t", "rank", "each", ["x", "w"]);
    let text = plan.to_string();
    assert!(text.contains("dim dim0 $t = 300 runtime <= 300"), "{text}");
    assert!(text.contains("order i = t % 2"), "{text}");
    assert!(text.contains("$rank]"), "{text}");
    // It may stand before any dimension, and before nothing else.
    let plain = with_names("M", "K", "N", ["x", "w"]);
    assert_eq!(plain.to_string().replace("[M, ", "[$M, ").parse(), Ok(plain.clone()));
    for (from, to) in
        [("@ rank ", "@ $rank "), ("for i in", "for $i in"), ("leaf", "$leaf"), ("[M, ", "[$, ")]
    {
        let wrong = plain.to_string().replacen(from, to, 1);
        assert_ne!(wrong, plain.to_string());
        assert!(wrong.parse::<Plan>().is_err(), "{to}");
    }
}

#[test]
fn what_is_said_twice_or_not_at_all_is_refused_with_its_line() {
    let text = with_names("M", "K", "N", ["x", "w"]).to_string();
    let line = |needle: &str| text.lines().position(|l| l.contains(needle)).expect("a line") + 1;
    let leaf = text.lines().find(|l| l.contains("leaf copy_tile")).expect("a leaf");
    for (edited, at, said) in [
        (
            text.replacen(leaf, &format!("{leaf}\n{leaf}"), 1),
            line("leaf copy_tile") + 1,
            "no second `leaf` line",
        ),
        (
            text.replacen(leaf, &format!("{leaf}\n  schedule static\n  schedule static"), 1),
            line("leaf copy_tile") + 2,
            "no second `schedule` line",
        ),
        (
            text.replacen(&format!("{leaf}\n"), "", 1),
            text.lines().position(|l| l == "}").expect("an end"),
            "a family needs a `leaf` line",
        ),
        (
            text.replacen("buf1 \"w\"", "buf1 \"x\"", 1),
            line("buf1 \"w\""),
            "another buffer is named \"x\" already",
        ),
    ] {
        assert_ne!(edited, text);
        let error = edited.parse::<Plan>().expect_err(said);
        assert!(error.message.contains(said), "{error}");
        assert_eq!(error.line, at, "{error}");
    }
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let plan = with_names("M", "K", "N", ["x", "w"]);
    assert_eq!(format!("\u{feff}{plan}").parse(), Ok(plan));
}

#[test]
fn every_fixture_is_the_same_from_json() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans");
    for entry in fs::read_dir(&dir).expect("tests/plans") {
        let path = entry.expect("entry").path();
        if path.extension().is_some_and(|e| e == "plan") {
            let plan: Plan = fs::read_to_string(&path).expect("readable").parse().expect("a plan");
            let json = plan.to_json().expect("JSON");
            assert_eq!(Plan::from_json(&json).expect("the plan"), plan, "{}", path.display());
            assert!(json.contains("\"Var\": \"rank\"") && json.contains("\"schema\": 1"));
        }
    }
}

#[test]
fn json_that_is_no_plan_is_refused() {
    let json = with_names("M", "K", "N", ["x", "w"]).to_json().expect("JSON");
    for (from, to, said) in [
        ("\"schema\": 1", "\"schema\": 7", "`\"schema\": 7`"),
        ("\"schema\": 1,", "", "no `schema`"),
        ("\"Var\": \"rank\"", "\"Var\": \"bank\"", "loop0"),
        ("\"Var\": \"rank\"", "\"Var\": \"loop251\"", "loop0"),
        ("\"role0\"", "\"buf0\"", "role0"),
        ("\"mesh\"", "\"mash\"", "mash"),
        ("\"name\": \"x\"", "\"name\": \"w\"", "another buffer is named"),
        ("\"name\": \"x\"", "\"name\": \"a\\\\b\"", "backslashes"),
    ] {
        let wrong = json.replacen(from, to, 1);
        assert_ne!(wrong, json, "{from}");
        let error = Plan::from_json(&wrong).expect_err(to).to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
    let deep = format!("{{\"schema\": 1, \"name\": {}{}", "[".repeat(5000), "]".repeat(5000));
    assert!(Plan::from_json(&deep).is_err());
}

/// Attention that masks by position says where queries and keys are; other families do not.
#[test]
fn positions() {
    let text = std::fs::read_to_string("../tests/plans/ring_attention_registers.plan")
        .expect("the fixture");
    let here = "  inner s in 4\n";
    let lines = "  position q rank * 40 + i * 16\n  position k (rank + 4 - s) % 4 * 40\n";
    let masked = text.replace("mask=full", "mask=causal");
    let read = |text: &str| text.parse::<Plan>().map(|plan| (plan.check_structure(), plan));
    let (checked, plan) = read(&masked.replace(here, &format!("{here}{lines}"))).expect("a plan");
    assert_eq!(checked, Ok(()));
    assert!(plan.to_string().contains(lines));
    let json = plan.to_json().expect("JSON");
    assert_eq!(Plan::from_json(&json).expect("a plan"), plan);
    let wrong = |text: &str| match read(text) {
        Ok((Err(errors), _)) => errors[0].message.clone(),
        Ok((Ok(()), _)) => panic!("is well formed"),
        Err(e) => e.to_string(),
    };
    assert!(wrong(&masked).contains("needs `position` lines"));
    assert!(
        wrong(&text.replace(here, &format!("{here}{lines}")))
            .contains("only a mask by position asks for")
    );
    let one = masked.replace(here, &format!("{here}  position q 0\n"));
    assert!(wrong(&one).contains("position"));
    let by_step = masked.replace(here, &format!("{here}  position q s\n  position k s\n"));
    assert!(wrong(&by_step).contains("`s` is not in scope here"));
}

//! The settings that are tried: each candidate has a plan, or a typed reason why not.

use mk::{
    Bound, Program,
    passes::{self, Config, LowerError},
    tune::{self, Facts, KNOBS, candidates},
};
use std::collections::BTreeMap;

fn bound(program: &Program, shapes: &[(&str, &[u64])]) -> Bound {
    let shapes = shapes.iter().map(|(name, s)| (name.to_string(), s.to_vec())).collect();
    program.bind(&BTreeMap::new(), &shapes).unwrap()
}

type Case = (&'static str, &'static [(&'static str, &'static [u64])]);

const CASES: &[Case] = &[
    ("gather(a) -> gemm(b)", &[("a", &[1024, 512]), ("b", &[512, 2048])]),
    ("gemm(a, b) -> reduce_scatter", &[("a", &[1024, 512]), ("b", &[512, 1024])]),
    ("gemm(a, b) -> all_reduce", &[("a", &[64, 512]), ("b", &[512, 1024])]),
    ("gather(a)", &[("a", &[1024, 512])]),
    (
        "gather(x) -> gemm(w) -> gelu -> gemm(v) -> reduce_scatter",
        &[("x", &[1024, 256]), ("w", &[256, 1024]), ("v", &[1024, 256])],
    ),
];

#[test]
fn every_candidate_lowers_or_says_why_not() {
    for (text, shapes) in CASES {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, shapes);
        let all = candidates(&program, &bound, 4, &BTreeMap::new());
        let mut lowered = 0;
        for (i, config) in all.iter().enumerate() {
            match passes::lower(&program, &bound, config) {
                Ok(_) => lowered += 1,
                Err(LowerError::Config { .. } | LowerError::Unsupported { .. }) if i > 0 => {}
                Err(other) => panic!("{text}: {config:?}: {other}"),
            }
        }
        assert!(2 * lowered > all.len(), "{text}: {lowered} of {}", all.len());
        // No config comes twice.
        assert!(all.iter().enumerate().all(|(i, c)| !all[..i].contains(c)), "{text}");
    }
}

#[test]
fn a_config_is_read_as_it_was_written() {
    for (text, shapes) in CASES {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, shapes);
        let facts = Facts::new(&program, &bound, 4);
        for config in candidates(&program, &bound, 4, &BTreeMap::new()) {
            let written = tune::write(&config, &facts);
            assert_eq!(tune::read(&written, 4).as_ref(), Ok(&config), "{written}");
        }
    }
    for bad in ["block=128x256", "intra_comm=0", "all_reduce=maybe", "blok=1", "chunk_bytes"] {
        assert_eq!(tune::read(bad, 4), Err(bad.to_string()));
    }
}

#[test]
fn one_rank_has_nothing_to_communicate() {
    let program = Program::parse("gather(a) -> gemm(b)").unwrap();
    let bound = bound(&program, CASES[0].1);
    let all = candidates(&program, &bound, 1, &BTreeMap::new());
    assert!(all.iter().all(|c| c.sms.is_empty() && c.ranks == 1));
    assert_eq!(tune::write(&all[0], &Facts::new(&program, &bound, 1)), "block=128x256x64");
}

#[test]
fn settings_can_be_narrowed() {
    let program = Program::parse("gather(a) -> gemm(b)").unwrap();
    let bound = bound(&program, CASES[0].1);
    let only = |name: &str, values: &[&str]| {
        let values = values.iter().map(|v| v.to_string()).collect();
        BTreeMap::from([(name.to_string(), values)])
    };
    let few = candidates(&program, &bound, 4, &only("intra_comm", &["6", "no"]));
    assert!(few.iter().all(|c| c.sms["intra_comm"] == 6));
    let all = candidates(&program, &bound, 4, &BTreeMap::new());
    assert_eq!(few.len() * 7, all.len());
    assert!(KNOBS.iter().all(|k| (k.set)(&mut Config::default(), "no").is_none()));
}

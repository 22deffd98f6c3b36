//! Tuning without GPUs: the settings that are tried, what is chosen, and what is kept.

#[path = "../../mk-harness/tests/sweep/drawn.rs"]
mod drawn;
mod kept;
mod traffic;

use kept::in_a_cache;
use mk::{
    Bound, Program,
    build::Composition,
    cost::{DeviceModel, Gpu},
    emit::{self, Options},
    passes::{self, LowerError},
    plan::{Entity, Leaf},
    settings::{self, AllReduce, Config, Consumers, Gather, Reduction, SETTINGS, Schedule},
    trace::{Agent, Span, What},
    tune::{self, Indivisible, Key, Origin, Sources, Subject, Winner, candidates},
};
use std::collections::{BTreeMap, HashMap, HashSet};

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
    (
        "fn rows<M: dyn <= 4096>(a: bf16[M, K] @ shard(1), b: bf16[N, K] @ shard(1)) { gemm(a, b.t) -> all_reduce }",
        &[("b", &[4096, 1024])],
    ),
];

#[test]
fn every_candidate_lowers_or_says_why_not() {
    for (text, shapes) in CASES {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, shapes);
        let all = candidates(&program, &bound, 4, &BTreeMap::new());
        let (mut lowered, mut tried) = (0, 0);
        for (i, config) in drawn::some(all.iter().enumerate(), 8) {
            tried += 1;
            match passes::lower(&program, &bound, config) {
                Ok(_) => lowered += 1,
                Err(LowerError::Setting(_) | LowerError::Unsupported { .. }) if i > 0 => {}
                Err(other) => panic!("{text}: {config:?}: {other}"),
            }
        }
        assert!(3 * lowered > tried, "{text}: {lowered} of {tried}");
        // No config comes twice.
        assert!(all.iter().enumerate().all(|(i, c)| !all[..i].contains(c)), "{text}");
    }
}

#[test]
fn a_config_is_read_as_it_was_written() {
    for (text, shapes) in CASES {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, shapes);
        let facts = tune::facts(&program, &bound, 4);
        for config in candidates(&program, &bound, 4, &BTreeMap::new()) {
            let written = settings::write(&config, &facts);
            assert_eq!(tune::read(&written, 4).as_ref(), Ok(&config), "{written}");
        }
    }
    for (bad, says) in [
        ("block=128x256", "`128x256` is no value of `block`, which takes MxNxK"),
        ("intra_comm_sms=-1", "which takes N | auto"),
        ("all_reduce=maybe", "two_shot | one_shot | by_columns"),
        ("blok=1", "there is no setting `blok`"),
        ("chunk_bytes", "write NAME=VALUE"),
    ] {
        let error = tune::read(bad, 4).expect_err(bad).to_string();
        assert!(error.contains(says) && error.contains("help:"), "{error}");
    }
}

#[test]
fn one_rank_has_nothing_to_communicate() {
    let program = Program::parse("gather(a) -> gemm(b)").unwrap();
    let bound = bound(&program, CASES[0].1);
    let all = candidates(&program, &bound, 1, &BTreeMap::new());
    assert!(all.iter().all(|c| c.intra_comm_sms.is_none() && c.ranks == 1));
    let first = settings::write(&all[0], &tune::facts(&program, &bound, 1));
    assert!(first.starts_with("block=128x256x64") && !first.contains("intra_comm"), "{first}");
}

#[test]
fn settings_can_be_narrowed() {
    let program = Program::parse("gather(a) -> gemm(b)").unwrap();
    let bound = bound(&program, CASES[0].1);
    let only = |name: &str, values: &[&str]| {
        let values = values.iter().map(|v| v.to_string()).collect();
        BTreeMap::from([(name.to_string(), values)])
    };
    let few = candidates(&program, &bound, 4, &only("intra_comm_sms", &["6", "no"]));
    // Where the copy engine gathers, no CTA does.
    let of = |list: &[Config], gather: Gather| {
        list.iter().filter(|c| c.gather == gather).cloned().collect::<Vec<_>>()
    };
    assert!(of(&few, Gather::Sms).iter().all(|c| c.intra_comm_sms == Some(6)));
    let all = candidates(&program, &bound, 4, &BTreeMap::new());
    assert_eq!(of(&few, Gather::Sms).len() * 8, of(&all, Gather::Sms).len());
    let engine = Gather::CopyEngine { parts: 2 };
    assert_eq!(of(&few, engine), of(&all, engine));
    assert!(of(&all, engine).iter().all(|c| c.intra_comm_sms.is_none() && c.k_slices == 1));
    assert!(SETTINGS.iter().all(|k| (k.set)(&mut Config::default(), "no").is_none()));
    // Tiles that no warpgroup takes by itself would be made with both, which is not what was asked for.
    let turns = candidates(&program, &bound, 4, &only("consumers", &["ping-pong"]));
    assert!(!turns.is_empty() && turns.iter().all(|c| c.consumers == Consumers::PingPong));
}

#[test]
fn the_order_of_results_says_nothing() {
    let offered = |results: &str| {
        let text = format!(
            "fn f(x: bf16[M, K], dy: bf16[M, N] @ shard(1), w: bf16[K, N] @ shard(1)) {{
                 let dx = gemm(dy, w.t) -> all_reduce;
                 let dw = gemm(x.t, dy);
                 {results}
             }}"
        );
        let program = Program::parse(&text).unwrap();
        let shapes = [("M", 64), ("K", 4096), ("N", 14336)].map(|(n, v)| (n.to_string(), v));
        let sizes = program.bind(&BTreeMap::from(shapes), &BTreeMap::new()).unwrap();
        let all = candidates(&program, &sizes, 2, &BTreeMap::new());
        all.iter().map(|c| format!("{c:?}")).collect::<HashSet<_>>()
    };
    let one = offered("(dx, dw)");
    assert!(
        one.iter().any(|c| c.contains("split_k: 4")) && one.iter().any(|c| c.contains("ByColumns"))
    );
    assert_eq!(one, offered("(dw, dx)"));
}

#[test]
fn sums_with_an_epilogue_have_no_ring() {
    let ways = |text: &str| {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, CASES[0].1);
        let all = candidates(&program, &bound, 4, &BTreeMap::new());
        all.iter().map(|c| format!("{:?}", c.reduction)).collect::<HashSet<_>>()
    };
    let plain = ways("gemm(a, b) -> scale(0.5) -> reduce_scatter");
    assert!(plain.contains("Ring"), "{plain:?}");
    let followed = ways("gemm(a, b) -> reduce_scatter -> scale(0.5)");
    assert_eq!(followed, HashSet::from(["DedicatedSms", "AfterLastWave"].map(String::from)));
}

#[test]
fn few_rows_have_ways_of_their_own() {
    let program = Program::parse("gemm(a, b) -> all_reduce").unwrap();
    let offered = |rows: u64| {
        let bound = bound(&program, &[("a", &[rows, 4096]), ("b", &[4096, 1024])]);
        let all = candidates(&program, &bound, 4, &BTreeMap::new());
        let flat = all.iter().any(|c| c.block[0] == 64);
        (flat, all.iter().any(|c| c.all_reduce == AllReduce::ByColumns))
    };
    assert_eq!(offered(64), (true, true));
    // Cut by owner, 64 each; and more.
    assert_eq!(offered(256), (true, true));
    assert_eq!(offered(1024), (false, true));
    assert_eq!(offered(1025), (false, false));
}

/// One setting after the other does not lead there: flat tiles alone, and parts along k alone, are no gain.
#[test]
fn a_choice_for_few_rows_has_flat_tiles_that_fill_the_gpu() {
    let program = Program::parse("gemm(a, b)").unwrap();
    let choice = |columns| {
        let bound = bound(&program, &[("a", &[64, 7168]), ("b", &[7168, columns])]);
        tune::choose(&program, &bound, 1, DeviceModel::h200()).unwrap()
    };
    // Narrow ones, a wave of them; of fewer columns, also in parts along k.
    let (config, p) = choice(8192);
    assert!(config.block == [64, 64, 64] && config.cluster == 1, "{config:?}");
    // 2026-11-26, one H200: .0357 ms, and .0395 in two parts of 64 x 128 (2026-11-22).
    assert!((0.85..1.3).contains(&(p.ms() / 0.0357)), "{}", p.ms());
    let (config, _) = choice(1024);
    assert!(config.block[0] == 64 && config.cluster > 1, "{config:?}");
}

#[test]
fn of_every_way_the_best_is_measured() {
    let config = |sums, n| Config { reduction: sums, group_m: Some(n), ..Config::default() };
    let candidates = [
        (config(Reduction::DedicatedSms, 8), 2.0),
        (config(Reduction::Ring, 8), 1.0),
        (config(Reduction::Ring, 16), 1.01),
        (config(Reduction::Ring, 4), 1.02),
        (config(Reduction::AfterLastWave, 16), 1.25),
        (config(Reduction::AfterLastWave, 8), 1.2),
    ];
    // The second way before more of the first; not one that is far behind.
    assert_eq!(tune::worth_measuring(&candidates, 3), [1, 5, 2]);
    assert_eq!(tune::worth_measuring(&candidates, 9), [1, 5, 2, 3, 4, 0]);
    assert_eq!(tune::worth_measuring(&[], 3), [] as [usize; 0]);
    // Then each way with every tile; where nothing is added up, tiles are settings as others.
    let tile = |sums, width| {
        let mut config = config(sums, 8);
        config.block = [128, width, 64];
        config
    };
    let adding = [
        (tile(Reduction::Ring, 256), 1.0),
        (Config { group_m: Some(4), ..tile(Reduction::Ring, 256) }, 1.01),
        (tile(Reduction::AfterLastWave, 256), 1.05),
        (tile(Reduction::Ring, 128), 1.2),
        (tile(Reduction::AfterLastWave, 192), 1.1),
        (tile(Reduction::AfterLastWave, 128), 1.4),
    ];
    assert_eq!(tune::worth_measuring(&adding, 9), [0, 2, 4, 3, 1, 5]);
    // Of two that differ in the schedule, the one that the model takes for the better.
    let free = |c: &Config| Config { tile_scheduler: Schedule::Dynamic, ..c.clone() };
    let twins = [
        adding[0].clone(),
        (free(&adding[0].0), 0.98),
        adding[2].clone(),
        (free(&adding[2].0), 1.05),
    ];
    assert_eq!(tune::worth_measuring(&twins, 9), [1, 2]);
    let mut groups = 0;
    let alone = adding.map(|(c, ms)| {
        groups += 1;
        (Config { reduction: Reduction::DedicatedSms, group_m: Some(groups), ..c }, ms)
    });
    assert_eq!(tune::worth_measuring(&alone, 9), [0, 1, 2, 4, 3, 5]);
}

#[test]
fn a_winner_has_neighbours() {
    let program = Program::parse("gemm(a, b) -> all_reduce").expect("parses");
    let bound = bound(&program, &[("a", &[8192, 8192]), ("b", &[8192, 8192])]);
    let mut winner = Config { ranks: 4, group_m: Some(3), ..Config::default() };
    winner.intra_comm_sms = Some(32);
    let near = tune::neighbours(&winner, &program, &bound);
    let groups: Vec<u32> = near.iter().filter_map(|c| c.group_m).filter(|n| *n != 3).collect();
    assert_eq!(groups, [1, 2, 4, 6], "not 0, a quarter of 3");
    let sms: Vec<u32> = near.iter().filter_map(|c| c.intra_comm_sms).filter(|n| *n != 32).collect();
    assert_eq!(sms, [24, 40, 48]);
    let queued = near.iter().filter(|c| c.tile_scheduler == Schedule::Dynamic).count();
    assert_eq!((queued, near.len()), (1, groups.len() + sms.len() + 1));
    let back = Config { tile_scheduler: Schedule::Dynamic, ..winner.clone() };
    assert!(tune::neighbours(&back, &program, &bound).contains(&winner));
    // Each once: a half and three quarters of 2 are both 1.
    let two = Config { group_m: Some(2), ..winner.clone() };
    let near = tune::neighbours(&two, &program, &bound);
    let groups: Vec<u32> = near.iter().filter_map(|c| c.group_m).filter(|n| *n != 2).collect();
    assert_eq!(groups, [1, 3, 4]);
    // Of what a file may say of a winner, too.
    let mut most = Config { group_m: Some(u32::MAX), ..winner.clone() };
    most.intra_comm_sms = Some(u32::MAX);
    assert!(!tune::neighbours(&most, &program, &bound).is_empty());
    // Where no CTAs only communicate, there are none to have more of.
    let after = Config { reduction: Reduction::AfterLastWave, intra_comm_sms: None, ..winner };
    let near = tune::neighbours(&after, &program, &bound);
    assert!(
        near.iter().all(|c| c.intra_comm_sms.is_none() && c.reduction == Reduction::AfterLastWave),
        "{near:?}"
    );
}

/// Where tiles leave, those behind a winner may be ahead of it with the other schedule.
#[test]
fn runners_up_are_measured_in_the_other_schedule() {
    let program = Program::parse("gemm(a, b) -> reduce_scatter").expect("parses");
    let bound = bound(&program, &[("a", &[4096, 4096]), ("b", &[4096, 4096])]);
    let of = |n| Config { ranks: 4, group_m: Some(n), ..Config::default() };
    let behind: Vec<_> = (1..=9).map(of).collect();
    let other = tune::runners_up(behind.iter(), &program, &bound);
    let expected =
        behind[..6].iter().map(|c| Config { tile_scheduler: Schedule::Dynamic, ..c.clone() });
    assert_eq!(other, expected.collect::<Vec<_>>());
    let back = tune::runners_up(other.iter(), &program, &bound);
    assert_eq!(back, behind[..6]);
    let gather = Program::parse("gather(a) -> gemm(b)").expect("parses");
    assert!(tune::runners_up(behind.iter(), &gather, &bound).is_empty(), "nothing leaves");
}

#[test]
fn the_largest_plans_are_lowered_in_some_way_that_was_chosen() {
    let program = Program::parse("gemm(a, b) -> reduce_scatter").expect("parses");
    let bound = bound(&program, &[("a", &[32768, 32768]), ("b", &[32768, 32768])]);
    let (config, _) = tune::choose(&program, &bound, 4, DeviceModel::h200()).expect("there is one");
    assert_ne!(config.reduction, Reduction::DedicatedSms);
    assert_eq!(config.tile_scheduler, Schedule::Dynamic, "many tiles leave each CTA");
}

/// With the numbers that fit one way of adding up, another is slower; with its own it is the fastest.
#[test]
fn a_choice_has_the_numbers_of_its_way() {
    let model = DeviceModel::h100();
    for (text, a, b, reduction) in [
        ("gemm(a, b) -> reduce_scatter", [576, 4352], [4352, 1024], Reduction::Ring),
        ("gemm(a, b) -> all_reduce", [8192, 4096], [4096, 8192], Reduction::DedicatedSms),
    ] {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, &[("a", &a), ("b", &b)]);
        let (config, _) = tune::choose(&program, &bound, 2, model).unwrap();
        assert_eq!(config.reduction, reduction, "{text}: {config:?}");
    }
}

#[test]
fn a_choice_is_a_function_of_its_arguments_and_has_a_kernel() {
    let model = DeviceModel::h200();
    for (text, shapes) in CASES {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, shapes);
        let (config, p) = tune::choose(&program, &bound, 4, model).unwrap();
        let again = tune::choose(&program, &bound, 4, model).unwrap();
        assert_eq!((&config, &p), (&again.0, &again.1), "{text}");
        let (plan, _proof) = passes::compile(&program, &bound, &config)
            .unwrap_or_else(|e| panic!("{text}: {config:?}: {e}"));
        emit::emit(&plan).unwrap_or_else(|e| panic!("{text}: {config:?}: {e}"));
        // Never worse than the defaults, as the model sees it.
        let default = Config { ranks: 4, ..Config::default() };
        let default = tune::predict(&program, &bound, &default, model).unwrap();
        assert!(p.total_s <= default.total_s, "{text}");
    }
}

#[test]
fn pipelines_come_apart() {
    let parts = |text: &str, shapes: &[(&str, &[u64])]| {
        let program = Program::parse(text).unwrap();
        let bound = bound(&program, shapes);
        tune::parts(&program, &bound)
    };
    let names = |text: &str, shapes: &[(&str, &[u64])]| {
        let parts = parts(text, shapes)?;
        let plans = parts.iter().all(|p| {
            passes::lower(&p.program, &p.bound, &Config { ranks: 4, ..Config::default() }).is_ok()
        });
        assert!(plans, "{text}");
        Ok(parts.into_iter().map(|p| p.name).collect::<Vec<_>>())
    };
    let (text, shapes) = CASES[4];
    let apart = ["gather", "gemm -> gelu", "gemm", "reduce_scatter"].map(String::from);
    assert_eq!(names(text, shapes), Ok(apart.to_vec()));
    let (x, dy): (&[u64], &[u64]) = (&[1024, 512], &[1024, 256]);
    let apart = ["gemm", "reduce_scatter"].map(String::from);
    let gradient = "gemm(x.t, dy) -> reduce_scatter";
    let shapes = [("x", x), ("dy", dy)];
    assert_eq!(names(gradient, &shapes), Ok(apart.to_vec()));
    assert_eq!(names(CASES[3].0, CASES[3].1), Err(Indivisible::Single));
}

/// 128 blocks of rows and 16 of columns are 15 waves of 132 tiles and 68 tiles, which are 4.25 blocks of rows.
#[test]
fn a_last_wave_has_tails_of_its_size() {
    let program = Program::parse("gemm(a, b)").unwrap();
    let tails = |shapes: &[(&str, &[u64])], ranks| {
        let facts = tune::facts(&program, &bound(&program, shapes), ranks);
        let knob = SETTINGS.iter().find(|k| k.name == "last_wave").unwrap();
        (knob.values)(&facts)
    };
    let wide: &[(&str, &[u64])] = &[("a", &[16384, 512]), ("b", &[512, 4096])];
    let of_wide = tails(wide, 1);
    for value in ["4x128", "5x128", "5x256/2", "5x256/3", "5x256/4"] {
        assert!(of_wide.iter().any(|t| t == value), "{value}: {of_wide:?}");
    }
    // Whole waves, less than one, and products of several ranks have none.
    let base = tails(&[("a", &[128, 512]), ("b", &[512, 256])], 1).len() - 1;
    assert_eq!(tails(&[("a", &[132 * 128, 512]), ("b", &[512, 512])], 1).len(), base);
    assert_eq!(tails(wide, 2).len(), base);
}

#[test]
fn what_is_measured_for_the_model_are_pipelines() {
    let list = tune::probe_list(4);
    // None takes long.
    for line in &list {
        let (pipeline, options) = line[1..].split_once('\'').expect("a pipeline in quotes");
        let words: Vec<&str> = options.split_whitespace().collect();
        let given = |flag: &str| {
            let pairs = words.chunks_exact(2).filter(|pair| pair[0] == flag);
            let read = |pair: &[&str]| {
                let (name, text) = pair[1].split_once('=').expect("a name and its value");
                (name.to_string(), text.to_string())
            };
            pairs.map(read).collect::<Vec<_>>()
        };
        let numbers =
            |text: String| text.split('x').map(|n| n.parse().expect("a number")).collect();
        let shapes =
            given("--shape").into_iter().map(|(name, text)| (name, numbers(text))).collect();
        let values = |text: String| text.split(',').map(String::from).collect();
        let only = given("--try").into_iter().map(|(name, text)| (name, values(text))).collect();
        let ranks = if options.contains("--ranks 1 ") { 1 } else { 4 };
        let program = Program::parse(pipeline).expect("parses");
        let bound = program.bind(&BTreeMap::new(), &shapes).expect("binds");
        let plans = tune::candidates(&program, &bound, ranks, &only).len();
        assert!((1..=72).contains(&plans), "{plans}: {line}");
    }
    assert!(list.len() > 10 && list.iter().all(|l| l.contains("--ranks")), "{list:?}");
    // What a line is not about is as it is by default.
    let products = list.iter().filter(|l| l.contains("gemm") && l.contains("last_wave=none"));
    let plain = products.filter(|l| !l.contains("tile_scheduler=static"));
    assert_eq!(plain.count(), 0, "{list:?}");
    for line in &list {
        for tried in line.split(" --try ").skip(1) {
            let (name, values) = tried.split_once('=').expect("a setting");
            for value in values.split(',') {
                let set = settings::set(&mut Config::default(), name, value.trim());
                assert_eq!(set, Ok(()), "{line}");
            }
        }
    }
}

#[test]
fn a_prediction_is_drawn_like_a_launch() {
    let program = Program::parse("gather(a) -> gemm(b)").unwrap();
    let bound = bound(&program, &[("a", &[2048, 512]), ("b", &[512, 2048])]);
    for gather in [Gather::CopyEngine { parts: 2 }, Gather::Sms] {
        drawn(&program, &bound, &Config { ranks: 4, gather, ..Config::default() });
    }
    let mut config = Config { ranks: 4, consumers: Consumers::PingPong, ..Config::default() };
    config.block = [128, 128, 64];
    config.intra_comm_sms = Some(130);
    // Of warpgroups that take turns, several tiles on each CTA, each has every other one.
    let works = drawn(&program, &bound, &config);
    for cta in 0..2 {
        let mut here: Vec<_> = works.iter().filter(|s| (s.rank, s.cta) == (0, cta)).collect();
        here.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        let agents: Vec<_> = here.iter().map(|s| s.agent).collect();
        let turns = [Agent::Compute(0), Agent::Compute(1)];
        let expected: Vec<_> = turns.into_iter().cycle().take(agents.len()).collect();
        assert!(agents.len() > 2 && agents == expected, "{agents:?}");
    }
}

fn drawn(program: &Program, bound: &Bound, config: &Config) -> Vec<Span> {
    let traced = Options { trace: true };
    let planned = mk::build::plan_with(program, bound, config, traced).expect("has a kernel");
    let model = DeviceModel::h200();
    let p = mk::tune::predict(program, bound, config, model).expect("is predicted");
    let t = mk::tune::timeline(&planned.plan, &planned.source, &p).expect("is traced");
    // Every task of every rank has its work in the picture, and nothing lies outside of the launch.
    let task = |s: &Span| match s.what {
        What::Task { family, task, .. } => (s.rank, s.cta, family, task),
        _ => unreachable!("work is a task"),
    };
    let works: Vec<_> = t.spans.iter().filter(|s| t.is_work(s)).cloned().collect();
    // Two warpgroups have halves of each tile, or tiles of their own.
    let halves = config.consumers == Consumers::Cooperative;
    let mut times: HashMap<_, usize> = HashMap::new();
    works.iter().for_each(|s| *times.entry(task(s)).or_default() += 1);
    let product = |family: u32| {
        planned
            .plan
            .families
            .iter()
            .any(|(id, f)| id.index() as u32 == family && f.leaf.product().is_some())
    };
    for ((.., family, _), n) in &times {
        assert_eq!(*n, if product(*family) && halves { 2 } else { 1 });
    }
    let shown = |leaf: &Leaf| !matches!(leaf, Leaf::Enter | Leaf::HostCopy | Leaf::Signal);
    let tasks = p.spans.iter().filter(|s| shown(&planned.plan.families[s.family].leaf));
    assert_eq!(times.len(), tasks.count());
    assert!(
        t.spans
            .iter()
            .all(|s| s.begin >= 0.0 && s.end >= s.begin && s.end <= 1e9 * p.total_s + 1.0)
    );
    let picture = mk::trace::svg(&t, None);
    assert!(picture.contains("gemm.peers") && picture.contains("rank 3 compute"), "{picture}");
    let both = mk::trace::svg(&t, Some(&t));
    assert!(both.contains("predicted") && both.contains("measured"), "{both}");
    let plain = mk::build::plan(program, bound, config).expect("has a kernel");
    assert!(mk::tune::timeline(&plain.plan, &plain.source, &p).is_none());
    works
}

/// What was made is explained as it was made, whatever would be chosen today.
#[test]
fn an_explanation_says_where_settings_come_from() {
    let (text, shapes) = CASES[0];
    let program = Program::parse(text).unwrap();
    let sizes = bound(&program, shapes);
    let made = |config: &Config| {
        let verdict = tune::Verdict::new(tune::Fusion::Fused, tune::Reason::Asked);
        let choice = tune::Choice { verdict, configs: vec![config.clone()] };
        Composition::new(&program, &sizes, &choice, Options::default()).unwrap()
    };
    let (chosen, _) = tune::choose(&program, &sizes, 4, DeviceModel::h200()).unwrap();
    let facts = tune::facts(&program, &sizes, 4);
    let all = candidates(&program, &sizes, 4, &BTreeMap::new());
    let default = Config { ranks: 4, ..Config::default() };
    let mut others = all
        .into_iter()
        .filter(|c| *c != chosen && *c != default && passes::lower(&program, &sizes, c).is_ok());
    let (given, best) = (others.next().unwrap(), others.next().unwrap());
    in_a_cache(|cache, _| {
        let model = DeviceModel::h200();
        let key = Key::new(&program, &sizes, 4, "sm_90a", &model.gpu);
        cache.store(&key, &Winner { config: best.clone(), ms: 0.0625 }).unwrap();
        let sources = Sources { model, cache: Some(cache), chain: 2 };
        let explain =
            |subject: Subject<'_>| tune::explain(&program, &sizes, 4, subject, &sources).unwrap();
        for (config, origin, ms, words) in [
            (&given, Origin::Given, None, "as the options say"),
            (&best, Origin::Measured, Some(0.0625), "62.5 us measured"),
            (
                &chosen,
                Origin::Predicted,
                None,
                "the best of those that were predicted, a part of all",
            ),
        ] {
            let made = made(config);
            let explained = explain(Subject::Composition(&made));
            assert_eq!((&explained.config, explained.origin), (config, origin));
            assert_eq!((explained.measured_ms, explained.made), (ms, Some(made.verdict)));
            let text = explained.to_string();
            assert!(
                text.contains(words) && text.contains(&settings::write(config, &facts)),
                "{text}"
            );
            assert!(text.ends_with("made       one kernel: as the options say\n"), "{text}");
        }
        // Options that say nothing mean the winner, and the text ends with what a function would do.
        let explained = explain(Subject::Searched(&Config { ranks: 4, ..Config::default() }));
        assert_eq!((&explained.config, explained.origin), (&best, Origin::Measured));
        assert!(explained.made.is_none() && explained.to_string().contains("verdict    "));
        // Without figures there is no prediction, and what was made is said all the same.
        let said = |gpu| {
            tune::explain_made(&program, &sizes, 4, &made(&given), (&Gpu::from(gpu), Some(cache)))
        };
        let none = "prediction none: there are no figures of NVIDIA L4, which `mk probe --install` measures\nmade       one kernel";
        assert!(said("NVIDIA L4").starts_with(none), "{}", said("NVIDIA L4"));
        std::fs::write(cache.store(&key, &Winner { config: best.clone(), ms: 1.0 }).unwrap(), "x")
            .unwrap();
        assert!(said(&model.gpu).contains("note       the tuning cache's file"));
    });
}

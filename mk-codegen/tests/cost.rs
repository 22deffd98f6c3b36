//! The cost model on plans: sane, monotone, deterministic, fast.

mod common;

use common::{CASES, plan};
use mk_codegen::{
    cost::{Bound, DeviceModel, Prediction, Sample, error, fit, predict},
    passes::lower,
    plan::{Leaf, Plan},
    settings::{Config, Consumers, Gather, Reduction, Schedule},
};
use mk_syntax::Program;
use std::collections::BTreeMap;
use std::time::Instant;

fn with(text: &str, shapes: &[(&str, &[u64])], change: impl Fn(&mut Config)) -> Plan {
    let program = Program::parse(text).unwrap();
    let shapes = shapes.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
    let bound = program.bind(&BTreeMap::new(), &shapes).unwrap();
    let mut config = Config { ranks: 4, ..Config::default() };
    change(&mut config);
    lower(&program, &bound, &config).unwrap()
}

fn on_h200(plan: &Plan) -> Prediction {
    predict(plan, DeviceModel::h200()).unwrap()
}

fn gather_gemm(m: u64, k: u64, n: u64, comm: u32) -> Prediction {
    on_h200(&with("gather(a) -> gemm(b)", &[("a", &[m, k]), ("b", &[k, n])], |c| {
        c.intra_comm_sms = Some(comm);
    }))
}

#[test]
fn every_fixture_has_a_prediction() {
    for (name, text, ranks, shapes) in CASES {
        let Ok(plan) = plan(text, *ranks, shapes) else { continue };
        let p = on_h200(&plan);
        assert!(p.total_s > DeviceModel::h200().launch_s && p.total_s < 1e-2, "{name}: {}", p.ms());
        let sum: f64 = p.shares.iter().map(|s| s.1).sum();
        assert!((sum - p.total_s).abs() < 1e-9, "{name}: shares of {sum} of {}", p.total_s);
        let tasks = p
            .spans
            .iter()
            .all(|s| s.free_s <= s.begin_s && s.begin_s <= s.main_end_s && s.main_end_s <= s.end_s);
        assert!(tasks, "{name}: a task ends before it begins");
        assert!(p.spans.iter().all(|s| s.end_s <= p.total_s), "{name}");
        // What its end waited for came before.
        let chain = p.chain.windows(2).all(|w| w[1].begin_s <= w[0].begin_s);
        assert!(chain && !p.chain.is_empty(), "{name}: {:?}", p.chain);
        assert_eq!(p, on_h200(&plan), "{name}: another time");
    }
}

/// Tasks of one CTA follow each other: steps of its tiles do not overlap.
#[test]
fn a_cta_does_one_thing_at_a_time() {
    let plan =
        with("gemm(a, b) -> reduce_scatter", &[("a", &[4096, 4096]), ("b", &[4096, 2048])], |_| {});
    let mut spans = on_h200(&plan).spans;
    spans.sort_by(|a, b| {
        (a.rank, a.cta).cmp(&(b.rank, b.cta)).then(a.begin_s.total_cmp(&b.begin_s))
    });
    let enters = |f| plan.families[f].leaf == Leaf::Enter;
    let mut compared = 0;
    for w in spans.windows(2) {
        if (w[0].rank, w[0].cta) == (w[1].rank, w[1].cta)
            && !enters(w[0].family)
            && !enters(w[1].family)
        {
            assert!(w[0].main_end_s <= w[1].begin_s + 1e-12, "{w:?}");
            compared += 1;
        }
    }
    assert!(compared > 500);
}

/// But for bulk copies, which other warps make: sums are copied while the CTA adds up the next ones.
#[test]
fn bulk_copies_run_beside_sums() {
    let plan =
        with("gemm(a, b) -> all_reduce", &[("a", &[4096, 4096]), ("b", &[4096, 2048])], |_| {});
    let spans = on_h200(&plan).spans;
    let of = |name: &str| {
        let family = plan.families.iter().find(|(_, f)| f.name == name).expect(name).0;
        spans
            .iter()
            .filter(move |s| s.family == family)
            .map(|s| (s.rank, s.cta, s.begin_s, s.end_s))
    };
    let beside = of("collect").filter(|(rank, cta, begin, _)| {
        of("reduce").any(|(r, c, b, e)| (r, c) == (*rank, *cta) && b < *begin && *begin < e)
    });
    assert!(beside.count() > 10);
}

#[test]
fn no_prediction_beats_the_steps_or_the_link() {
    let model = DeviceModel::h200();
    for (m, k, n, comm) in [(4096, 4096, 4096, 16), (8192, 8192, 8192, 8), (2048, 8192, 10240, 24)]
    {
        let p = gather_gemm(m, k, n, comm);
        let tiles = (m / 128 * (n / 4).div_ceil(256)) as f64;
        let steps = tiles * (k / 64) as f64 / f64::from(132 - comm);
        assert!(p.total_s > steps * model.tile([128, 256]).step_s, "{}", p.ms());
        let bytes = (3 * m / 4 * k * 2) as f64;
        assert!(p.total_s > bytes / model.link_bytes_per_s, "{}", p.ms());
    }
}

/// What a tile takes beside its steps hides behind another tile's, if one follows.
#[test]
fn ping_pong_hides_what_follows_the_steps() {
    // Of a machine whose memory is in nobody's way.
    let mut model = DeviceModel::h200().clone();
    model.hbm_bytes_per_s *= 1e3;
    model.hbm_slices_bytes_per_s *= 1e3;
    // The run, not the closed form.
    model.products = None;
    (model.ping_pong, model.throttle) = (1.0, 0.0);
    let time = |rows: u64, consumers| {
        let shapes: &[(&str, &[u64])] = &[("a", &[rows, 256]), ("b", &[256, 128])];
        let plan = with("gemm(a, b)", shapes, |c| {
            c.ranks = 1;
            c.block = [128, 128, 64];
            c.consumers = consumers;
        });
        predict(&plan, &model).unwrap().total_s
    };
    let both = |rows| (time(rows, Consumers::Cooperative), time(rows, Consumers::PingPong));
    let (together, turns) = both(132 * 128);
    assert_eq!(together, turns);
    let (together, turns) = both(5 * 132 * 128);
    let hidden = 4.0 * DeviceModel::h200().tile([128, 128]).tile_s;
    assert!((together - turns - hidden).abs() < 0.5 * hidden, "{together} {turns} {hidden}");
}

#[test]
fn more_work_takes_longer() {
    let base = gather_gemm(4096, 4096, 4096, 16).total_s;
    assert!(gather_gemm(8192, 4096, 4096, 16).total_s > 1.3 * base);
    assert!(gather_gemm(4096, 8192, 4096, 16).total_s > 1.3 * base);
    assert!(gather_gemm(4096, 4096, 8192, 16).total_s > 1.2 * base);
    // One tile more than a wave is a wave more: in the run, without the closed form.
    let model = DeviceModel { products: None, ..DeviceModel::h200().clone() };
    let waves = |rows| {
        let plan =
            with("gemm(a, b)", &[("a", &[rows, 4096]), ("b", &[4096, 256])], |c| c.ranks = 1);
        predict(&plan, &model).unwrap().total_s
    };
    let wave = 64.0 * DeviceModel::h200().tile([128, 256]).step_s;
    let (one, over) = (waves(132 * 128), waves(133 * 128));
    assert!(over - one > 0.9 * wave, "{one} {over}");
    assert!(waves(131 * 128) <= one * 1.01);
}

/// Rows that come from another node take what their card takes; its rate and its latency are figures like others.
#[test]
fn messages_share_a_card() {
    let gathered = |rows: u64, model: &DeviceModel| {
        let shapes: &[(&str, &[u64])] = &[("a", &[rows, 4096]), ("b", &[4096, 256])];
        predict(&with("gather(a) -> gemm(b)", shapes, |c| c.nodes = 2), model).unwrap()
    };
    // Slower than the SMs that stage rows for it.
    let model = &DeviceModel { card_bytes_per_s: 20e9, ..DeviceModel::h200().clone() };
    let base = gathered(16384, model);
    // A card sends the rows of its rank once.
    let wire = |model: &DeviceModel| 4096.0 * 4096.0 * 2.0 / model.card_bytes_per_s;
    assert!(base.total_s > wire(model) && base.bound == Bound::Card, "{:?}", base.shares);
    assert!(base.shares.iter().any(|s| s.0 == Bound::Card && s.1 > 0.5 * wire(model)));
    let slow = DeviceModel { card_bytes_per_s: model.card_bytes_per_s / 2.0, ..model.clone() };
    let more = gathered(16384, &slow).total_s - base.total_s;
    assert!((more / wire(model) - 1.0).abs() < 0.2, "{more}");
    let far = DeviceModel { card_s: model.card_s + 50e-6, ..model.clone() };
    let later = gathered(16384, &far).total_s - base.total_s;
    // Entry is told first, then the last rows.
    assert!((40e-6..110e-6).contains(&later), "{later}");
    assert!(gather_gemm(4096, 4096, 256, 8).shares.iter().all(|s| s.0 != Bound::Card));
}

#[test]
fn what_bounds_it_is_named() {
    assert_eq!(gather_gemm(8192, 8192, 57344, 8).bound, Bound::Compute);
    assert_eq!(gather_gemm(4096, 4096, 256, 32).bound, Bound::Link);
    assert_eq!(gather_gemm(4096, 4096, 256, 1).bound, Bound::Movers);
    let two_waves =
        with("gemm(a, b)", &[("a", &[133 * 128, 8192]), ("b", &[8192, 256])], |c| c.ranks = 1);
    assert_eq!(on_h200(&two_waves).bound, Bound::Waves);
}

/// 2026-11-21, 4 H200s: .142 ms in one part, .155 in two, .183 in four; 8192 x 8192 x 2048 .379, .396 and .430.
#[test]
fn a_copy_engine_has_the_link_to_itself_and_pays_for_words() {
    let by_engine = |m: u64, n: u64, parts| {
        on_h200(&with("gather(a) -> gemm(b)", &[("a", &[m, m]), ("b", &[m, n])], |c| {
            c.gather = Gather::CopyEngine { parts };
        }))
    };
    let model = DeviceModel::h200();
    for m in [4096, 8192] {
        let [whole, halves, quarters] = [1, 2, 4].map(|parts| by_engine(m, m, parts).total_s);
        assert!(whole < halves && halves < quarters, "{m}: {whole} {halves} {quarters}");
        // A word for each part of three shards, and no more than that: products beside it take nothing from it.
        let words = 12.0 * model.movers.engine.task_s;
        assert!(quarters < whole + 1.5 * words, "{m}: {whole} {quarters}");
        let bytes = (3 * m / 4 * m * 2) as f64;
        let sent = bytes / model.movers.engine.bytes_per_s;
        assert!(whole > model.engine_begin_s + sent, "{m}: {whole}");
    }
    // It begins late, where everything else waits for it.
    let plan = with("gather(a) -> gemm(b)", &[("a", &[4096, 4096]), ("b", &[4096, 4096])], |c| {
        c.gather = Gather::CopyEngine { parts: 1 };
    });
    let at_once = DeviceModel { engine_begin_s: 0.0, ..model.clone() };
    let late = on_h200(&plan).total_s - predict(&plan, &at_once).unwrap().total_s;
    assert!((late - model.engine_begin_s).abs() < 1e-8, "{late}");
    // What it sends is on the chain, in no CTA.
    let chain = by_engine(4096, 256, 1).chain;
    assert!(chain.iter().any(|c| c.family == "gather" && c.cta.is_none()), "{chain:?}");
    assert!(chain.iter().all(|c| c.family != "gemm.peers" || c.cta.is_some()), "{chain:?}");
}

/// Tiles that leave for peers and are dealt out, three and more to a CTA: the slowest CTA counts. Not where they stay, or are two.
#[test]
fn tiles_that_leave_take_longer_where_they_are_dealt_out() {
    let total = |text, m: u64, tile_scheduler| {
        let shapes = [("a", [m, 16384]), ("b", [16384, 4096])];
        let shapes: Vec<(&str, &[u64])> = shapes.iter().map(|(n, s)| (*n, &s[..])).collect();
        on_h200(&with(text, &shapes, |c| {
            (c.tile_scheduler, c.reduction) = (tile_scheduler, Reduction::AfterLastWave);
        }))
        .total_s
    };
    let both = |text, m| [Schedule::Static, Schedule::Dynamic].map(|s| total(text, m, s));
    let [dealt, free] = both("gemm(a, b) -> reduce_scatter", 16384);
    let share = dealt / free - 1.0;
    assert!(
        (0.5 * DeviceModel::h200().uneven..=DeviceModel::h200().uneven).contains(&share),
        "{share}"
    );
    // 2 tiles to a CTA.
    let [dealt, free] = both("gemm(a, b) -> reduce_scatter", 2048);
    assert_eq!(dealt, free);
}

#[test]
fn a_better_machine_is_not_slower() {
    let plan =
        with("gemm(a, b) -> all_reduce", &[("a", &[4096, 4096]), ("b", &[4096, 4096])], |_| {});
    let base = on_h200(&plan).total_s;
    let changed = |change: fn(&mut DeviceModel)| {
        let mut model = DeviceModel::h200().clone();
        change(&mut model);
        predict(&plan, &model).unwrap().total_s
    };
    // Lists that are scheduled greedily may lose a little by a faster part, never much.
    assert!(changed(|m| m.link_bytes_per_s *= 2.0) < 1.01 * base);
    assert!(changed(|m| m.tiles.iter_mut().for_each(|t| t.step_s /= 2.0)) < 1.01 * base);
    assert!(changed(|m| m.movers.sum_push.bytes_per_s /= 4.0) > 1.2 * base);
    assert!(changed(|m| m.launch_s += 1e-3) > base + 0.9e-3);
}

/// A tile in a ring takes up what the rank before has summed; one that begins anew does not.
#[test]
fn what_a_tile_goes_on_with_costs_time() {
    let time = |sums, carry: f64| {
        let shapes: &[(&str, &[u64])] = &[("a", &[8192, 8192]), ("b", &[8192, 8192])];
        let plan = with("gemm(a, b) -> reduce_scatter", shapes, |c| c.reduction = sums);
        let mut model = DeviceModel::h200().clone();
        model.carry_bytes_per_s = carry;
        predict(&plan, &model).unwrap().total_s
    };
    // Of 15 or 16 tiles of a CTA three quarters go on with 64 KiB, some of them while they would wait for a neighbour's anyway.
    let (slow, fast) = (time(Reduction::Ring, 10e9), time(Reduction::Ring, 1e15));
    let of_a_tile = 65536.0 / 10e9;
    assert!(slow - fast > 5.0 * of_a_tile && slow - fast < 12.0 * of_a_tile, "{slow} {fast}");
    assert_eq!(time(Reduction::AfterLastWave, 10e9), time(Reduction::AfterLastWave, 1e15));
}

/// One H200, products alone, microseconds (docs/decisions/cost-model.md).
#[test]
fn what_an_epilogue_reads_and_saves_costs_time() {
    let chains = [
        "gemm(a, b)",
        "gemm(a, b) -> mul(y)",
        "gemm(a, b) -> mul(y) -> add(z)",
        "fn f(a: bf16[M, K], b: bf16[K, N]) { let h = gemm(a, b); (h -> relu, h) }",
    ];
    for ([m, k, n], measured) in [
        ([8192, 4096, 3584], [305.0, 331.0, 366.0, 316.0]),
        ([4096, 2048, 2048], [48.0, 57.0, 67.0, 51.0]),
    ] {
        for (chain, measured) in chains.iter().zip(measured) {
            let plan = with(chain, &[("a", &[m, k]), ("b", &[k, n])], |c| c.ranks = 1);
            let us = on_h200(&plan).total_s * 1e6;
            assert!((us / measured - 1.0).abs() < 0.1, "{chain}, {m} x {k} x {n}: {us:.0}");
        }
    }
}

#[test]
fn settings_that_differ_in_nothing_else_rank_as_measured() {
    // 2026-11-21, 4 H200s: .1189 ms with 24 CTAs that add, .1608 with 8; sums after the products are faster than 8 beside.
    let plan = |change: fn(&mut Config)| {
        on_h200(&with(
            "gemm(a, b) -> reduce_scatter",
            &[("a", &[4096, 4096]), ("b", &[4096, 4096])],
            change,
        ))
        .total_s
    };
    let eight = plan(|c| c.intra_comm_sms = Some(8));
    let many = plan(|c| c.intra_comm_sms = Some(24));
    assert!(many < eight);
    assert!(plan(|c| c.reduction = Reduction::AfterLastWave) < eight);
}

#[test]
fn a_fit_finds_figures_again() {
    let truth = DeviceModel::h200();
    let mut samples = Vec::new();
    for (m, n, comm) in [(1024, 1024, 8), (2048, 1024, 16), (1024, 2048, 24)] {
        let plan = with("gather(a) -> gemm(b)", &[("a", &[m, 1024]), ("b", &[1024, n])], |c| {
            c.intra_comm_sms = Some(comm);
        });
        let seconds = predict(&plan, truth).unwrap().total_s;
        samples.push(Sample { plan, seconds });
    }
    assert_eq!(error(truth, &samples), 0.0);
    let mut start = truth.clone();
    start.launch_s *= 2.0;
    start.link_bytes_per_s *= 0.6;
    let before = error(&start, &samples);
    let fitted = fit(&start, &samples, 3);
    assert!(error(&fitted, &samples) < before / 3.0, "{before}");
    assert_eq!(fitted, fit(&start, &samples, 3), "another time");
}

/// The bound of the design: 4 ranks of 4096 tiles each. Generous, because machines that run tests are slow.
#[test]
fn large_plans_are_predicted_quickly() {
    let plan =
        with("gather(a) -> gemm(b)", &[("a", &[16384, 4096]), ("b", &[4096, 32768])], |_| {});
    let begin = Instant::now();
    let p = on_h200(&plan);
    let time = begin.elapsed();
    assert!(p.spans.len() > 4 * 4096);
    assert!(time.as_secs_f64() < 2.0, "{time:?}");
}

//! Tokens that are copied to rows of their experts: plans, proofs, what becomes of them without an edge, and numbers on the executor.

use mk_codegen::{
    emit::{self, library},
    ir::{BufId, FamId, Leaf, Plan, Space, TabId, Tabulation},
    passes::{LowerError, compile},
    settings::{self, Config},
    sim::{self, Callbacks, Options, SimError},
    valid,
};
use mk_syntax::Program;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::{BTreeMap, BTreeSet};

const ALONE: &str = "fn dispatched(x: bf16[T, K], ids: i32[T, S], w: bf16[E, K, N]) -> bf16[R, N] {
    dispatch(x, ids) -> grouped_gemm(w)
}";
const EXPERTS: &str =
    "fn experts(x: bf16[T, K], ids: i32[T, S], w1: bf16[E, K, 2, F], w2: bf16[E, F, N]) {
    dispatch(x, ids) -> grouped_gemm(w1) -> swiglu -> grouped_gemm(w2)
}";

type Dims<'a> = &'a [(&'a str, u64)];

const SMALL: Dims<'_> = &[("T", 150), ("S", 2), ("K", 40), ("E", 10), ("N", 24), ("R", 1536)];
const LAYER: Dims<'_> =
    &[("T", 70), ("S", 2), ("K", 24), ("E", 3), ("F", 40), ("N", 16), ("rows_0", 512)];

fn plan(source: &str, dims: Dims<'_>, ranks: u32, set: &str) -> Result<Plan, LowerError> {
    let program = Program::parse(source).unwrap_or_else(|e| panic!("{e}"));
    let dims = dims.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let bound = program.bind(&dims, &BTreeMap::new()).expect("binds");
    let mut config = Config { ranks, ..Config::default() };
    settings::read(&mut config, set).expect("settings");
    compile(&program, &bound, &config).map(|(plan, _)| plan)
}

#[test]
fn texts() {
    for (name, source, dims) in [("dispatched", ALONE, SMALL), ("dispatched_layer", EXPERTS, LAYER)]
    {
        let plan = plan(source, dims, 1, "").unwrap_or_else(|e| panic!("{name}: {e}"));
        let text = plan.to_string();
        assert_eq!(text.parse::<Plan>().as_ref(), Ok(&plan), "{name}");
        assert_eq!(Plan::from_json(&plan.to_json().expect("JSON")).expect("a plan"), plan);
        insta::assert_snapshot!(name, text);
        let kernel = emit::emit(&plan).unwrap_or_else(|e| panic!("{name}: {e}"));
        let generated = kernel.cuda.split_once(library::END).expect("the library ends").1;
        insta::assert_snapshot!(format!("cuda_{name}"), generated);
    }
}

/// How tokens name experts.
#[derive(Clone, Copy, Debug)]
enum Form {
    Uniform,
    Skew,
    One,
    Empty,
    Random,
}

const FORMS: [Form; 5] = [Form::Uniform, Form::Skew, Form::One, Form::Empty, Form::Random];

/// The experts of so many tokens, of so many each.
fn ids(form: Form, seed: u64, [tokens, slots]: [usize; 2], experts: usize) -> Vec<i32> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let wanted = |rng: &mut SmallRng, slot: usize, t: usize| match form {
        Form::Uniform => (t * slots + slot) % experts,
        Form::Skew if rng.random_range(0..3) > 0 => 0,
        Form::One => slot,
        Form::Empty => rng.random_range(0..experts) | 1,
        Form::Skew | Form::Random => rng.random_range(0..experts),
    };
    let mut out = Vec::new();
    for t in 0..tokens {
        let mut mine: Vec<i32> = Vec::new();
        for slot in 0..slots {
            let mut e = wanted(&mut rng, slot, t) % experts;
            while mine.contains(&(e as i32)) {
                e = (e + 1) % experts;
            }
            mine.push(e as i32);
        }
        out.extend(mine);
    }
    out
}

/// A number for an element: small, and a multiple of a power of two, so that sums are exact.
fn number(seed: u64, i: usize) -> f32 {
    let mut x =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 31;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((x >> 40) % 17) as f32 / 8.0 - 1.0
}

type Given = BTreeMap<(i64, usize, BufId), Vec<f32>>;

/// A result in a launch: epoch, rank, shape and values.
type Found = Vec<(i64, usize, Vec<usize>, Vec<f32>)>;

/// Runs launches in which tokens name these experts, and gives tensors and results.
fn run(
    plan: &Plan,
    schedule: sim::Schedule,
    launches: u32,
    named: &dyn Fn(i64, [usize; 2]) -> Vec<i32>,
) -> Result<(Given, Found), SimError> {
    let is_ids = |id: BufId| plan.buffers[id].name == "ids";
    let out = plan.buffers.iter().find(|(_, b)| b.space == Space::Out).expect("a result").0;
    let (mut given, mut found) = (Given::new(), Found::new());
    let input = |epoch: i64, rank: usize, id: BufId, shape: &[usize]| -> Vec<f32> {
        let seed = (epoch as u64) << 32 ^ u64::from(id.to_string().as_bytes()[3]);
        let values: Vec<f32> = match is_ids(id) {
            true => named(epoch, [shape[0], shape[1]]).into_iter().map(|n| n as f32).collect(),
            false => (0..shape.iter().product()).map(|i| number(seed, i)).collect(),
        };
        given.insert((epoch, rank, id), values.clone());
        values
    };
    let table = |_: i64, _: usize, id: TabId| panic!("{id} is the caller's tensor");
    let output = |epoch: i64, rank: usize, id: BufId, shape: &[usize], values: &[f32]| {
        if id == out {
            found.push((epoch, rank, shape.to_vec(), values.to_vec()));
        }
    };
    let options = Options { schedule, seed: 7, launches, check: true, ..Options::default() };
    sim::run(plan, &mut Callbacks { input, table, output }, &options)?;
    Ok((given, found))
}

/// Compares the rows that experts have with sums in f64, and sees that nothing else is written.
fn right(source: &str, dims: Dims<'_>, ranks: u32, set: &str, schedules: &[sim::Schedule]) {
    let plan = plan(source, dims, ranks, set).unwrap_or_else(|e| panic!("{source}: {e}"));
    let size = |name: &str| dims.iter().find(|d| d.0 == name).map_or(0, |d| d.1 as usize);
    let by_name = |name: &str| plan.buffers.iter().find(|(_, b)| b.name == name).map(|(id, _)| id);
    let (slots, experts, depth) = (size("S"), size("E"), size("K"));
    for schedule in schedules.iter().copied() {
        let named = |epoch: i64, shape: [usize; 2]| {
            let form = FORMS[epoch as usize % FORMS.len()];
            ids(form, epoch as u64, shape, experts)
        };
        let (given, found) = run(&plan, schedule, FORMS.len() as u32, &named)
            .unwrap_or_else(|e| panic!("{source} under {schedule}: {e}"));
        assert_eq!(found.len(), FORMS.len() * ranks as usize);
        for (epoch, rank, shape, values) in found {
            let tensor = |name: &str| &given[&(epoch, rank, by_name(name).expect("a tensor"))];
            let (ids, x, width) = (tensor("ids"), tensor("x"), shape[1]);
            let mut written = BTreeSet::new();
            let mut at = 0;
            for e in 0..experts {
                let has = |token: &usize| ids[token * slots..][..slots].contains(&(e as f32));
                let tokens: Vec<usize> = (0..size("T")).filter(has).collect();
                for (row, token) in (at..).zip(&tokens) {
                    written.insert(row);
                    let x: Vec<f64> =
                        x[token * depth..][..depth].iter().map(|x| f64::from(*x)).collect();
                    let want = match by_name("w") {
                        Some(_) => product(&x, tensor("w"), e, width),
                        None => {
                            let h = product(&x, tensor("w1"), e, 2 * size("F"));
                            product(&gated(&h), tensor("w2"), e, width)
                        }
                    };
                    for (j, (want, of)) in want.into_iter().enumerate() {
                        let off = (f64::from(values[row * width + j]) - want).abs();
                        assert!(
                            off <= of / 128.0,
                            "{row} {j}: {} not {want}",
                            values[row * width + j]
                        );
                    }
                }
                at += tokens.len().div_ceil(128) * 128;
            }
            for row in (0..shape[0]).filter(|row| !written.contains(row)) {
                let untouched = values[row * width..][..width].iter().all(|x| x.is_nan());
                assert!(untouched, "row {row} of nobody is written");
            }
        }
    }
}

/// A row by the matrix of its expert, and for each sum that of its summands' sizes.
fn product(x: &[f64], w: &[f32], e: usize, columns: usize) -> Vec<(f64, f64)> {
    let sum = |j: usize| {
        x.iter().enumerate().fold((0.0, 0.0), |(sum, size), (k, left)| {
            let term = left * f64::from(w[(e * x.len() + k) * columns + j]);
            (sum + term, size + term.abs())
        })
    };
    (0..columns).map(sum).collect()
}

fn gated(h: &[(f64, f64)]) -> Vec<f64> {
    let (gate, up) = h.split_at(h.len() / 2);
    gate.iter().zip(up).map(|((g, _), (u, _))| g / (1.0 + (-g).exp()) * u).collect()
}

#[test]
fn numbers() {
    let all = sim::Schedule::all(1);
    right(ALONE, SMALL, 1, "", &all);
    let with = |slots: u64, experts: u64, room: u64| {
        [("T", 90), ("S", slots), ("K", 16), ("E", experts), ("N", 8), ("R", room)]
    };
    right(ALONE, &with(1, 1, 128), 1, "", &all[..2]);
    right(ALONE, &with(1, 5, 640), 1, "block=64x128x64", &all[..2]);
    right(ALONE, &with(8, 8, 1024), 1, "", &all[..2]);
    right(ALONE, &with(8, 11, 1408), 1, "", &all[..1]);
    right(EXPERTS, LAYER, 1, "", &all[..2]);
}

/// Ranks that have all tokens and all experts have nothing to do with each other.
#[test]
fn replicas() {
    for ranks in [2, 3, 4, 8] {
        let schedules = sim::Schedule::all(ranks as usize);
        let dims = [("T", 20), ("S", 2), ("K", 16), ("E", 3), ("N", 8), ("R", 384)];
        right(ALONE, &dims, ranks, "", &schedules[..1]);
    }
}

#[test]
fn what_tokens_cannot_name() {
    let plan = plan(ALONE, SMALL, 1, "").expect("a plan");
    let says = |change: fn(&mut Vec<i32>)| {
        let named = |_: i64, shape: [usize; 2]| {
            let mut ids = ids(Form::Random, 1, shape, 10);
            change(&mut ids);
            ids
        };
        run(&plan, sim::Schedule::all(1)[0], 1, &named).expect_err("no launch").to_string()
    };
    assert!(says(|ids| ids[7] = 10).contains("the entry 10 is outside 0..=9"));
    assert!(says(|ids| ids[7] = -1).contains("the entry -1 is outside 0..=9"));
    assert!(says(|ids| ids[7] = ids[6]).contains("token 3 names expert"));
    // Room for 2 blocks, and 10 experts that have rows.
    let small = [("T", 150), ("S", 2), ("K", 40), ("E", 10), ("N", 24), ("R", 256)];
    let plan = self::plan(ALONE, &small, 1, "").expect("a plan");
    let named = |_: i64, shape: [usize; 2]| ids(Form::Uniform, 1, shape, 10);
    let error = run(&plan, sim::Schedule::all(1)[0], 1, &named).expect_err("too many").to_string();
    assert!(error.contains("take 10 blocks, and it has 2"), "{error}");
}

/// Every wait, and every post that somebody waits for, is needed; and so is what looks up a block or a token before it.
#[test]
fn nothing_can_be_left_out() {
    let dims = [("T", 20), ("S", 2), ("K", 16), ("E", 3), ("N", 8), ("R", 384)];
    let plan = plan(ALONE, &dims, 1, "").expect("a plan");
    let mut n = 0;
    let mut rejected = |change: &dyn Fn(&mut Plan), what: String| {
        let mut less = plan.clone();
        change(&mut less);
        assert!(valid::verify(&less).is_err(), "{what}");
        n += 1;
    };
    for (id, f) in plan.families.iter() {
        // The words of its rows are behind the table, too: the kernel wants one that is the same for every tile.
        let spare = usize::from(f.name == "gemm");
        for i in spare..f.waits.len() {
            rejected(&|p| drop(p.families[id].waits.remove(i)), format!("{}: wait {i}", f.name));
        }
        for i in 0..f.posts.len() {
            rejected(&|p| drop(p.families[id].posts.remove(i)), format!("{}: post {i}", f.name));
        }
        for i in (0..f.accesses.len()).filter(|i| f.accesses[*i].operand.name() == "tab") {
            rejected(&|p| drop(p.families[id].accesses.remove(i)), format!("{}: {i}", f.name));
            let first = |p: &mut Plan| p.families[id].accesses[i].region[0].0 = 0.into();
            rejected(&first, format!("{}: entry {i}", f.name));
        }
    }
    assert_eq!(n, 14);
}

/// Tables are filled from what their lines say, and as a whole; and rows are pulled where they are looked up.
#[test]
fn what_fills_a_table_is_what_it_says() {
    let plan = plan(ALONE, SMALL, 1, "").expect("a plan");
    let family = |name: &str| plan.families.iter().find(|(_, f)| f.name == name).expect("it").0;
    let (counts, list) = (family("counts"), family("list"));
    let changes: [(FamId, fn(&mut Plan, FamId), &str); 5] = [
        (counts, |p, f| p.families[f].domain[0].1 = 1.into(), "fills a table of counts"),
        (
            counts,
            |p, f| p.families[f].accesses[1].region[0].1 = 8.into(),
            "fills a table of counts",
        ),
        (
            counts,
            |p, f| p.families[f].leaf = Leaf::Tabulate { of: Tabulation::Counts { groups: 9 } },
            "fills a table of counts",
        ),
        (list, |p, f| p.families[f].domain[0].1 = 5.into(), "fills a table of tokens"),
        (list, |p, f| p.families[f].accesses[1].when = Some(0.into()), "fills a table of tokens"),
    ];
    for (id, change, says) in changes {
        let mut other = plan.clone();
        change(&mut other, id);
        let errors = other.check_structure().expect_err("another table");
        assert!(errors.iter().any(|e| e.message.starts_with(says)), "{errors:?}");
    }
}

#[test]
fn what_has_no_kernel_is_refused() {
    let says = |source: &str, dims: Dims<'_>, ranks: u32| {
        plan(source, dims, ranks, "").map_or_else(|e| e.to_string(), |_| "a plan".into())
    };
    let with = |name: &str, n: u64| -> Vec<(&str, u64)> {
        SMALL.iter().map(|d| if d.0 == name { (d.0, n) } else { *d }).collect()
    };
    for (text, dims) in [
        ("whole blocks of 128", with("R", 700)),
        ("11 experts of each token", with("S", 11)),
        ("9 experts of each token", with("S", 9)),
        ("multiples of 8", with("N", 131)),
        ("multiples of 8", with("K", 36)),
        ("2 experts of each token, of 1", with("E", 1)),
    ] {
        let said = says(ALONE, &dims, 1);
        assert!(said.contains(text), "{text}: {said}");
    }
    let sharded = "fn f(x: bf16[T, K] @ shard(0), ids: i32[T, S] @ shard(0), w: bf16[E, K, N] @ shard(0)) -> bf16[R, N] @ shard(0) {
        dispatch(x, ids) -> grouped_gemm(w)
    }";
    assert_eq!(says(sharded, SMALL, 1), "a plan");
    let said = says(sharded, SMALL, 2);
    assert!(said.contains("tokens go to experts of other ranks"), "{said}");
    let few = [("T", 150), ("S", 2), ("K", 40), ("R", 1536)];
    let alone =
        says("fn f(x: bf16[T, K], ids: i32[T, S]) -> bf16[R, K] { dispatch(x, ids) }", &few, 1);
    assert!(alone.contains("no product reads the rows"), "{alone}");
}

//! Runs a plan with random data and keeps all inputs and outputs.

use mk_abi::DType;
use mk_codegen::{
    plan::{BufId, Entity, Plan, TabId},
    sim::{self, Callbacks, Options, RunReport, SimError},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{cell::RefCell, collections::BTreeMap, fs, path::Path};

/// A tensor of one rank and epoch.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Tensors and tables by epoch, rank and name.
#[derive(Default)]
pub struct Data {
    pub inputs: BTreeMap<(i64, usize, String), Tensor>,
    pub outputs: BTreeMap<(i64, usize, String), Tensor>,
    pub tables: BTreeMap<(i64, usize, String), Vec<i32>>,
}

impl Data {
    pub fn input(&self, epoch: i64, rank: usize, name: &str) -> &Tensor {
        &self.inputs[&(epoch, rank, name.to_string())]
    }
    pub fn table(&self, epoch: i64, rank: usize, name: &str) -> &[i32] {
        &self.tables[&(epoch, rank, name.to_string())]
    }
}

/// Makes a table by epoch, rank and name.
pub type MakeTable = dyn Fn(i64, usize, &str) -> Vec<i32>;

pub fn no_tables(_: i64, _: usize, _: &str) -> Vec<i32> {
    Vec::new()
}

pub fn plan_text(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans");
    fs::read_to_string(dir.join(format!("{name}.plan"))).expect("a fixture")
}

/// Names of the plans in a folder of `tests/plans`, sorted.
pub fn names(folder: &str) -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans").join(folder);
    let files = fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path());
    let stem = |p: std::path::PathBuf| Some(p.file_stem()?.to_str()?.to_string());
    let mut names: Vec<_> =
        files.filter(|p| p.extension().is_some_and(|e| e == "plan")).filter_map(stem).collect();
    names.sort();
    names
}

pub fn plan(name: &str) -> Plan {
    plan_text(name).parse().expect("a plan")
}

/// The plan of a fixture with a piece of its text replaced.
pub fn plan_with(name: &str, from: &str, to: &str) -> Plan {
    let text = plan_text(name);
    assert!(text.contains(from), "{name} has no `{from}`");
    text.replace(from, to).parse().expect("a plan")
}

/// The plan of a fixture without the line of an edge.
pub fn plan_without(name: &str, line: &str) -> Plan {
    let text = plan_text(name);
    let start = format!("  {line} ");
    let kept: Vec<_> = text.lines().filter(|l| !l.starts_with(&start)).collect();
    assert_eq!(kept.len() + 1, text.lines().count(), "{name} has no `{line}`");
    kept.join("\n").parse().expect("a plan")
}

/// Fresh data for every epoch and rank, uniform in -1..1; of tables in memory what `tables` makes.
pub fn run(
    plan: &Plan,
    tables: &MakeTable,
    options: &Options,
) -> (Result<RunReport, SimError>, Data) {
    let data = RefCell::new(Data::default());
    let name = |b: BufId| plan.buffers[b].name.clone();
    let input = |epoch: i64, rank: usize, b: BufId, shape: &[usize]| {
        if let Some(t) = plan.tables.values().find(|t| t.stored == Some(b)) {
            let values = tables(epoch, rank, &t.name);
            data.borrow_mut().tables.insert((epoch, rank, t.name.clone()), values.clone());
            return values.into_iter().map(|n| n as f32).collect();
        }
        let seed = (epoch as u64) << 32 | (rank as u64) << 16 | b.index() as u64;
        let mut rng = SmallRng::seed_from_u64(seed);
        let one = |_| DType::Bf16.round(rng.random_range(-1.0..1.0));
        let values: Vec<f32> = (0..shape.iter().product()).map(one).collect();
        let tensor = Tensor { shape: shape.to_vec(), values: values.clone() };
        data.borrow_mut().inputs.insert((epoch, rank, name(b)), tensor);
        values
    };
    let table = |epoch: i64, rank: usize, t: TabId| {
        let name = plan.tables[t].name.clone();
        let values = tables(epoch, rank, &name);
        data.borrow_mut().tables.insert((epoch, rank, name), values.clone());
        values
    };
    let output = |epoch: i64, rank: usize, b: BufId, shape: &[usize], values: &[f32]| {
        let tensor = Tensor { shape: shape.to_vec(), values: values.to_vec() };
        data.borrow_mut().outputs.insert((epoch, rank, name(b)), tensor);
    };
    let report = sim::run(plan, &mut Callbacks { input, table, output }, options);
    (report, data.into_inner())
}

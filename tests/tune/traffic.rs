//! What a chosen plan reads from memory: raster groups that stay in L2, and operand B once.

use super::{bound, drawn};
use mk::{
    Program,
    cost::DeviceModel,
    passes,
    plan::{Access, BufId, Family, Operand, Plan, Points, TableSet},
    settings::{Config, SETTINGS},
    tune,
};
use std::collections::BTreeMap;

/// `gather(a) -> gemm(b)` of `[m, k]` and `[k, n]` a rank.
fn gathered([m, k, n]: [u64; 3], ranks: u32) -> (Program, mk::Bound) {
    let program = Program::parse("gather(a) -> gemm(b)").expect("parses");
    let bound = bound(&program, &[("a", &[m, k]), ("b", &[k, n * u64::from(ranks)])]);
    (program, bound)
}

fn lowered(shape: [u64; 3], config: &Config) -> Plan {
    let (program, bound) = gathered(shape, config.ranks);
    passes::lower(&program, &bound, config).expect("has a plan")
}

fn chosen(shape: [u64; 3], ranks: u32) -> Config {
    let (program, bound) = gathered(shape, ranks);
    tune::choose(&program, &bound, ranks, DeviceModel::h100()).expect("there is one").0
}

/// Families of GEMM tiles.
fn products(plan: &Plan) -> impl Iterator<Item = (mk::plan::FamId, &Family)> {
    plan.families.iter().filter(|(_, f)| f.leaf.product().is_some())
}

fn operand(family: &Family, operand: Operand) -> &Access {
    family.accesses.iter().find(|a| a.operand == operand).expect("a GEMM has it")
}

/// Rows of the tiles that rank 0 walks before the next columns: the most of all families.
fn rows_of_a_group(plan: &Plan) -> i64 {
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let points = Points::new(plan, &tables);
    let of_family = |(id, family): (_, &Family)| {
        // Parts of a tile along K have the same rows.
        let (mut rows, mut most, mut column) = (BTreeMap::new(), 0, None);
        for task in points.tasks(id, 0, 1).expect("has points") {
            let access = operand(family, Operand::C);
            let Some(region) = points.region(&task, access).expect("has a region") else {
                continue;
            };
            let [.., (row, height), (at, _)] = region.dims[..] else { panic!("a matrix") };
            if column.replace(at) != Some(at) {
                rows.clear();
            }
            rows.insert(row, height);
            most = most.max(rows.values().sum::<i64>());
        }
        most
    };
    products(plan).map(of_family).max().expect("there is a GEMM")
}

/// A search once took 256 x 160 in groups of 4096 rows, whose rows of A leave L2: 46 ms, where 128 x 256 takes 24.
#[test]
fn chosen_raster_groups_hold_at_most_1024_rows() {
    let large = [32768, 32768, 8192];
    for ranks in drawn::some([2, 4, 8], 3) {
        let (program, bound) = gathered(large, ranks);
        let facts = tune::facts(&program, &bound, ranks);
        let setting = SETTINGS.iter().find(|s| s.name == "group_m").expect("there is one");
        assert!((setting.values)(&facts).is_empty(), "none is searched");
        let config = chosen(large, ranks);
        let rows = rows_of_a_group(&lowered(large, &config));
        assert!((1..=1024).contains(&rows), "{ranks} ranks: {rows} rows, {config:?}");
        let block = [256, 160, 64];
        let taller = Config { group_m: Some(16), block, last_wave: None, ..config };
        assert_eq!(rows_of_a_group(&lowered(large, &taller)), 4096, "as it was");
    }
}

/// Less than a wave of long tiles: on two H100 whole ones once took 69 us, the GEMM alone 36.
#[test]
fn k_is_cut_beside_a_gather_of_few_rows() {
    let (shape, model) = ([320, 7872, 2176], DeviceModel::h100());
    let (program, bound) = gathered(shape, 2);
    let (config, found) = tune::choose(&program, &bound, 2, model).expect("there is one");
    let wave = config.last_wave.expect("in parts");
    let rows = u64::from(wave.blocks) * u64::from(config.block[0]);
    assert!(wave.parts > 1 && rows >= shape[0], "{config:?}");
    let (plan, _proof) = passes::compile(&program, &bound, &config).expect("is proved");
    mk::emit::emit(&plan).expect("has a kernel");
    let whole = Config { last_wave: None, ..config };
    let whole = tune::predict(&program, &bound, &whole, model).expect("is predicted");
    assert!(found.total_s < 0.95 * whole.total_s, "{} and {}", found.ms(), whole.ms());
}

/// Bytes of operand B that the tiles of a rank load.
fn loaded(plan: &Plan, rank: usize) -> (i64, i64) {
    let tables = TableSet::new(plan, |_, _| Vec::new());
    let points = Points::new(plan, &tables);
    let (mut elements, mut b): (i64, Option<BufId>) = (0, None);
    for (id, family) in products(plan) {
        let access = operand(family, Operand::B);
        b = Some(access.buffer);
        for task in points.tasks(id, rank, 1).expect("has points") {
            let region = points.region(&task, access).expect("has a region");
            elements += region.map_or(0, |r| r.len());
        }
    }
    let b = b.expect("there is a GEMM");
    let size = plan.buffers[b].dtype.size_bytes() as i64;
    (size * elements, size * points.shape(b, rank).expect("a shape").iter().product::<i64>())
}

/// B is most of what few rows read: a block of tiles reads it once, whatever the number of ranks that its rows come from.
#[test]
fn few_gathered_rows_load_the_weights_once_for_each_block_of_rows() {
    for shape in [[128, 8128, 8064], [128, 4352, 1088], [64, 1152, 576], [192, 3392, 832]] {
        for ranks in [2, 4, 8] {
            let config = chosen(shape, ranks);
            let plan = lowered(shape, &config);
            let down = shape[0].div_ceil(u64::from(config.block[0])) as i64;
            for rank in 0..ranks as usize {
                let (bytes, b) = loaded(&plan, rank);
                assert_eq!(bytes, down * b, "{shape:?} on {ranks} ranks: {config:?}");
            }
            if shape[0] == 128 && shape[1] > 8000 {
                assert_eq!(down, 1, "{shape:?} on {ranks} ranks: {config:?}");
            }
        }
    }
    // A copy engine's tiles hold rows of one rank.
    let gather = mk::settings::Gather::CopyEngine { parts: 1 };
    let apart = Config { ranks: 4, gather, ..Config::default() };
    let (bytes, b) = loaded(&lowered([128, 8128, 8064], &apart), 0);
    assert_eq!(bytes, 4 * b);
}

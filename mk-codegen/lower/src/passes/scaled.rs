//! Smaller plans in place of one that routes many tokens, or wide ones.
//!
//! Such a plan has a task for every few tokens and rows, each of which looks up what differs from launch to launch.
//! Here sizes are chosen that leave the same remainders everywhere, so that every number of the plan is affine in how
//! many chunks of tokens and groups of blocks there are. Whether it is, `valid::is_affine` decides: nothing here is
//! trusted.

use super::{LowerError, lower_of_any_capacity};
use crate::settings::Config;
use mk_plan::Plan;
use mk_prove::{
    equivalence::{self, Evaluation, FieldError},
    valid::{self, Along, Failure, Proof, Relatives},
};
use mk_syntax::{Bound, Dim, Node, Op, Program, RAGGED_BLOCK, SymbolId, ValueId};
use std::collections::BTreeMap;

/// Tokens of a rank that a plan lists together.
const CHUNK: u64 = 256;
/// Chunks of the base, at least: the first and the last one.
const CHUNKS: u64 = 2;
/// Blocks that a plan treats together, apart from groups of a setting.
const LISTED: u64 = 8;
/// Groups of blocks of the base, at least, with a last one that is not full: the first, one within, and the last.
const GROUPS: u64 = 3;
/// Columns that a plan lists together, apart from blocks of a setting.
const COLUMNS: u64 = 256;
/// Tiles of columns of the base, at least: the first, one within, and the last.
const TILES: u64 = 3;

/// Plans that lead to a larger one.
pub struct Smaller {
    /// Those that are proved: rows may be anywhere in them.
    relatives: Relatives,
    /// Those that are evaluated, each with its sizes: they have room for all rows of their tokens. Where there is none
    /// that is smaller, the plan itself.
    evaluated: Vec<(Plan, Bound)>,
}

impl Smaller {
    /// The plans that are proved.
    pub fn relatives(&self) -> &Relatives {
        &self.relatives
    }

    /// As [`valid::verify`]: [`valid::verify_affine`].
    ///
    /// # Errors
    /// The violations, as counterexamples.
    pub fn verify(&self, plan: &Plan) -> Result<Proof, Failure> {
        valid::verify_affine(plan, &self.relatives)
    }

    /// As [`equivalence::evaluate`], with every routing for the smallest plan, and with one for the others.
    ///
    /// # Errors
    /// As there.
    pub fn evaluate(
        &self,
        program: &Program,
        options: &equivalence::Options,
    ) -> Result<Evaluation, FieldError> {
        let mut all = Evaluation { elements: 0, of: 0, values: Vec::new() };
        for (i, (plan, bound)) in self.evaluated.iter().enumerate() {
            let routings = if i == 0 { options.routings } else { 1 };
            let options = equivalence::Options { routings, ..*options };
            let found = equivalence::evaluate(plan, program, bound, &options)?;
            all.elements += found.elements;
            all.of += found.of;
        }
        Ok(all)
    }
}

/// Smaller plans to look at in place of this one; `None` for one that is small, or routes nothing, or of which others
/// do not say enough.
pub fn smaller(program: &Program, bound: &Bound, config: &Config, plan: &Plan) -> Option<Smaller> {
    let bound = bound.on(program, super::sharing(program, config)).ok()?;
    // Where a width decides more than numbers, only that of rows may be less.
    [true, false].into_iter().find_map(|narrow| {
        let (few, many) = sizes(program, &bound, config, narrow)?;
        let relatives = relatives(program, config, &few).ok()?;
        let evaluated = match many.is_empty() {
            true => vec![(plan.clone(), bound.clone())],
            false => relatives_of(plan, program, config, &many)?,
        };
        valid::is_affine(plan, &relatives).ok()?;
        Some(Smaller { relatives, evaluated })
    })
}

fn relatives_of(
    plan: &Plan,
    program: &Program,
    config: &Config,
    sizes: &[Sized],
) -> Option<Vec<(Plan, Bound)>> {
    let found = relatives(program, config, sizes).ok()?;
    valid::is_affine(plan, &found).ok()?;
    let plans = [found.base].into_iter().chain(found.along.into_iter().map(|a| a.plan));
    Some(plans.zip(sizes.iter().map(|s| s.bound.clone())).collect())
}

/// A pipeline at other sizes.
struct Sized {
    bound: Bound,
    /// How many times as far as this one the pipeline is from the first; 0 of the first.
    steps: u64,
}

fn relatives(program: &Program, config: &Config, sizes: &[Sized]) -> Result<Relatives, LowerError> {
    let [base, along @ ..] = sizes else {
        return Err(super::error::internal("a plan without relatives"));
    };
    let along = along.iter().map(|s| {
        let plan = lower_of_any_capacity(program, &s.bound, config)?;
        Ok(Along { plan, steps: i64::try_from(s.steps).unwrap_or(i64::MAX) })
    });
    let along = along.collect::<Result<_, LowerError>>()?;
    Ok(Relatives { base: lower_of_any_capacity(program, &base.bound, config)?, along })
}

/// What an extent is in the text.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    Symbol(SymbolId),
    /// A number: wherever else the text has it, it changes, too, and the plans are not alike if that matters.
    Number(u64),
}

/// An extent of the base, and of the next larger pipeline.
struct Grows {
    extent: Extent,
    base: u64,
    step: u64,
}

/// Extents that grow together, and how many times as far the pipeline's are.
struct Steps {
    extents: Vec<Grows>,
    steps: u64,
}

/// Columns of experts' matrices, in as many steps as make the base and the next larger pipeline smallest together.
fn widths(list: &[(Extent, u64)], unit: u64) -> Option<Steps> {
    let tiles = |size: u64| size.checked_sub(unit * TILES).map_or(0, |more| more / unit);
    let along = |steps: u64| {
        let grow = list.iter().filter(move |(_, size)| tiles(*size) >= steps);
        grow.map(move |(extent, size)| {
            let step = tiles(*size) / steps * unit;
            Grows { extent: *extent, base: size - steps * step, step }
        })
    };
    let columns = |steps: &u64| {
        let fixed = list.iter().filter(|(_, size)| tiles(*size) < *steps).map(|(_, size)| 2 * size);
        fixed.chain(along(*steps).map(|g| 2 * g.base + g.step)).sum::<u64>()
    };
    let most = list.iter().map(|(_, size)| tiles(*size)).max()?;
    let steps = (2..=most).min_by_key(columns)?;
    Some(Steps { extents: along(steps).collect(), steps })
}

/// Sizes to prove, and to evaluate: of fewer tokens, of less room for rows, or of both, and of narrower rows if asked
/// for. `None` where none is smaller.
fn sizes(
    program: &Program,
    bound: &Bound,
    config: &Config,
    narrow: bool,
) -> Option<(Vec<Sized>, Vec<Sized>)> {
    let dims = |v| program.ty(v).map(|ty| &ty.dims[..]);
    // Rows that this kernel dispatches, or that one before it did: they come with the experts of each token.
    let by_token = |v: &ValueId| dims(*v).is_some_and(|dims| dims.len() == 2);
    let products = || {
        let of_tokens = |n: &&Node| {
            matches!(n.op, Op::GroupedGemm { .. }) && n.inputs.get(2).is_some_and(by_token)
        };
        program.nodes().iter().filter(of_tokens)
    };
    let product = products().next()?;
    let (rows, ids) = (*product.inputs.first()?, *product.inputs.get(2)?);
    let drops = program.drops(ids);
    let fixed = |dim: Option<&Dim>| match dim {
        Some(Dim::Sym(symbol)) if bound.runtime().contains(symbol) => None,
        Some(Dim::Sym(symbol)) => Some(Extent::Symbol(*symbol)),
        Some(Dim::Lit(n)) => Some(Extent::Number(*n)),
        None => None,
    };
    let tokens = fixed(dims(ids)?.first())?;
    let slots = bound.dim(*dims(ids)?.get(1)?)?;
    let rows = fixed(dims(rows)?.first());
    let experts = bound.dim(*dims(*product.inputs.get(1)?)?.first()?)?;
    let world = u64::from(config.ranks.max(1));
    let size = |extent: Extent| match extent {
        Extent::Symbol(symbol) => bound.sizes().get(symbol.index()).copied(),
        Extent::Number(n) => Some(n),
    };
    let steps = |extent: Extent, step: u64, least: u64| {
        let size = size(extent)?;
        let steps = size.checked_sub(least)? / step;
        let extents = vec![Grows { extent, base: size - steps * step, step }];
        (steps > 1).then_some(Steps { extents, steps })
    };
    let of_tokens = steps(tokens, world * CHUNK, world * CHUNK * CHUNKS);
    let most = match &of_tokens {
        Some(tokens) => tokens.extents.iter().map(|t| t.base + t.step).sum(),
        None => size(tokens)?,
    };
    let group = u64::from(config.group_blocks().max(1));
    let mut group = LISTED * group / gcd(LISTED, group);
    let own = experts.div_ceil(world).max(1);
    if drops {
        // Each expert keeps its share of the blocks.
        group = group * own / gcd(group, own);
    }
    let block = world * RAGGED_BLOCK;
    let room = |blocks: u64| rows.and_then(|rows| steps(rows, block * group, block * blocks));
    // Rows that are dropped are so behind an expert's share.
    let least = if drops { own } else { 0 };
    let few = room(((GROUPS - 1) * group + 1).max(least));
    // A block of each expert that is not full, besides.
    let many = room((most * slots).div_ceil(block) + own);
    let mut columns: Vec<(Extent, u64)> = Vec::new();
    for dim in products().filter_map(|n| dims(*n.inputs.get(1)?)).flat_map(|d| d.iter().skip(1)) {
        let Some(extent) = fixed(Some(dim)) else { continue };
        let is_row = extent == tokens || Some(extent) == rows;
        if !is_row && !columns.iter().any(|c| c.0 == extent) {
            columns.push((extent, size(extent)?));
        }
    }
    let tile = u64::from(config.block[1].max(1));
    let of_columns = match narrow {
        true => Some(widths(&columns, COLUMNS * tile / gcd(COLUMNS, tile))?),
        false => None,
    };
    let symbols = program.symbols();
    let sizes = |rows: Option<Steps>| {
        let list: Vec<&Steps> = of_tokens.iter().chain(&rows).chain(&of_columns).collect();
        if list.is_empty() {
            return Some(Vec::new());
        }
        let sized = |larger: Option<usize>| {
            let names = symbols.iter().map(|s| s.name.clone());
            let mut all: BTreeMap<String, u64> = names.zip(bound.sizes().iter().copied()).collect();
            let mut numbers = BTreeMap::new();
            for (i, s) in list.iter().enumerate() {
                for Grows { extent, base, step } in &s.extents {
                    let size = base + if larger == Some(i) { *step } else { 0 };
                    match extent {
                        Extent::Symbol(symbol) => {
                            all.insert(symbols.get(symbol.index())?.name.clone(), size);
                        }
                        Extent::Number(n) => {
                            numbers.insert(*n, size);
                        }
                    }
                }
            }
            let bound = program.bind_elsewhere(&all, &numbers).ok()?;
            Some(Sized { bound, steps: larger.map_or(0, |i| list[i].steps) })
        };
        let all = [None].into_iter().chain((0..list.len()).map(Some));
        all.map(sized).collect::<Option<Vec<_>>>()
    };
    let proved = sizes(few)?;
    (!proved.is_empty()).then_some(())?;
    Some((proved, sizes(many)?))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

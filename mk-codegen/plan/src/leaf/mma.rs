//! GEMMs.

use super::{QuantTile, Record, Store};
use crate::{
    contract::{Allowed, Arity, Contract, EdgeSpec, Elements, OneType, OperandSpec},
    epilogue::{
        EPILOGUE_OPERANDS, EpilogueOp, gated, keeps_end, quantized, read_epilogue, scales_first,
        scales_steps, write_epilogue,
    },
    mma::{
        MMA_ROW_FACTOR_BYTES, mma_consumers, mma_exchange_bytes, mma_narrow,
        mma_shifted_stage_bytes, mma_shifts, mma_stage_bytes, mma_staging_bytes, mma_swaps,
    },
    names::{Agent, Mode, Operand, Point, Proxy},
    text::{Cursor, Result},
};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Formatter};

/// Memory layout of a GEMM's operand A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ALayout {
    /// `[m, k]`, k contiguous.
    Mk,
    /// `[k, m]`, m contiguous.
    Km,
}

/// Memory layout of a GEMM's operand B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BLayout {
    /// `[k, n]`, n contiguous.
    Kn,
    /// `[n, k]`, k contiguous.
    Nk,
}

/// How the two warpgroups that multiply share a CTA's tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consumers {
    /// Each has its part of every tile.
    #[default]
    Cooperative,
    /// Tiles of their own, in turn: one multiplies while the other brings its results out.
    PingPong,
}

/// No cluster that loads together.
fn alone() -> [u32; 2] {
    [1, 1]
}

fn is_alone(multicast: &[u32; 2]) -> bool {
    *multicast == alone()
}

/// `c = epilogue(a · b)` with f32 accumulation, k in ascending blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MmaTile {
    /// Rows, columns and depth of the tile. 128 elements of depth are of eight bits each.
    pub block: [u32; 3],
    /// Shared-memory stages.
    pub stages: u32,
    /// Layout of `a`.
    pub a_layout: ALayout,
    /// Layout of `b`.
    pub b_layout: BLayout,
    /// Whether rows of `b` begin at any element: a stage has them as they lie, and the consumers, whose operands are
    /// swapped, shift them on the way to registers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shifted: bool,
    /// How `c` is written.
    pub store: Store,
    /// Who multiplies a tile.
    pub consumers: Consumers,
    /// CTAs of a cluster that share a tile: each multiplies a part of its steps along k, and their f32 sums are added
    /// in the order of k. More than one store `c` by themselves.
    #[serde(default = "crate::plan::one", skip_serializing_if = "crate::plan::is_one")]
    pub cluster: u32,
    /// Tiles of a cluster's CTAs that lie one below the other and side by side, which make up a task: those below each
    /// other load B together, those side by side A, each CTA a part for all (TMA multicast). `block` is of one CTA.
    #[serde(default = "alone", skip_serializing_if = "is_alone")]
    pub multicast: [u32; 2],
    /// Elementwise tail.
    pub epilogue: Vec<EpilogueOp>,
}

impl MmaTile {
    pub(super) fn read(c: &mut Cursor<'_>) -> Result<MmaTile> {
        let (block, stages) = (c.block()?, c.stages()?);
        let mut a_layout = ALayout::Mk;
        if c.eat_word("a") {
            c.sign("=")?;
            if c.one_of(&["mk", "km"])? == "km" {
                a_layout = ALayout::Km;
            }
        }
        let b_layout =
            if c.choice("b", &["kn", "nk"])? == "kn" { BLayout::Kn } else { BLayout::Nk };
        let shifted = c.eat_word("shifted");
        let store = Store::read(c)?;
        let mut consumers = Consumers::Cooperative;
        if c.eat_word("consumers") {
            c.sign("=")?;
            c.keyword("ping_pong")?;
            consumers = Consumers::PingPong;
        }
        let cluster = if c.eat_word("cluster") {
            c.sign("=")?;
            c.number()?
        } else {
            1
        };
        let multicast = if c.eat_word("multicast") {
            c.sign("=")?;
            let what = "CTAs below and beside, such as `2x1`, each from 1 to 8";
            c.sides(8).ok_or_else(|| c.expected(what))?
        } else {
            alone()
        };
        let epilogue = read_epilogue(c)?;
        Ok(MmaTile {
            block,
            stages,
            a_layout,
            b_layout,
            shifted,
            store,
            consumers,
            cluster,
            multicast,
            epilogue,
        })
    }

    /// Columns of `c` that a task makes.
    pub fn task_columns(&self) -> u32 {
        self.out_columns() * self.multicast[1]
    }

    /// Whether two GEMMs run on the same barriers and stages: they differ in layouts, arithmetic, or the way of
    /// storing only, or in columns, in whole panels of 64.
    pub(super) fn shares_ring(&self, other: &MmaTile) -> bool {
        let ring = |x: &MmaTile| {
            let [m, n, k] = x.block;
            let sides = ([m, k, x.stages, x.cluster], x.multicast, mma_consumers([m, n]));
            (sides, x.consumers, x.shifted)
        };
        let [n, n2] = [self.block[1], other.block[1]];
        ring(self) == ring(other) && (n == n2 || n.is_multiple_of(64) && n2.is_multiple_of(64))
    }
}

impl Record for MmaTile {
    fn name(&self) -> &'static str {
        "mma_tile"
    }

    fn settings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [m, n, k] = self.block;
        let a = if self.a_layout == ALayout::Mk { "" } else { " a=km" };
        let b = if self.b_layout == BLayout::Kn { "kn" } else { "nk" };
        let (stages, store) = (self.stages, self.store.name());
        let shifted = if self.shifted { " shifted" } else { "" };
        write!(f, " block={m}x{n}x{k} stages={stages}{a} b={b}{shifted} store={store}")?;
        if self.consumers == Consumers::PingPong {
            f.write_str(" consumers=ping_pong")?;
        }
        if self.cluster != 1 {
            write!(f, " cluster={}", self.cluster)?;
        }
        let [below, beside] = self.multicast;
        if below * beside != 1 {
            write!(f, " multicast={below}x{beside}")?;
        }
        write_epilogue(f, &self.epilogue)
    }

    fn contract(&self) -> Contract {
        use Agent::{Consumers, Loader, Storer};
        let op = OperandSpec::new;
        let tma = self.store == Store::Tma;
        let mut operands = vec![
            op(Operand::A, Mode::Read, Loader, Proxy::Async, Arity::Many),
            // Of a tensor of the caller that no task writes, it may be read before the task's waits, which order
            // nothing about it.
            op(Operand::B, Mode::Read, Loader, Proxy::Async, Arity::One),
        ];
        operands.extend(OperandSpec::tails(&self.epilogue, Consumers));
        if self.epilogue.contains(&EpilogueOp::Carry) {
            operands.push(op(Operand::AccIn, Mode::Read, Loader, Proxy::Async, Arity::One));
        }
        let (agent, proxy) = if tma { (Storer, Proxy::Async) } else { (Consumers, Proxy::Generic) };
        operands.push(op(Operand::C, Mode::Write, agent, proxy, Arity::Many));
        operands.push(OperandSpec::tab(Loader));
        // Warpgroups that take turns have panels of their own.
        let panels = if self.consumers == self::Consumers::PingPong { 2 } else { 1 };
        // Without TMA the consumers store by themselves, and tell the storer when they have. The stage of a tile's last
        // step may go back by way of the storer, when it has sent the panels there: later than `empty` says, and before
        // any staging panel of the tile goes back.
        let edges = vec![
            EdgeSpec::flow("full", Loader, Consumers),
            EdgeSpec::back("empty", Consumers, Loader, self.stages),
            EdgeSpec { proxy_fence: tma, ..EdgeSpec::flow("staged", Consumers, Storer) },
            EdgeSpec::back("drained", Storer, Consumers, panels),
        ];
        let [m, n, _] = self.block;
        let staging = mma_staging_bytes([m, n], self.stages);
        let stage = match self.shifted {
            true => mma_shifted_stage_bytes(self.block),
            false => mma_stage_bytes(self.block),
        };
        let factors = if scales_steps(&self.epilogue) { MMA_ROW_FACTOR_BYTES } else { 0 };
        let beside = staging.max(mma_exchange_bytes([m, n], self.cluster)) + factors;
        Contract {
            agents: vec![Loader, Consumers, Storer],
            operands,
            edges,
            smem_bytes: self.stages * stage + beside,
        }
    }

    fn allowed(&self, _: bool) -> Allowed {
        use Agent::{Loader, Storer};
        use Point::{End, Inner, Start};
        let mut operands = vec![
            (Operand::A, &[Start, Inner][..]),
            (Operand::B, &[Start, Inner]),
            (Operand::AccIn, &[Start, Inner, End]),
            (Operand::C, &[End]),
            (Operand::Tab, &[Start]),
        ];
        let tails = self.epilogue.iter().filter_map(|op| op.operand());
        for (operand, mode) in EPILOGUE_OPERANDS.into_iter().zip(tails) {
            // What an epilogue saves is made at the end.
            let points = if mode == Mode::Read { &[Start, End][..] } else { &[End] };
            operands.push((operand, points));
        }
        Allowed {
            operands,
            waits: vec![(Loader, Start), (Loader, Inner), (Storer, Start)],
            posts: vec![(Storer, End)],
            inner: true,
        }
    }

    fn types(&self) -> Vec<OneType> {
        // Panels of eight bits have no layout, and partial sums are computed with.
        let panels = self.store == Store::Tma || self.epilogue.contains(&EpilogueOp::Carry);
        let result = if panels { Elements::Float } else { Elements::Stored };
        let quantized = quantized(&self.epilogue);
        let result = quantized.map_or(result, Elements::Only);
        let mut all = vec![OneType::new(&[Operand::C, Operand::AccIn], result)];
        // Of eight bits the two may differ.
        match mma_narrow(self.block[2]) {
            true => {
                all.extend([Operand::A, Operand::B].map(|o| OneType::new(&[o], Elements::Narrow)))
            }
            false => all.push(OneType::new(&[Operand::A, Operand::B], Elements::Half)),
        }
        let operands = self.epilogue.iter().filter(|op| op.operand().is_some()).count();
        all.extend(EPILOGUE_OPERANDS.into_iter().enumerate().map(|(i, e)| {
            let factors = quantized.is_some() && i + 1 == operands;
            OneType::new(&[e], if factors { Elements::F32 } else { Elements::Float })
        }));
        all
    }

    fn through_tma(&self) -> Vec<Operand> {
        let stored = (self.store == Store::Tma).then_some(Operand::C);
        let b = (!self.shifted).then_some(Operand::B);
        [Operand::A, Operand::AccIn].into_iter().chain(b).chain(stored).collect()
    }

    fn epilogue(&self) -> &[EpilogueOp] {
        &self.epilogue
    }

    fn misuse(&self) -> Vec<String> {
        let gates = self.epilogue.iter().filter(|op| **op == EpilogueOp::Swiglu).count();
        let gates = (gates != usize::from(gated(&self.epilogue)))
            .then(|| "`swiglu` comes first in an epilogue, or behind one `save`".to_string());
        let keeps = (!keeps_end(&self.epilogue)).then(|| {
            "`keep` ends with a `save`, before another `keep`, `swiglu` or `carry`".to_string()
        });
        let along = self.a_layout == ALayout::Mk && self.b_layout == BLayout::Nk;
        let turned = (mma_narrow(self.block[2]) && !along)
            .then(|| "operands of eight bits lie along K: `a=mk b=nk`".to_string());
        let late = (!scales_first(&self.epilogue)).then(|| {
            "factors of rows and of columns come first in an epilogue, each once".to_string()
        });
        let wide = (scales_steps(&self.epilogue) && !mma_narrow(self.block[2]))
            .then(|| "`scale_steps` and `scale_blocks` are of operands of eight bits".to_string());
        let whole = self.task_columns().is_multiple_of(QuantTile::BLOCK as u32)
            && self.store == Store::Direct
            && self.cluster == 1
            && !mma_swaps([self.block[0], self.block[1]]);
        let last = match self.epilogue.split_last() {
            Some((EpilogueOp::Quantize(_), rest)) => quantized(rest).is_none(),
            _ => false,
        };
        let blocks = (quantized(&self.epilogue).is_some() && !(whole && last)).then(|| {
            "`quantize` comes last, of results that one CTA has in whole blocks of 128 columns and stores directly"
                .to_string()
        });
        let shifts = self.b_layout == BLayout::Kn
            && self.multicast == alone()
            && !gated(&self.epilogue)
            && mma_shifts([self.block[0], self.block[1]]);
        let shifted = (self.shifted && !shifts).then(|| {
            "`shifted` is of `b=kn`, of results without gates whose columns fill the rows of a wgmma, and of CTAs that \
             load alone"
                .to_string()
        });
        gates
            .into_iter()
            .chain(shifted)
            .chain(blocks)
            .chain(keeps)
            .chain(turned)
            .chain(late)
            .chain(wide)
            .collect()
    }

    fn pipeline(&self) -> Option<(&[u32], u32)> {
        Some((&self.block, self.stages))
    }

    fn cluster(&self) -> u32 {
        let [below, beside] = self.multicast;
        self.cluster.saturating_mul(below).saturating_mul(beside).max(1)
    }

    fn multicast(&self) -> [u32; 2] {
        self.multicast
    }

    fn shares_depth(&self) -> u32 {
        self.cluster.max(1)
    }

    fn has_dynamic_schedule(&self) -> bool {
        Record::cluster(self) == 1
    }

    fn out_columns(&self) -> u32 {
        self.block[1] / if gated(&self.epilogue) { 2 } else { 1 }
    }
}

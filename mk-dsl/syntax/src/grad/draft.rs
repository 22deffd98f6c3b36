//! The backward under construction: a list of operations by name, with placements, that the checker then reads as text.

use crate::program::{DType, Placement};
use std::{collections::BTreeSet, fmt::Write as _};

/// A value of the draft: a parameter, or the result of an operation.
pub(super) type Id = usize;

#[derive(Clone, Debug)]
pub(super) struct Value {
    pub name: String,
    /// Over each axis of the mesh.
    pub placement: Vec<Placement>,
    /// The type of a gradient, or of what is computed with one: of 16 bits.
    pub dtype: DType,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// With its type as the source writes it.
    Param(String),
    /// The operation, and its operands, some of them the other way round, of which the first `ring` are passed on by a
    /// `ring`.
    Op { stage: String, operands: Vec<(Id, bool)>, ring: usize },
}

/// Parameters and operations, in order.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub values: Vec<Value>,
    taken: BTreeSet<String>,
    /// Routes of which rows without room are dropped.
    pub dropped: BTreeSet<Id>,
}

impl Draft {
    /// A draft in which these names are taken.
    pub fn new(taken: BTreeSet<String>) -> Draft {
        Draft { values: Vec::new(), taken, dropped: BTreeSet::new() }
    }

    fn fresh(&mut self, name: &str) -> String {
        let mut name = name.to_owned();
        while !self.taken.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    /// A parameter, called so or much like it.
    pub fn param(&mut self, name: &str, ty: String, placement: Vec<Placement>, dtype: DType) -> Id {
        let name = self.fresh(name);
        self.push(name, placement, dtype, Kind::Param(ty))
    }

    /// A parameter that is called as one of the pipeline.
    pub fn param_called(
        &mut self,
        name: &str,
        ty: String,
        placement: Vec<Placement>,
        dtype: DType,
    ) -> Id {
        self.push(name.to_owned(), placement, dtype, Kind::Param(ty))
    }

    /// An operation of some values; `detail` stands behind them.
    pub fn op(
        &mut self,
        name: &str,
        operands: &[Id],
        detail: Option<String>,
        (placement, dtype): (Vec<Placement>, DType),
    ) -> Id {
        self.ring(name, &[], operands, detail, (placement, dtype))
    }

    /// An operation of some values, behind a `ring` of others.
    pub fn ring(
        &mut self,
        name: &str,
        passed: &[Id],
        operands: &[Id],
        detail: Option<String>,
        (placement, dtype): (Vec<Placement>, DType),
    ) -> Id {
        let operands = passed.iter().chain(operands).map(|id| (*id, false)).collect();
        let stage = match detail {
            Some(detail) => format!("{name} {detail}"),
            None => name.to_owned(),
        };
        let name = self.fresh(&format!("g{}", self.values.len()));
        let ring = passed.len();
        self.push(name, placement, dtype, Kind::Op { stage, operands, ring })
    }

    /// The product of two values, as they lie or the other way round.
    pub fn gemm(&mut self, a: (Id, bool), b: (Id, bool)) -> Id {
        use Placement::{Partial, Replicate, Shard};
        let read = |placement: Placement, turned: bool| match (placement, turned) {
            (Shard(0), true) => Shard(1),
            (Shard(1..), true) => Shard(0),
            (p, _) => p,
        };
        // What the checker makes of them; pairs that it refuses are refused there.
        let over =
            |(left, right): (&Placement, &Placement)| match (read(*left, a.1), read(*right, b.1)) {
                (Replicate, Shard(dim @ 1..)) => Shard(dim),
                (Replicate, Shard(0)) => Replicate,
                (Shard(1..), Shard(0)) | (Replicate, Partial) => Partial,
                (Shard(0), Replicate) => Shard(0),
                _ => Replicate,
            };
        let [left, right] = [a, b].map(|operand| &self.values[operand.0].placement);
        let placement = left.iter().zip(right).map(over).collect();
        let dtype = self.values[a.0].dtype;
        let name = self.fresh(&format!("g{}", self.values.len()));
        let operands = vec![a, b];
        self.push(name, placement, dtype, Kind::Op { stage: "gemm".into(), operands, ring: 0 })
    }

    /// Rows of experts times their matrices, perhaps read the other way round; of rows that are a parameter, or made of
    /// one, `counts` says whose they are.
    pub fn grouped_gemm(
        &mut self,
        rows: Id,
        counts: Option<Id>,
        (matrices, turned): (Id, bool),
    ) -> Id {
        use Placement::{Partial, Replicate, Shard};
        let Value { placement, dtype, .. } = self.values[rows].clone();
        // As the checker has it.
        let made = |(rows, of): (&Placement, &Placement)| match (*rows, *of) {
            (Replicate, Shard(1)) if turned => Shard(1),
            (Replicate, Shard(dim @ 2..)) if !turned => Shard(dim - 1),
            (Shard(1..), Shard(_)) => Partial,
            (own, _) => own,
        };
        let placement = placement.iter().zip(&self.values[matrices].placement).map(made).collect();
        let name = self.fresh(&format!("g{}", self.values.len()));
        let rows = [Some(rows), counts].into_iter().flatten().map(|id| (id, false));
        let operands = rows.chain([(matrices, turned)]).collect();
        let kind = Kind::Op { stage: "grouped_gemm".into(), operands, ring: 0 };
        self.push(name, placement, dtype, kind)
    }

    /// Gradients of matrices of experts: their rows, the other way round, times gradients of what rows and matrices
    /// make.
    pub fn grouped_wgrad(&mut self, rows: Id, counts: Id, d: Id, experts: &str) -> Id {
        use Placement::{Replicate, Shard};
        let Value { placement, dtype, .. } = self.values[rows].clone();
        let made = |(rows, d): (&Placement, &Placement)| match (*rows, *d) {
            (Replicate, Shard(dim @ 1..)) => Shard(dim + 1),
            (own, _) => own,
        };
        let placement = placement.iter().zip(&self.values[d].placement).map(made).collect();
        let name = self.fresh(&format!("g{}", self.values.len()));
        let operands = [rows, counts, d].map(|id| (id, false)).to_vec();
        let stage = format!("grouped_wgrad experts = {experts}");
        self.push(name, placement, dtype, Kind::Op { stage, operands, ring: 0 })
    }

    /// Whether its text says whose rows it has: it is made of what a route, or a product, has said it of.
    pub fn is_ragged(&self, id: Id) -> bool {
        let mut at = id;
        while let Kind::Op { stage, operands, .. } = &self.values[at].kind {
            if stage.starts_with("dispatch") || stage == "grouped_gemm" {
                return true;
            }
            let Some((first, _)) = operands.first() else { return false };
            at = *first;
        }
        false
    }

    fn push(&mut self, name: String, placement: Vec<Placement>, dtype: DType, kind: Kind) -> Id {
        self.values.push(Value { name, placement, dtype, kind });
        self.values.len() - 1
    }

    /// Whether it is a GEMM, or elementwise operations behind one.
    pub fn is_product(&self, id: Id) -> bool {
        match &self.values[id].kind {
            Kind::Op { stage, operands, .. } => match (stage.as_str(), operands.first()) {
                ("gemm", _) => true,
                (stage, _) if stage.starts_with("grouped_wgrad") => true,
                ("add" | "mul", Some((first, _))) => self.is_product(*first),
                (scale, Some((first, _))) if scale.starts_with("scale") => self.is_product(*first),
                _ => false,
            },
            Kind::Param(_) => false,
        }
    }

    /// What these values are made of.
    pub fn used(&self, results: &[Id]) -> BTreeSet<Id> {
        let mut used: BTreeSet<Id> = results.iter().copied().collect();
        for (id, value) in self.values.iter().enumerate().rev() {
            if let (true, Kind::Op { operands, .. }) = (used.contains(&id), &value.kind) {
                used.extend(operands.iter().map(|(id, _)| *id));
            }
        }
        used
    }

    /// The text of a pipeline with these results, of what they are made of; `runtime` stands before the parameters.
    pub fn text(&self, name: &str, runtime: &str, used: &BTreeSet<Id>, results: &[Id]) -> String {
        let (mut params, mut lets) = (Vec::new(), String::new());
        for value in used.iter().map(|id| &self.values[*id]) {
            match &value.kind {
                Kind::Param(ty) => params.push(format!("{}: {ty}", value.name)),
                Kind::Op { stage, operands, ring } => {
                    let operand = |(id, turned): &(Id, bool)| {
                        format!("{}{}", self.values[*id].name, if *turned { ".t" } else { "" })
                    };
                    let mut list: Vec<String> = operands.iter().map(operand).collect();
                    let (stage, detail) = stage.split_once(' ').unwrap_or((stage, ""));
                    if let ("attention_dq" | "attention_dk", [_, _, _, _, _, cu]) =
                        (stage, &mut list[..])
                    {
                        cu.insert_str(0, "cu_seqlens = ");
                    }
                    if *ring > 0 {
                        let passed: Vec<String> = list.drain(..*ring).collect();
                        list.insert(0, format!("ring({})", passed.join(", ")));
                    }
                    list.extend((!detail.is_empty()).then(|| detail.to_owned()));
                    // Writing to a String cannot fail.
                    if let ("grouped_gemm", [rows, counts, _])
                    | ("grouped_wgrad", [rows, counts, _, _])
                    | ("weigh", [rows, counts, _]) = (stage, &list[..])
                    {
                        let drops = |(id, _): &(Id, bool)| self.dropped.contains(id);
                        let drop = if operands.get(1).is_some_and(drops) { ", drop" } else { "" };
                        let rows = format!("{rows} -> ragged({counts}{drop})");
                        list.splice(..2, [rows]);
                    }
                    let _ = match list.split_first() {
                        Some((head, [])) => {
                            writeln!(lets, "    let {} = {head} -> {stage};", value.name)
                        }
                        Some((head, rest)) => {
                            writeln!(
                                lets,
                                "    let {} = {head} -> {stage}({});",
                                value.name,
                                rest.join(", ")
                            )
                        }
                        None => Ok(()),
                    };
                }
            }
        }
        let results: Vec<&str> = results.iter().map(|id| self.values[*id].name.as_str()).collect();
        let results = match results.as_slice() {
            [one] => (*one).to_owned(),
            list => format!("({})", list.join(", ")),
        };
        format!("fn {name}{runtime}({}) {{\n{lets}    {results}\n}}\n", params.join(", "))
    }

    /// Calls an operation's value so, or much like it.
    pub fn call(&mut self, id: Id, name: &str) {
        self.values[id].name = self.fresh(name);
    }
}

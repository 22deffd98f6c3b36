//! Some operations of a program as the text of a pipeline of their own.

use crate::print::runtime_symbol;
use crate::program::{AxisId, Def, Dim, Node, Op, Placement, Program, ValueId};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Which operations, and which of their values are results.
#[derive(Clone, Debug)]
pub struct Excerpt<'p> {
    /// The program that they are of.
    pub program: &'p Program,
    /// The name of the pipeline.
    pub name: String,
    /// The operations by their results, each after its operands.
    pub nodes: Vec<ValueId>,
    /// The results.
    pub results: Vec<ValueId>,
    /// Write `[M, G, N]` as a matrix of `G * N` columns, which it is in memory, and matrices of experts `[E, K, G, N]`
    /// alike. Where columns are sharded, ranks must have equal parts of `N`.
    pub flat: bool,
    /// Write runtime symbols as fixed ones.
    pub fixed: bool,
}

impl<'p> Excerpt<'p> {
    /// All of a program.
    pub fn whole(program: &'p Program) -> Excerpt<'p> {
        Excerpt {
            program,
            name: program.name().to_owned(),
            nodes: program.nodes().iter().map(|n| n.result).collect(),
            results: program.results().to_vec(),
            flat: false,
            fixed: false,
        }
    }

    /// What the operations read and do not compute, in order of their first use by the program: the parameters of the
    /// text.
    pub fn inputs(&self) -> Vec<ValueId> {
        let made: BTreeSet<ValueId> = self.nodes.iter().copied().collect();
        let nodes = self.nodes.iter().filter_map(|id| self.node(*id));
        let read: BTreeSet<ValueId> = nodes.flat_map(|n| n.inputs.iter().copied()).collect();
        let results = self.results.iter().copied();
        let all: BTreeSet<ValueId> = read.into_iter().chain(results).collect();
        let given: BTreeSet<ValueId> = all.difference(&made).copied().collect();
        let factors = |id: &ValueId| self.program.factors(*id).map(|(f, _)| f);
        let behind: BTreeSet<ValueId> = given.iter().filter_map(factors).collect();
        let own = given.iter().filter(|id| !behind.contains(id));
        own.flat_map(|id| [Some(*id), factors(id)]).flatten().collect()
    }

    /// What the text calls a value: as the program does, or by its number.
    pub fn value_name(&self, id: ValueId) -> String {
        let program = self.program;
        if let Some(tensor) = program.tensors().get(id.index()) {
            return tensor.name.clone();
        }
        let position = program.results().iter().position(|r| *r == id);
        let made_up = |name: &str| {
            let digits = name.strip_prefix("out").map(|rest| rest.trim_end_matches('_'));
            digits.is_some_and(|d| d.chars().all(|c| c.is_ascii_digit()))
        };
        if let Some(name) = position.and_then(|i| program.result_names().get(i))
            && !made_up(name)
        {
            return name.clone();
        }
        let mut name = format!("v{}", id.index());
        while program.tensor(&name).is_some() || program.result_names().contains(&name) {
            name.push('_');
        }
        name
    }

    /// The text, for [`Program::parse`].
    pub fn text(&self) -> String {
        let symbols = self.program.symbols().iter();
        let inputs = self.inputs();
        let params: Vec<String> = inputs
            .iter()
            .filter(|id| !self.goes_with(&inputs, **id))
            .filter_map(|id| {
                let ty = self.show_type(*id)?;
                Some(format!("{}: {ty}", self.value_name(*id)))
            })
            .collect();
        let seen: BTreeSet<usize> = inputs
            .iter()
            .filter_map(|id| self.program.ty(*id))
            .flat_map(|ty| &ty.dims)
            .filter_map(|d| match d {
                Dim::Sym(id) => Some(id.index()),
                Dim::Lit(_) => None,
            })
            .collect();
        let runtime = symbols.enumerate().filter(|(i, _)| seen.contains(i) && !self.fixed);
        let runtime: Vec<String> = runtime.filter_map(|(_, s)| runtime_symbol(s)).collect();
        let runtime = match runtime.is_empty() {
            true => String::new(),
            false => format!("<{}>", runtime.join(", ")),
        };
        let mut text = format!("fn {}{runtime}({}) {{\n", self.name, params.join(", "));
        let inlined = self.inlined();
        let written = |id: &&ValueId| {
            !inlined.contains(id) && self.node(**id).is_some_and(|n| !self.program.is_implied(n))
        };
        let results = self.results.iter().filter(|id| !self.goes_with(&self.results, **id));
        let shown: Vec<ValueId> = results.copied().collect();
        for id in self.nodes.iter().filter(written) {
            if shown.as_slice() == [*id] {
                continue;
            }
            // Writing to a String cannot fail.
            let _ =
                writeln!(text, "    let {} = {};", self.value_name(*id), self.chain(*id, &inlined));
        }
        let result = |id: &ValueId| match shown.len() {
            1 => self.chain(*id, &inlined),
            _ => self.value_name(*id),
        };
        let results: Vec<String> = shown.iter().map(result).collect();
        let results = match results.as_slice() {
            [one] => one.clone(),
            list => format!("({})", list.join(", ")),
        };
        let _ = write!(text, "    {results}\n}}\n");
        text
    }

    /// Whether a value is the factors of another of them, and is not written.
    fn goes_with(&self, values: &[ValueId], id: ValueId) -> bool {
        let of = |other: &ValueId| self.program.factors(*other).is_some_and(|(f, _)| f == id);
        values.iter().any(of)
    }

    fn node(&self, id: ValueId) -> Option<&'p Node> {
        match self.program.def(id) {
            Some(Def::Node(node)) => Some(node),
            _ => None,
        }
    }

    /// The values that one operation reads, as they lie and as its first operand: chains go on with them.
    fn inlined(&self) -> BTreeSet<ValueId> {
        let mut uses: BTreeMap<ValueId, (usize, bool)> = BTreeMap::new();
        let written = |n: &&Node| !self.program.is_implied(n);
        for node in self.nodes.iter().filter_map(|id| self.node(*id)).filter(written) {
            for (i, input) in self.program.written_inputs(node).iter().enumerate() {
                // A transposed operand, or one of several, stands by its name.
                let turned = matches!(
                    node.op,
                    Op::Gemm { a_transposed: true, .. }
                        | Op::Attention { .. }
                        | Op::AttentionDq { .. }
                        | Op::AttentionDk { .. }
                        | Op::AttentionDv
                        | Op::Lse
                        | Op::Dropped
                );
                let (n, first) = uses.entry(*input).or_insert((0, true));
                *n += 1;
                *first &= i == 0 && !turned;
            }
        }
        let fits = |id: &&ValueId| {
            uses.get(id).is_some_and(|u| *u == (1, true)) && !self.results.contains(id)
        };
        self.nodes.iter().filter(fits).copied().collect()
    }

    /// A value's chain, from the first operand that has a name.
    fn chain(&self, id: ValueId, inlined: &BTreeSet<ValueId>) -> String {
        let mut nodes = Vec::new();
        let mut at = id;
        while let Some(node) = self.node(at).filter(|_| self.nodes.contains(&at)) {
            nodes.push(node);
            let Some(first) = self.program.written_inputs(node).first().copied() else { break };
            at = first;
            if !inlined.contains(&at) {
                break;
            }
        }
        let Some(head) = nodes.pop() else { return self.value_name(id) };
        let mut text = self.head(head);
        while let Some(node) = nodes.pop() {
            text += " -> ";
            text += &self.behind(node);
        }
        text
    }

    fn head(&self, node: &Node) -> String {
        match node.op {
            Op::Attention { scores, ring }
            | Op::AttentionDq { scores, ring }
            | Op::AttentionDk { scores, ring } => {
                let own = match node.op {
                    Op::AttentionDq { .. } => 3,
                    Op::AttentionDk { .. } => 2,
                    _ => 1,
                };
                let mut arguments = self.arguments(node, 0);
                scores.name(&mut arguments);
                let named = usize::from(scores.packed) + usize::from(scores.sinks);
                let named = arguments.split_off(arguments.len().saturating_sub(named));
                let (held, passed) = arguments.split_at(own.min(arguments.len()));
                let (mut text, mut list) = (String::new(), arguments.clone());
                if ring.is_some() {
                    text = format!("ring({}) -> ", passed.join(", "));
                    list = held.to_vec();
                }
                arguments = list.into_iter().chain(named).chain(scores.words()).collect();
                text + &format!("{}({})", node.op.name(), arguments.join(", "))
            }
            Op::Gather { .. }
            | Op::Gemm { .. }
            | Op::ReduceScatter { .. }
            | Op::AllReduce { .. }
            | Op::AllToAll { .. } => self.stage(node, self.arguments(node, 0)),
            _ => {
                let first = self.arguments(node, 0).into_iter().next().unwrap_or_default();
                format!("{first} -> {}", self.behind(node))
            }
        }
    }

    /// A stage behind its first operand.
    fn behind(&self, node: &Node) -> String {
        let arguments = self.arguments(node, 1);
        match (node.op, &arguments[..]) {
            // Whether the first operand says so already, or is a parameter of the excerpt.
            (Op::GroupedGemm { .. }, [w, _])
                if self.follows(node) && (self.is_routed(node) || self.is_wide(node)) =>
            {
                format!("grouped_gemm({w})")
            }
            (Op::Dispatch { drops }, [_, weights @ ..]) => {
                // With weights, if it has some.
                let weights: String = weights.iter().map(|w| format!(", {w}")).collect();
                let ids = format!("{}{weights}", arguments[0]);
                let drop = if drops { ", drop" } else { "" };
                let rows = node.ty.dims.first();
                match rows.filter(|rows| self.fixed || !self.program.is_room(**rows)) {
                    Some(rows) => {
                        format!("dispatch({ids}, capacity = {}{drop})", self.program.show_dim(rows))
                    }
                    None => format!("dispatch({ids})"),
                }
            }
            (Op::Dropped, _) => node.op.name().to_owned(),
            // The route is that of the rows.
            (Op::Combine | Op::CombineGrad, [_, other]) => format!("{}({other})", node.op.name()),
            (Op::Weigh | Op::WeighGrad, [ids, other]) => {
                let name = node.op.name();
                let drops = node.inputs.get(1).is_some_and(|ids| self.program.drops(*ids));
                match (self.follows(node), drops) {
                    (true, _) => format!("{name}({other})"),
                    (false, false) => format!("ragged({ids}) -> {name}({other})"),
                    (false, true) => format!("ragged({ids}, drop) -> {name}({other})"),
                }
            }
            (Op::GroupedGemm { .. }, [w, counts]) => {
                format!("ragged({counts}{}) -> grouped_gemm({w})", self.dropped(node))
            }
            (Op::GroupedWgrad, [dy, counts]) => {
                let drop = self.dropped(node);
                let experts =
                    node.ty.dims.first().map_or_else(String::new, |e| self.program.show_dim(e));
                format!("ragged({counts}{drop}) -> grouped_wgrad({dy}, experts = {experts})")
            }
            _ => self.stage(node, arguments),
        }
    }

    /// What is said of a product's rows, where some were dropped.
    fn dropped(&self, node: &Node) -> &'static str {
        let drops = node.inputs.get(2).is_some_and(|ids| self.program.drops(*ids));
        if drops { ", drop" } else { "" }
    }

    /// Whether its rows are made by the excerpt, which says whose they are: not of parameters alone.
    fn follows(&self, node: &Node) -> bool {
        let mut at = node;
        while let Some(rows) = at.inputs.first().filter(|rows| self.nodes.contains(rows)) {
            let Some(Def::Node(made)) = self.program.def(*rows) else { return false };
            match made.op {
                Op::GroupedGemm { .. } | Op::Dispatch { .. } => return true,
                op if op.is_elementwise()
                    || matches!(op, Op::Swiglu | Op::SwigluGrad | Op::Weigh) =>
                {
                    at = made
                }
                _ => return false,
            }
        }
        false
    }

    /// Whether its rows are gates and ups, which only a product makes: it says whose they are.
    fn is_wide(&self, node: &Node) -> bool {
        let rows = node.inputs.first().and_then(|id| self.program.ty(*id));
        rows.is_some_and(|ty| ty.dims.len() == 3)
    }

    /// Whether a route says whose rows are whose.
    fn is_routed(&self, node: &Node) -> bool {
        let route = node.inputs.get(2).and_then(|id| self.program.ty(*id));
        route.is_some_and(|ty| ty.dims.len() == 2)
    }

    /// Operands from the given one on.
    fn arguments(&self, node: &Node, from: usize) -> Vec<String> {
        let inputs = self.program.written_inputs(node);
        let mut list: Vec<String> = inputs.iter().map(|id| self.value_name(*id)).collect();
        if let Op::Gemm { a_transposed, b_transposed } = node.op {
            for (name, turned) in list.iter_mut().zip([a_transposed, b_transposed]) {
                if turned {
                    name.push_str(".t");
                }
            }
        }
        if node.op == (Op::GroupedGemm { transposed: true }) {
            list.iter_mut().skip(1).take(1).for_each(|w| w.push_str(".t"));
        }
        list.split_off(from.min(list.len()))
    }

    fn stage(&self, node: &Node, mut arguments: Vec<String>) -> String {
        let named = crate::print::names_axes(self.program.mesh_axes());
        let axis = |axis: AxisId| self.program.mesh_axes().get(axis.index()).cloned();
        match node.op {
            Op::Gather { axis: a, .. } | Op::AllReduce { axis: a } if named => {
                arguments.extend(axis(a))
            }
            Op::AllToAll { axis: a, split, concat } => {
                arguments.extend(axis(a).filter(|_| named));
                arguments.push(format!("split = {split}, concat = {concat}"));
            }
            Op::ReduceScatter { axis: a, dim } => {
                arguments.extend(axis(a).filter(|_| named));
                if dim != 0 {
                    arguments.push(format!("dim = {dim}"));
                }
            }
            Op::Scale(factor) => arguments.push(format!("{factor:?}")),
            Op::RmsNorm { eps } | Op::RmsNormGrad { eps } => {
                arguments.push(format!("eps = {eps:?}"))
            }
            Op::Cast(to) => arguments.push(to.name().into()),
            Op::View => arguments.extend(node.ty.dims.iter().map(|dim| self.program.show_dim(dim))),
            Op::Quantize(factors) => {
                arguments.push(node.ty.dtype.to_string());
                arguments.extend(crate::print::block(factors, self.program.columns(&node.ty)));
            }
            _ => {}
        }
        match arguments.is_empty() {
            true => node.op.name().to_owned(),
            false => format!("{}({})", node.op.name(), arguments.join(", ")),
        }
    }

    /// Whether the two last dimensions of a value are one where matrices are flat: a stack of matrices has a dimension
    /// more.
    pub fn flattens(&self, id: ValueId) -> bool {
        let dims = self.program.ty(id).map_or(0, |ty| ty.dims.len());
        let of = |n: &Node| matches!(n.op, Op::GroupedGemm { .. }) && n.inputs.get(1) == Some(&id);
        let is_stack = self.nodes.iter().filter_map(|id| self.node(*id)).any(of);
        let made = self.node(id).is_some_and(|n| n.op == Op::GroupedWgrad);
        dims == if is_stack || made { 4 } else { 3 }
    }

    fn show_type(&self, id: ValueId) -> Option<String> {
        let ty = self.program.ty(id)?;
        let [front @ .., g, n] = ty.dims.as_slice() else {
            return Some(self.program.show_type(ty));
        };
        if let Some((_, factors)) = self.program.factors(id) {
            return Some(self.program.show_scaled(ty, factors));
        }
        if !self.flat || !self.flattens(id) {
            return Some(self.program.show_type(ty));
        }
        let name = |dim: &Dim| self.program.show_dim(dim);
        let columns = match (g, n) {
            (Dim::Lit(g), Dim::Lit(n)) => g.saturating_mul(*n).to_string(),
            _ => {
                let mut columns = format!("{}_{}", name(n), name(g));
                if columns.starts_with(|c: char| c.is_ascii_digit()) {
                    columns.insert(0, 'n');
                }
                while self.program.symbol(&columns).is_some() {
                    columns.push('_');
                }
                columns
            }
        };
        let placement: Vec<Placement> = ty
            .placement
            .iter()
            .map(|p| match *p {
                Placement::Shard(d) if d >= front.len() => Placement::Shard(front.len()),
                p => p,
            })
            .collect();
        let placement = crate::print::placements(&placement, self.program.mesh_axes());
        let front: Vec<String> = front.iter().map(name).collect();
        Some(format!("{}[{}, {columns}] @ {placement}", ty.dtype, front.join(", ")))
    }
}

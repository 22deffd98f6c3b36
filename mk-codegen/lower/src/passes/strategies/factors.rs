//! Factors of rows of eight bits on their way to other nodes: once to each, to the rail, which copies them to where its
//! node reads them.
//!
//! `[steps, rows]` of some rows are several pieces of memory. Those of all rows are one where every rank has as many,
//! and leave in one message; else each step's are one.

use super::deliver::{self, MessageTasks, Messages, Pieces};
use crate::passes::{
    draft::{Arrival, Draft, Flow, Source, Writer, one, read, write},
    shape::{ranks::Nodes, tensor::Tensor},
};
use mk_abi::DType;
use mk_plan::{Access, BufId, CopyVia, Each, Expr, FamId, Operand, RoleKind, Space, Var};

/// Factors of the own rows, as the caller gives them: `[rows]`, or `[steps, rows]` where steps along K have their own.
#[derive(Clone)]
pub(in crate::passes) struct OwnFactors {
    pub buffer: BufId,
    pub steps: Option<Expr>,
    /// How many those are; 1 where rows have one.
    pub n_steps: i32,
}

/// Factors of the rows of a tensor.
pub(in crate::passes) struct RailFactors<'a> {
    /// Prefix of the names of its net buffers.
    pub name: &'a str,
    pub rows: &'a Tensor,
    pub own: &'a OwnFactors,
    pub nodes: Nodes,
    pub kind: RoleKind,
    /// How rows are cut where they are staged, and copied.
    pub cut: Pieces,
}

impl RailFactors<'_> {
    /// Sends the own factors, and copies those of other nodes block by block. `theirs` gives the number of a place's
    /// rows, `to` the destination of some of them. Returns the family that copies, and the place of a task.
    pub fn bring(
        &self,
        draft: &mut Draft,
        theirs: impl Fn(&mut Draft, Expr) -> Expr,
        to: impl FnOnce(Expr, (Expr, Expr)) -> Access,
    ) -> (FamId, Expr) {
        let RailFactors { name, rows, own, nodes, kind, cut } = *self;
        let [i, m, _] = deliver::vars();
        let others = nodes.count() - 1;
        let alike = rows.even(0) && rows.shape[0].runtime_max.is_none();
        let messages = if alike { 1 } else { own.n_steps };
        let capacity = rows.widest(0);
        let steps = own.steps.clone();
        let all = |rows: (Expr, Expr)| {
            steps.clone().map(|n| (0.into(), n)).into_iter().chain([rows]).collect::<Vec<_>>()
        };
        let shape: Vec<Expr> = steps.clone().into_iter().chain([capacity.into()]).collect();
        let mut net = |end: &str, shape| {
            draft.buffer(&format!("{name}_factors_{end}"), Space::Net, DType::F32, shape, None)
        };
        let send = net("send", shape.clone());
        let recv = net("recv", [nodes.count().into()].into_iter().chain(shape).collect());
        let leaf = CopyVia::Ldst.leaf(1);
        let mine = draft.own(rows, 0);
        let block = all(cut.rows(&i, 0.into(), mine.clone()));
        let touched =
            [read(Operand::Src, own.buffer, block.clone()), write(Operand::Dst, send, block)];
        let domain = vec![("i", cut.blocks.into())];
        let by = draft.family("factors.net", kind, leaf.clone(), domain, vec![], touched);
        // Before everything that waits for other nodes.
        draft.leaves_first(by, own.buffer);
        let staged = vec![Writer::new(by, Operand::Dst, vec![0.into()])];
        let staged = Flow::new("factors.staged", vec![1.into()], cut.blocks.into(), staged);
        let staged = draft.flow(staged);
        let part = match alike {
            true => all((0.into(), mine)),
            false => steps.iter().map(|_| one(i.clone())).chain([(0.into(), mine)]).collect(),
        };
        let each = |n: i32| Some(Each { var: "q".into(), extent: n.into() });
        let relayed = deliver::carry(
            draft,
            Messages {
                message_tasks: MessageTasks {
                    nodes,
                    domain: vec![("s", messages.into()), ("m", others.into())],
                    other: m.clone(),
                    shape: vec![messages.into()],
                    word: vec![i.clone()],
                },
                from: Source::behind(
                    read(Operand::Src, send, part.clone()),
                    staged,
                    vec![0.into()],
                ),
                to: recv,
                there: [nodes.own_part()].into_iter().chain(part).collect(),
                tables: Vec::new(),
                maker: by,
                credit: vec![Expr::from(Var::EACH) / messages, Expr::from(Var::EACH) % messages],
                each: each(others * messages),
            },
        );
        let [node, source] = nodes.source(m);
        let theirs = theirs(draft, source.clone());
        let block = cut.rows(&i, 0.into(), theirs);
        let here = [(node.clone(), 1.into())].into_iter().chain(all(block.clone())).collect();
        let arrival = Arrival {
            flow: relayed,
            word: vec![node, Var::EACH.into()],
            each: each(messages),
            when: None,
        };
        let src = Source { access: read(Operand::Src, recv, here), arrivals: vec![arrival] };
        let touched = vec![src, to(source.clone(), block).into()];
        let domain = vec![("i", cut.blocks.into()), ("m", others.into())];
        (draft.family("factors.forward", kind, leaf, domain, vec![], touched), source)
    }
}

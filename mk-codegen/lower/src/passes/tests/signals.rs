//! Each field of a flow's ends is a field of its posts and waits.

use super::harness;
use crate::passes::{
    draft::{Draft, Flow, Reader, Writer, read, write},
    error::LowerError,
    signals,
};
use mk_abi::DType;
use mk_plan::{
    Access, Agent, Completion, CopyVia, Each, Expr, FamId, Leaf, Nic, NicOrdering, Operand, Plan,
    Point, Post, Proxy, RoleKind, Scope, Space, Var, Wait,
};

/// Two bulk copies within a rank, the second with an inner loop.
fn copies() -> (Draft, FamId, FamId) {
    let mut d = harness::draft("copies", 2);
    let shape = || vec![8.into(), 8.into()];
    let [x, y, z] = [("x", Space::In), ("y", Space::Scratch), ("z", Space::Out)]
        .map(|(name, space)| d.buffer(name, space, DType::Bf16, shape(), None));
    let all = || vec![(0.into(), 8.into()), (0.into(), 8.into())];
    let leaf = || CopyVia::Bulk.leaf(2);
    let mut copy = |name: &str, from, to| {
        let accesses = [read(Operand::Src, from, all()), write(Operand::Dst, to, all())];
        let domain = vec![("i", 1.into())];
        d.family(name, RoleKind::IntraComm, leaf(), domain, vec![], accesses)
    };
    let (first, second) = (copy("first", x, y), copy("second", y, z));
    d.plan.families[second].inner = Some(("k".into(), 3.into()));
    (d, first, second)
}

/// The ends of a flow between the copies.
fn ends(writer: Writer, reader: Reader) -> Result<(Post, Wait), LowerError> {
    let (mut d, first, second) = copies();
    let flow = d.flow(Flow::new("flow", vec![4.into()], 2.into(), vec![writer]));
    d.read(flow, reader);
    signals::insert(&mut d)?;
    let of = |id: FamId| &d.plan.families[id];
    Ok((of(first).posts[0].clone(), of(second).waits[0].clone()))
}

fn plain() -> (Writer, Reader) {
    let (_, first, second) = copies();
    let word = || vec![1.into()];
    (Writer::new(first, Operand::Dst, word()), Reader::new(second, Operand::Src, word()))
}

#[test]
fn by_default_from_the_contract() {
    let (writer, reader) = plain();
    let (post, wait) = ends(writer, reader).expect("a flow");
    let expected = (Agent::Storer, Completion::GlobalWriteDone, Scope::Gpu, Point::End);
    assert_eq!((post.by, post.after, post.scope, post.at), expected);
    assert_eq!((post.add, post.index, post.rank), (1.into(), vec![1.into()], Var::RANK.into()));
    let expected = (Agent::Loader, Proxy::Async, Scope::Gpu, Point::Start);
    assert_eq!((wait.by, wait.proxy, wait.scope, wait.at), expected);
    assert_eq!((wait.count, wait.lag, wait.index), (2.into(), 0, vec![1.into()]));
}

#[test]
fn what_a_flow_says() {
    let (writer, reader) = plain();
    let each = Some(Each { var: "e".into(), extent: 2.into() });
    let writer = Writer {
        rank: Expr::Const(1) - Var::RANK,
        amount: Expr::from(Var::domain(0)) + 1,
        at: Point::Start,
        by: Some(Agent::Loader),
        after: Some(Completion::ProgramOrder),
        each: each.clone(),
        when: Some(Expr::from(Var::EACH).lt(1)),
        ..writer
    };
    let reader = Reader {
        at: Some(Point::End),
        by: Some(Agent::Storer),
        lag: 1,
        each: each.clone(),
        when: Some(Expr::from(Var::EACH).lt(2)),
        ..reader
    };
    let (post, wait) = ends(writer, reader).expect("a flow");
    assert_eq!(
        (post.by, post.after, post.at),
        (Agent::Loader, Completion::ProgramOrder, Point::Start)
    );
    assert_eq!(post.add, Expr::from(Var::domain(0)) + 1);
    assert_eq!((post.each, post.when), (each.clone(), Some(Expr::from(Var::EACH).lt(1))));
    assert_eq!((post.rank, post.scope), (Expr::Const(1) - Var::RANK, Scope::Sys));
    assert_eq!(
        (wait.by, wait.at, wait.lag, wait.scope),
        (Agent::Storer, Point::End, 1, Scope::Sys)
    );
    assert_eq!((wait.each, wait.when), (each, Some(Expr::from(Var::EACH).lt(2))));
}

#[test]
fn a_wait_is_where_its_word_is_known() {
    let (writer, reader) = plain();
    let by_step = || vec![Var::INNER.into()];
    let at = |reader| ends(writer.clone(), reader).expect("a flow").1.at;
    assert_eq!(at(Reader { word: by_step(), ..reader.clone() }), Point::Inner);
    let when = Some(Expr::from(Var::INNER).equals(1));
    assert_eq!(at(Reader { when, ..reader.clone() }), Point::Inner);
    assert_eq!(at(Reader { word: by_step(), at: Some(Point::End), ..reader }), Point::End);
}

/// Room is handed back by the agent that knows of the loads, and nothing has to be written for it.
#[test]
fn a_credit_is_posted_by_the_last_agent() {
    let (writer, reader) = plain();
    let credit = Writer { operand: Operand::Src, ..writer };
    let room = Reader { operand: Operand::Dst, ..reader };
    let (post, wait) = ends(credit, room).expect("a flow");
    assert_eq!((post.by, post.after), (Agent::Storer, Completion::ProgramOrder));
    assert_eq!((wait.by, wait.proxy), (Agent::Storer, Proxy::Async));
}

/// A send over a network of nodes of one rank, whose word is on `rank`.
fn sent(ordering: NicOrdering, operand: Operand, rank: Expr) -> Result<Plan, LowerError> {
    let (mut d, ..) = copies();
    d.plan.nic = Some(Nic { ordering, local: Some(1), fifo: 1, lanes: 1 });
    let net = d.buffer("net", Space::Net, DType::Bf16, vec![8.into()], None);
    let all = || vec![(0.into(), 8.into())];
    let to = Expr::Const(1) - Var::RANK;
    let dst = Access { rank: to, ..write(Operand::Dst, net, all()) };
    let touched = [read(Operand::Src, net, all()), dst];
    let send = d.family("send", RoleKind::InterSend, Leaf::NicSend, vec![], vec![], touched);
    let none = [] as [Access; 0];
    let kind = RoleKind::InterReduce;
    let take = d.family("take", kind, Leaf::Signal, vec![], vec![], none);
    let from = vec![Writer::new(send, operand, vec![0.into()]).on(rank)];
    let flow = d.flow(Flow::new("flow", vec![1.into()], 1.into(), from));
    d.read(flow, Reader::new(take, Operand::Src, vec![0.into()]));
    signals::insert(&mut d)?;
    Ok(d.plan)
}

#[test]
fn a_card_posts_by_the_order_of_its_network() {
    let posted = |ordering, operand, rank| {
        let plan = sent(ordering, operand, rank).unwrap_or_else(|e| panic!("{e}"));
        let send = plan.families.iter().find(|(_, x)| x.name == "send").expect("a send").1;
        let waits: Vec<_> = send.waits.iter().map(|w| (w.by, w.proxy)).collect();
        // Commanded once the other node has entered.
        assert_eq!(waits, [(Agent::Issuer, Proxy::Host)]);
        let post = &send.posts[0];
        assert!(plan.signals[post.signal].net && post.scope == Scope::Sys);
        (post.by, post.after)
    };
    let there = || Expr::Const(1) - Var::RANK;
    let (ordered, unordered) = (NicOrdering::InOrder, NicOrdering::Unordered);
    let behind = posted(ordered, Operand::Dst, there());
    assert_eq!(behind, (Agent::Sender, Completion::NicPosted));
    let flushed = posted(unordered, Operand::Dst, there());
    assert_eq!(flushed, (Agent::Receiver, Completion::NicFlushed));
    for ordering in [ordered, unordered] {
        let delivered = posted(ordering, Operand::Src, Var::RANK.into());
        assert_eq!(delivered, (Agent::Sender, Completion::NicDelivered));
    }
    let error = sent(ordered, Operand::Src, there()).expect_err("room on another rank");
    assert!(error.to_string().contains("hands the source of a send to another rank"), "{error}");
}

#[test]
fn what_no_leaf_has_is_an_internal_error() {
    let (writer, reader) = plain();
    let error = ends(Writer { operand: Operand::C, ..writer.clone() }, reader.clone());
    let error = error.expect_err("no such operand").to_string();
    assert!(error.contains("\"first\" has no operand `c`, for the flow \"flow\""), "{error}");
    let error = ends(writer, Reader { operand: Operand::K, ..reader }).expect_err("none either");
    assert!(error.to_string().contains("\"second\" has no operand `k`"), "{error}");
}

/// Memory on a rank that a table names is read behind a flow from there, or not at all.
#[test]
fn a_rank_that_data_name_has_a_flow() {
    let (mut d, _, second) = copies();
    let source = mk_plan::TableSource::Runtime { min: 0, max: 1 };
    let table =
        mk_plan::Table { name: "rank".into(), shape: vec![1], source, stored: None, routed: None };
    let table = d.plan.tables.push(table);
    let y = d.plan.families[second].accesses[0].buffer;
    d.plan.buffers[y].space = Space::Workspace;
    d.plan.families[second].accesses[0].rank = Expr::Table(table, vec![0.into()]);
    let error = signals::insert(&mut d).expect_err("no flow").to_string();
    assert!(error.contains("\"second\" reads `src` on a rank that data name"), "{error}");
}

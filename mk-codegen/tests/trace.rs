//! Traces: buffers as a kernel would write them, and as no kernel would, to timelines, pictures and text.

mod common;

use common::plan;
use mk_abi::KernelSource;
use mk_abi::device::{TRACE_AGENTS, TraceKind};
use mk_codegen::emit::{self, Options, audit, audit_with, emit_with, library, plan_hash};
use mk_codegen::plan::Plan;
use mk_codegen::trace::{RankBuffer, Trace, TraceError, What, chain, json, read, summary, svg};

const STRIDE: u64 = 1 << 21;
const LOADER: usize = 0;
const STORER: usize = 1;
const ENTER: usize = 2;
const FRAME: usize = 3;
const COMPUTE: usize = 4;

fn traced() -> KernelSource {
    let shapes: &[(&str, &[u64])] = &[("a", &[512, 512]), ("b", &[512, 512])];
    let plan = plan("gather(a) -> gemm(b)", 2, shapes).expect("lowers");
    emit_with(&plan, Options { trace: true }).expect("emits")
}

/// A buffer as a kernel writes it. Every SM runs at 2 cycles a nanosecond.
struct Writer {
    bytes: Vec<u8>,
    records: usize,
    /// What the rank's timer shows when the test's time is 0.
    timer: u64,
}

impl Writer {
    fn new(source: &KernelSource, epoch: u32, timer: u64) -> Writer {
        let layout = source.trace.as_ref().expect("traced");
        let mut out = Writer {
            bytes: vec![0; layout.bytes(source.grid) as usize],
            records: layout.records as usize,
            timer,
        };
        for cta in 0..source.grid {
            for agent in 0..TRACE_AGENTS as u32 {
                let at = out.part(cta, agent as usize);
                for (i, word) in [0, epoch, cta, agent, layout.records].into_iter().enumerate() {
                    out.put(at + 4 * i, word);
                }
            }
            out.record(cta, FRAME, TraceKind::Cta, 0, 0, 0, (100, 9000), [0, 0]);
        }
        out
    }

    fn part(&self, cta: u32, agent: usize) -> usize {
        (cta as usize * TRACE_AGENTS + agent) * (32 + 32 * self.records)
    }

    fn put(&mut self, at: usize, word: u32) {
        self.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    /// Begin and end in nanoseconds. Each CTA's counter starts somewhere else.
    #[allow(clippy::too_many_arguments)]
    fn record(
        &mut self,
        cta: u32,
        agent: usize,
        kind: TraceKind,
        family: u32,
        edge: u32,
        task: u32,
        (begin, end): (u64, u64),
        detail: [u32; 2],
    ) {
        let head = self.part(cta, agent);
        let count = u32::from_le_bytes(self.bytes[head..head + 4].try_into().expect("4 bytes"));
        self.put(head, count + 1);
        let at = head + 32 + count as usize % self.records * 32;
        let now = self.timer + end;
        let cycles = |ns: u64| (2 * ns as u32).wrapping_add(cta.wrapping_mul(0x7654_3210));
        let what = kind as u32 | family << 8 | edge << 20;
        let words = [
            now as u32,
            (now >> 32) as u32,
            cycles(begin),
            cycles(end),
            what,
            task,
            detail[0],
            detail[1],
        ];
        for (i, word) in words.into_iter().enumerate() {
            self.put(at + 4 * i, word);
        }
    }
}

/// Family and edge numbers of the pipeline.
struct Ids {
    gather: u32,
    own: u32,
    peers: u32,
    arrived: u32,
    entered: u32,
    posts: u32,
}

fn ids(source: &KernelSource) -> Ids {
    let layout = source.trace.as_ref().expect("traced");
    let family = |name: &str| layout.families.iter().find(|f| f.name == name).expect("there").id;
    let edge = |text: &str| source.edges.iter().find(|e| e.text.contains(text)).expect("there").id;
    Ids {
        gather: family("gather"),
        own: family("gemm.own"),
        peers: family("gemm.peers"),
        arrived: edge("arrived"),
        entered: edge("entered"),
        posts: 100,
    }
}

/// Two ranks, the second's timer ahead by `ahead`. Rank 1 sends at 5000 what rank 0's last tile waits for, and the other
/// way round at 4000.
fn two_ranks(source: &KernelSource, ahead: u64) -> Vec<Writer> {
    let ids = ids(source);
    let comm = source.roles.iter().find(|r| r.name == "intra_comm").expect("there").first_cta;
    let base = 1_763_000_000_000_000_000;
    let mut out = Vec::new();
    for rank in 0..2_u64 {
        let mut w = Writer::new(source, 7, base + rank * ahead);
        let peer = STRIDE as u32 * (1 - rank as u32);
        let own = STRIDE as u32 * rank as u32;
        let (sent, seen) = if rank == 1 { (5000, 4600) } else { (4000, 5600) };
        w.record(0, ENTER, TraceKind::Enter, 3, ids.posts, 0, (150, 300), [64, 0]);
        w.record(
            comm,
            STORER,
            TraceKind::Wait,
            ids.gather,
            ids.entered,
            0,
            (120, 900),
            [own + 64, 0],
        );
        w.record(
            comm,
            STORER,
            TraceKind::Post,
            ids.gather,
            ids.posts,
            0,
            (sent, sent + 50),
            [peer + 256, 0],
        );
        w.record(comm, STORER, TraceKind::Task, ids.gather, 0, 0, (110, sent + 60), [400, 0]);
        w.record(
            0,
            LOADER,
            TraceKind::Wait,
            ids.peers,
            ids.arrived,
            1,
            (2000, seen),
            [own + 256, 0],
        );
        for c in 0..2 {
            w.record(0, COMPUTE + c, TraceKind::Task, ids.own, 0, 0, (300, 2000), [0, 0]);
            w.record(0, COMPUTE + c, TraceKind::Task, ids.peers, 0, 1, (2000, 8000), [6000, 1000]);
        }
        out.push(w);
    }
    out
}

fn trace_of(source: &KernelSource, writers: &[Writer]) -> Result<Trace, TraceError> {
    let buffers: Vec<_> = writers
        .iter()
        .enumerate()
        .map(|(rank, w)| RankBuffer {
            rank: rank as u32,
            bytes: &w.bytes,
            sym_stride_bytes: STRIDE,
        })
        .collect();
    read(source, &buffers)
}

#[test]
fn tracing_changes_nothing_when_it_is_off_and_everything_that_names_a_kernel_when_it_is_on() {
    let shapes: &[(&str, &[u64])] = &[("a", &[2048, 512]), ("b", &[512, 2048])];
    let plan = plan("gather(a) -> gemm(b)", 4, shapes).expect("lowers");
    let off = emit::emit(&plan).expect("emits");
    let on = emit_with(&plan, Options { trace: true }).expect("emits");
    assert!(!off.cuda.contains("trace_"), "nothing of tracing in a kernel without it");
    assert!(off.trace.is_none() && on.trace.is_some());
    assert_ne!(off.plan_hash, on.plan_hash);
    assert_eq!(off.plan_hash, plan_hash(&plan, Options::default()));
    // The memory that peers see is the same.
    assert_eq!(off.workspace, on.workspace);
    // And so is what synchronises: without its own lines a traced kernel is the plain one.
    audit(&plan, &on.cuda).expect_err("the audit of a plain kernel sees the difference");
    audit_with(&plan, &on.cuda, Options { trace: true }).expect("audits");
    let (_, generated) = on.cuda.split_once(library::END).expect("the library ends");
    insta::assert_snapshot!("cuda_gather_gemm_traced", generated);
}

/// Causal attention over a ring of two ranks.
fn ring() -> Plan {
    let kv = "bf16[B, S, H, D] @ shard(1)";
    let text = format!("fn f(q: {kv}, k: {kv}, v: {kv}) {{ ring(k, v) -> attention(q, causal) }}");
    let shape: &[u64] = &[1, 1024, 2, 128];
    plan(&text, 2, &[("q", shape), ("k", shape), ("v", shape)]).expect("lowers")
}

#[test]
fn the_audit_misses_no_line_of_tracing() {
    let shapes: &[(&str, &[u64])] = &[("a", &[2048, 512]), ("b", &[512, 2048])];
    misses_no_line(&plan("gather(a) -> gemm(b)", 4, shapes).expect("lowers"));
    misses_no_line(&ring());
}

fn misses_no_line(plan: &Plan) {
    let options = Options { trace: true };
    let cuda = emit_with(plan, options).expect("emits").cuda;
    let lines: Vec<_> = cuda.lines().collect();
    let words = [
        "trace_begin();",
        "trace_mark(params",
        "trace_end(ctx)",
        "trace_mbarrier_wait",
        "begin_ =",
        "trace_write(",
    ];
    let mut deleted = 0;
    for (i, line) in lines.iter().enumerate() {
        if words.iter().any(|w| line.contains(w)) && !line.starts_with("//") {
            let without: Vec<_> = lines[..i].iter().chain(&lines[i + 1..]).copied().collect();
            let result = audit_with(plan, &without.join("\n"), options);
            assert!(result.is_err(), "nobody noticed that line {} is gone: {line}", i + 1);
            deleted += 1;
        }
    }
    assert!(deleted > 15, "only {deleted} lines were tried");
}

#[test]
fn a_launch_as_spans() {
    let source = traced();
    let trace = trace_of(&source, &two_ranks(&source, 0)).expect("reads");
    assert_eq!((trace.epoch, trace.world), (7, 2));
    assert!((trace.length() - 8900.0).abs() < 2.0, "{}", trace.length());
    let tile = |s: &&mk_codegen::trace::Span| {
        matches!(s.what, What::Task { task: 1, .. }) && s.rank == 1 && trace.is_work(s)
    };
    let tile = trace.spans.iter().find(tile).expect("the last tile of rank 1");
    // The first CTA began at 100.
    assert!((tile.begin - 1900.0).abs() < 2.0 && (tile.end - 7900.0).abs() < 2.0, "{tile:?}");
    let What::Task { stalled, .. } = tile.what else { panic!("a task") };
    assert!((stalled[0] - 3000.0).abs() < 2.0 && (stalled[1] - 500.0).abs() < 2.0, "{stalled:?}");
    assert!(trace.alignment.shared);
    assert_eq!(trace.alignment.contradiction_ns, 0.0);
}

#[test]
fn timers_that_differ_are_brought_together_by_what_waited_for_what() {
    let source = traced();
    for ahead in [0, 20_000, 190_000] {
        let trace = trace_of(&source, &two_ranks(&source, ahead)).expect("reads");
        assert_eq!(trace.alignment.shared, ahead == 0);
        let (least, most) = trace.alignment.bounds_ns[1];
        assert!(least <= ahead as f64 && ahead as f64 <= most, "{ahead}: {least} to {most}");
        assert!(most - least < 2000.0, "{least} to {most}");
        assert!(trace.length() < 10_500.0, "{}", trace.length());
    }
}

/// What nobody waited for says nothing of timers, as where copy engines move all that ranks exchange.
#[test]
fn timers_that_nothing_compares_are_not_said_to_agree() {
    let source = traced();
    let own = ids(&source).own;
    let writers: Vec<_> = (0..2)
        .map(|rank| {
            let mut w = Writer::new(&source, 7, 1_763_000_000_000_000_000 + rank * 190_000);
            w.record(0, COMPUTE, TraceKind::Task, own, 0, 0, (300, 2000), [0, 0]);
            w
        })
        .collect();
    let trace = trace_of(&source, &writers).expect("reads");
    assert!(!trace.alignment.shared);
    let text = summary(&trace);
    assert!(text.contains("cannot be compared") && !text.contains("agree as they are"), "{text}");
}

/// Rings: rank 1 pushes a head's keys, for which a tile of rank 0 has waited.
#[test]
fn tiles_of_attention_wait_for_the_ranks_that_push() {
    let source = emit_with(&ring(), Options { trace: true }).expect("emits");
    let layout = source.trace.as_ref().expect("traced");
    let family = |name: &str| layout.families.iter().find(|f| f.name == name).expect("there").id;
    let (push, attend) = (family("push"), family("attend"));
    let arrived = source.edges.iter().find(|e| e.text.contains("arrived")).expect("there").id;
    let comm = source.roles.iter().find(|r| r.name == "intra_comm").expect("there").first_cta;
    let base = 1_763_000_000_000_000_000;
    let word = STRIDE as u32 + 512;
    let mut one = Writer::new(&source, 7, base);
    one.record(comm, STORER, TraceKind::Post, push, 100, 0, (4000, 4050), [word, 0]);
    one.record(comm, STORER, TraceKind::Task, push, 0, 0, (110, 4060), [400, 0]);
    let mut two = Writer::new(&source, 7, base);
    two.record(0, LOADER, TraceKind::Wait, attend, arrived, 0, (1000, 4600), [word, 0]);
    for c in 0..2 {
        two.record(0, COMPUTE + c, TraceKind::Task, attend, 0, 0, (900, 8000), [6000, 0]);
    }
    let trace = trace_of(&source, &[one, two]).expect("reads");
    let wait = trace.spans.iter().find(|s| matches!(s.what, What::Wait { .. })).expect("a wait");
    assert!((wait.end - wait.begin - 3600.0).abs() < 2.0, "{wait:?}");
    let said = summary(&trace);
    assert!(said.contains("attend") && said.contains("push"), "{said}");
    assert!(svg(&trace, None).contains("attend"));
}

/// Both warpgroups of a CTA that adds have tasks of their own; of one that copies, the first speaks for both.
#[test]
fn every_sum_counts() {
    let shapes: &[(&str, &[u64])] = &[("a", &[4096, 512]), ("b", &[512, 4096])];
    let plan = plan("gemm(a, b) -> reduce_scatter", 2, shapes).expect("lowers");
    let source = emit_with(&plan, Options { trace: true }).expect("emits");
    let layout = source.trace.as_ref().expect("traced");
    let sums = layout.families.iter().find(|f| f.leaf == "reduce_tile").expect("there").id;
    let cta = source.roles.iter().find(|r| r.name == "intra_comm").expect("there").first_cta;
    let mut w = Writer::new(&source, 7, 1_763_000_000_000_000_000);
    for team in 0..2 {
        let task = team as u32;
        w.record(cta, COMPUTE + team, TraceKind::Task, sums, 0, task, (300, 2000), [0, 0]);
    }
    let trace = trace_of(&source, &[w]).expect("reads");
    let work: Vec<_> = trace.spans.iter().filter(|s| trace.is_work(s)).map(|s| s.what).collect();
    let tasks: Vec<_> = work
        .iter()
        .filter_map(|what| match what {
            What::Task { task, .. } => Some(*task),
            _ => None,
        })
        .collect();
    assert_eq!(tasks, [0, 1]);
}

#[test]
fn the_chain_goes_from_the_last_tile_to_the_peer_that_sent_its_rows() {
    let source = traced();
    let trace = trace_of(&source, &two_ranks(&source, 0)).expect("reads");
    let chain = chain(&trace);
    let who: Vec<_> = chain.steps.iter().map(|s| (s.rank, trace.family(s.family))).collect();
    let ids = ids(&source);
    let wait = chain.steps.last().and_then(|s| s.wait).expect("the last tile waited");
    assert_eq!(wait.edge, ids.arrived);
    assert!(wait.delivery.is_some_and(|d| (590.0..610.0).contains(&d)), "{wait:?}");
    assert_eq!(who.last().map(|w| w.1), Some("gemm.peers"));
    assert_eq!(who[who.len() - 2].1, "gather");
    // It begins with the entry that the first copy waited for.
    assert_eq!(chain.steps[0].family, u32::MAX);
    let text = summary(&trace);
    for part in
        ["what the last task waited for", "e9", "gemm.peers", "critical: ", "compute", "intra_comm"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn pictures_and_events_are_well_formed() {
    let source = traced();
    let trace = trace_of(&source, &two_ranks(&source, 20_000)).expect("reads");
    let picture = svg(&trace, Some(&trace));
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert!(picture.contains("predicted") && picture.contains("measured"));
    assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
    let events = json(&trace);
    let balanced = |open, close| events.matches(open).count() == events.matches(close).count();
    assert!(
        balanced('{', '}') && balanced('[', ']') && events.matches('"').count().is_multiple_of(2)
    );
    assert!(!events.contains("NaN") && !events.contains("inf"));
    assert_eq!(events.matches("\"ph\":\"X\"").count(), trace.spans.len());
    assert!(events.contains("\"tick_ns\"") && events.contains("\"offset_at_most_ns\""));
}

#[test]
fn a_full_ring_keeps_the_last_records_and_says_how_many_are_lost() {
    let source = traced();
    let mut writers = two_ranks(&source, 0);
    let ids = ids(&source);
    let n = writers[0].records as u64 + 10;
    for i in 0..n {
        writers[0].record(
            1,
            COMPUTE,
            TraceKind::Task,
            ids.own,
            0,
            i as u32,
            (400 + i, 401 + i),
            [0, 0],
        );
    }
    let trace = trace_of(&source, &writers).expect("reads");
    assert_eq!(trace.clocks[0].lost, 10);
    let tasks: Vec<_> = trace
        .spans
        .iter()
        .filter(|s| (s.rank, s.cta) == (0, 1))
        .filter_map(|s| match s.what {
            What::Task { task, .. } => Some(u64::from(task)),
            _ => None,
        })
        .collect();
    assert_eq!(tasks, (10..n).collect::<Vec<_>>());
    assert!(summary(&trace).contains("10 records are lost"));
}

#[test]
fn what_no_kernel_writes_is_refused() {
    let source = traced();
    let good = || two_ranks(&source, 0);
    let refused = |change: &dyn Fn(&mut Vec<Writer>)| {
        let mut writers = good();
        change(&mut writers);
        trace_of(&source, &writers).expect_err("is refused")
    };
    assert!(matches!(
        refused(&|w| {
            w[1].bytes.pop();
        }),
        TraceError::Size { rank: 1, .. }
    ));
    assert!(matches!(refused(&|w| w[0].bytes.clear()), TraceError::Size { given: 0, .. }));
    assert!(matches!(refused(&|w| w[0].bytes.fill(0)), TraceError::NoLaunch { rank: 0, cta: 0 }));
    assert!(matches!(refused(&|w| w[0].bytes.fill(0xff)), TraceError::Damaged { .. }));
    let mixed = refused(&|w| {
        let at = w[1].part(3, LOADER) + 4;
        w[1].put(at, 6);
    });
    assert_eq!(mixed, TraceError::Mixed { rank: 1, cta: 3, one: 7, other: 6 });
    let kind = refused(&|w| {
        let at = w[0].part(0, COMPUTE) + 32 + 16;
        w[0].put(at, 99);
    });
    assert!(kind.to_string().contains("CTA 0, agent 4: record 0 is of no kind"), "{kind}");
    let family = refused(&|w| {
        let at = w[0].part(0, COMPUTE) + 32 + 16;
        w[0].put(at, TraceKind::Task as u32 | 0xfff << 8);
    });
    assert!(family.to_string().contains("names fam4095"), "{family}");
    let place = refused(&|w| {
        let at = w[0].part(2, STORER) + 8;
        w[0].put(at, 1);
    });
    assert!(place.to_string().contains("its head is that of CTA 1"), "{place}");
    assert!(matches!(read(&source, &[]), Err(TraceError::Rank { .. })));
    let far = RankBuffer { rank: 9, bytes: &[], sym_stride_bytes: STRIDE };
    assert!(matches!(read(&source, &[far]), Err(TraceError::Rank { rank: 9, world: 2 })));
    let plain = KernelSource { trace: None, ..traced() };
    assert!(matches!(read(&plain, &[]), Err(TraceError::Untraced { .. })));
}

/// Records that are well-formed and mean nothing: no panic, and nothing that a reader of the output would choke on.
#[test]
fn nonsense_is_shown_as_it_is() {
    let source = traced();
    let mut state = 1_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..40 {
        let mut writers = two_ranks(&source, 0);
        for w in &mut writers {
            for _ in 0..400 {
                let (cta, agent) =
                    (random() as u32 % source.grid, random() as usize % TRACE_AGENTS);
                let at = w.part(cta, agent) + 32;
                // Times, tasks, words and counts of any value; kinds and families as they are.
                let field = [0, 4, 8, 12, 20, 24, 28][random() as usize % 7];
                w.put(at + field, random() as u32);
                if round % 3 == 0 {
                    let head = w.part(cta, agent);
                    w.put(head, random() as u32 % 3);
                }
            }
        }
        let Ok(trace) = trace_of(&source, &writers) else { continue };
        for text in [json(&trace), svg(&trace, None), summary(&trace)] {
            assert!(!text.is_empty());
        }
        assert!(!json(&trace).contains("NaN"));
    }
}

#[test]
fn one_rank_of_several_is_a_trace_too() {
    let source = traced();
    let writers = two_ranks(&source, 0);
    let one = RankBuffer { rank: 1, bytes: &writers[1].bytes, sym_stride_bytes: STRIDE };
    let trace = read(&source, &[one]).expect("reads");
    assert_eq!(trace.ranks().collect::<Vec<_>>(), [1]);
    assert!(summary(&trace).contains("1 of 2 ranks"));
}

//! Rule 3: every wait's threshold is complete and reachable, and no stale epoch can satisfy it.
//!
//! A wait `word >= count lag l` stands for "all posts to the word up to epoch e - l". It means that if
//! - what one epoch posts to the word adds up to exactly `count`, in every epoch (fewer: never reached; more: reached
//!   early, by an incomplete set or by a mixture of epochs);
//! - one rank's tasks make all those posts, so that kernel boundaries (and for hosts the order of the fifo and the
//!   epoch bits of immediates) order them by epoch: with several, a rank one launch ahead stands in for a late one;
//! - GPUs make them all, or one kind of host agent does: what a host posts for one kernel may come behind what the next
//!   one posts;
//! - every post adds: the word counts up only.
//!
//! Words that nobody waits for are free.

use super::{
    family::is_host,
    report::Violation,
    site,
    within::{post_line, wait_line},
    world::{Class, World},
};
use mk_plan::{Agent, EdgeId};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Most that one epoch may post to a word: words are compared modulo 2^32, and a rank may be thousands of launches
/// ahead of another.
const MAX_COUNT: i64 = 1 << 16;

/// Checks all words that some wait reads.
pub(super) fn check(world: &World<'_>) -> Vec<Violation> {
    let mut out = Vec::new();
    let mut told: HashSet<EdgeId> = HashSet::new();
    let sums: Vec<Vec<i64>> = world.classes.iter().map(|c| sums(world, c)).collect();
    let mut waited = vec![false; world.words.total];
    for class in &world.classes {
        for w in &class.waits {
            let line = wait_line(world.plan, class, w);
            waited[w.word as usize] = true;
            if w.count > MAX_COUNT && told.insert(line.edge) {
                out.push(Violation::Signalling {
                    place: line.edge.to_string(),
                    message: format!(
                        "waits for {} an epoch: words wrap around, and take at most {MAX_COUNT}",
                        w.count
                    ),
                });
            }
            let wrong = sums.iter().position(|s| s[w.word as usize] != w.count);
            if let Some(other) = wrong
                && told.insert(line.edge)
            {
                let t = &class.tasks[w.task as usize];
                out.push(Violation::Threshold {
                    wait: line.edge,
                    waiter: format!(
                        "{} of {} (tile {:?}, rank {})",
                        line.by,
                        site::family(world, t.family),
                        t.domain,
                        t.rank
                    ),
                    word: site::word(world, w.word),
                    count: w.count,
                    posted: posted(world, &sums, w.word, other),
                });
            }
        }
    }
    host_waits(world, &mut out);
    let mut families = BTreeSet::new();
    for (word, _) in waited.iter().enumerate().filter(|w| *w.1) {
        producers(world, word as u32, &mut families, &mut out);
    }
    out
}

fn sums(world: &World<'_>, class: &Class) -> Vec<i64> {
    let mut sums = vec![0i64; world.words.total];
    for p in &class.posts {
        let s = &mut sums[world.rotation.own(p.word) as usize];
        *s = s.saturating_add(p.add);
    }
    sums
}

/// Who posts how much to a word in a class that differs from what is waited for.
fn posted(world: &World<'_>, sums: &[Vec<i64>], word: u32, class: usize) -> String {
    let c = &world.classes[class];
    let mut by: BTreeMap<(EdgeId, u32), i64> = BTreeMap::new();
    for p in c.posts_of(word) {
        let p = &c.posts[*p as usize];
        *by.entry((post_line(world.plan, c, p).edge, c.tasks[p.task as usize].rank))
            .or_default() += p.add;
    }
    let steady = sums.iter().all(|s| s[word as usize] == sums[class][word as usize]);
    if by.is_empty() && steady {
        return "and nothing posts to it".into();
    }
    if by.is_empty() {
        return "but in some epochs nothing posts to it, and in others something does: the sum must be the same in \
            every epoch".into();
    }
    let list: Vec<_> =
        by.iter().take(6).map(|((e, r), n)| format!("{n} by {e} on rank {r}")).collect();
    let sum = sums[class][word as usize];
    let which = if steady { "an epoch" } else { "an epoch of one kind, and another sum in others" };
    format!(
        "but {sum} are posted in {which}: {}; a wait is for the complete set, the same in every epoch",
        list.join(", ")
    )
}

fn producers(
    world: &World<'_>,
    word: u32,
    told: &mut BTreeSet<Vec<EdgeId>>,
    out: &mut Vec<Violation>,
) {
    let mut by: BTreeMap<u32, BTreeSet<EdgeId>> = BTreeMap::new();
    let mut negative = None;
    let mut kinds = BTreeSet::new();
    for c in &world.classes {
        for p in c.posts_of(word) {
            let p = &c.posts[*p as usize];
            let line = post_line(world.plan, c, p);
            let edge = line.edge;
            kinds.insert(is_host(line.by).then_some(line.by));
            by.entry(world.poster(c, p)).or_default().insert(edge);
            if p.add < 0 {
                negative = Some(edge);
            }
        }
    }
    let edges: Vec<EdgeId> =
        by.values().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect();
    if let Some(edge) = negative
        && told.insert(vec![edge])
    {
        out.push(Violation::Signalling {
            place: edge.to_string(),
            message: format!("takes away from {}: words only count up", site::word(world, word)),
        });
    }
    if kinds.len() > 1 && told.insert(edges.clone()) {
        let by = |kind: &Option<Agent>| kind.map_or("GPUs".into(), |a| format!("`{a}`"));
        let kinds: Vec<_> = kinds.iter().map(by).collect();
        out.push(Violation::Signalling {
            place: site::word(world, word),
            message: format!(
                "is posted to by {}: posts of hosts come later than kernels end, so that those of two epochs may \
                 stand for one",
                kinds.join(" and ")
            ),
        });
    }
    if by.len() > 1 && told.insert(edges) {
        let list: Vec<_> = by
            .iter()
            .take(4)
            .map(|(r, e)| {
                format!(
                    "rank {r} ({})",
                    e.iter().map(EdgeId::to_string).collect::<Vec<_>>().join(", ")
                )
            })
            .collect();
        out.push(Violation::Producers {
            word: site::word(world, word),
            producers: list.join(", "),
        });
    }
}

/// The receiving host knows nothing of the sender's words.
fn host_waits(world: &World<'_>, out: &mut Vec<Violation>) {
    for (id, x) in world.plan.families.iter() {
        for w in x.waits.iter().filter(|w| w.by == Agent::Receiver) {
            out.push(Violation::Signalling {
                place: format!("{}: {}", site::family(world, id), w.edge),
                message: "waits for a word of the sending rank, which the receiving host cannot read: wait `by \
                    issuer`".into(),
            });
        }
    }
}

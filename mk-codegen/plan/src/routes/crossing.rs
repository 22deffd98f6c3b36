//! Tokens that cross from node to node, each once to a node that has one of its experts.

/// The share of tokens that have one of the `own` of so many experts, if each goes to any of them.
#[must_use]
pub fn wanted_share(experts: usize, own: usize, slots: usize) -> f64 {
    let others = experts.saturating_sub(own);
    let missed = |j| others.saturating_sub(j) as f64 / (experts - j) as f64;
    1.0 - (0..slots.min(experts)).map(missed).product::<f64>()
}

/// Whether each token of a chunk has an expert of a rank, or a node, of which each has so many.
pub(super) fn wanted(
    ids: &[i32],
    slots: usize,
    own: usize,
    home: usize,
) -> impl Iterator<Item = bool> {
    let home = move |id: &i32| usize::try_from(*id).is_ok_and(|id| id / own.max(1) == home);
    ids.chunks_exact(slots.max(1)).map(move |experts| experts.iter().any(home))
}

/// How many tokens of a chunk each node has an expert of, of which each has so many: at least one, so that there is
/// memory for whoever asks.
pub fn route_crossing(ids: &[i32], slots: usize, own: usize, nodes: usize) -> Vec<i32> {
    let count = |node| wanted(ids, slots, own, node).filter(|of| *of).count().max(1) as i32;
    (0..nodes).map(count).collect()
}

/// The tokens of a chunk that each node has an expert of, in their order, and 0 behind them: `width` for each node.
pub fn route_leaving(
    ids: &[i32],
    slots: usize,
    own: usize,
    nodes: usize,
    width: usize,
) -> Vec<i32> {
    let list = |node| {
        let tokens = (0..).zip(wanted(ids, slots, own, node)).filter(|(_, of)| *of);
        let mut list: Vec<i32> = tokens.map(|(token, _)| token).collect();
        list.resize(width, 0);
        list
    };
    (0..nodes).flat_map(list).collect()
}

/// The number of each token of a chunk among those that a node has an expert of, and 0 for others.
pub fn route_coming(ids: &[i32], slots: usize, own: usize, node: usize, width: usize) -> Vec<i32> {
    let mut before = 0;
    let number = |of: bool| {
        let number = if of { before } else { 0 };
        before += i32::from(of);
        number
    };
    let mut out: Vec<i32> = wanted(ids, slots, own, node).map(number).collect();
    out.resize(width, 0);
    out
}

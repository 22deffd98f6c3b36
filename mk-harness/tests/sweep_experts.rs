//! Layers of experts and their gradients, from tokens to gradients of matrices: every kernel planned and proved, and run
//! behind the one before it.

mod chain;
mod sweep;

use chain::Chain;
use mk_harness::Routing;

/// Seconds that CI spends here.
const SECONDS: u64 = 10;

const ROUTINGS: [Routing; 4] = [Routing::Random, Routing::One, Routing::Padded, Routing::Empty];

/// Every number of tokens to 70, and some around blocks of 128; ranks, slots.
fn all() -> Vec<Chain> {
    let tokens = || (1..=70).chain([127, 128, 129, 200]);
    let sizes =
        [1, 2, 3, 4, 8].into_iter().flat_map(move |ranks| tokens().map(move |t| (ranks, t)));
    let sizes = sizes.flat_map(|(ranks, t)| [1, 2, 8].map(|slots| (ranks, t, slots)));
    let of = |(ranks, tokens, slots): (usize, usize, usize)| Chain {
        ranks,
        tokens,
        slots,
        wide: tokens % 2 == 1,
    };
    sizes.map(of).collect()
}

#[test]
fn gradients_of_layers() {
    sweep::run("layers with gradients", all(), SECONDS, |case, seed| case.check(&ROUTINGS, seed));
}

//! Layers of experts and their gradients, from tokens to gradients of matrices: every kernel planned and proved, and run
//! behind the one before it.

mod chain;
mod sweep;

use chain::Chain;
use mk_harness::Routing;
use sweep::drawn::some;

/// Seconds that CI spends here.
const SECONDS: u64 = 4;

const ROUTINGS: [Routing; 4] = [Routing::Random, Routing::One, Routing::Padded, Routing::Empty];

/// Every number of tokens to 70, and some around blocks of 128; ranks, slots.
fn all() -> Vec<Chain> {
    let tokens = || (1..=70).chain([127, 128, 129, 200]);
    let sizes =
        [1, 2, 3, 4, 8].into_iter().flat_map(move |ranks| tokens().map(move |t| (ranks, t)));
    let sizes = sizes.flat_map(|(ranks, t)| [1, 2, 8].map(|slots| (ranks, t, slots)));
    let of = |(ranks, tokens, slots): (usize, usize, usize), drops: bool| Chain {
        ranks,
        tokens,
        slots,
        wide: tokens % 2 == 1,
        drops,
        own: tokens.is_multiple_of(ranks) && tokens % 4 > 1,
        biased: (tokens + slots) % 3 == 0,
        any: tokens % 4 == 0 && tokens % 10 > 0,
    };
    // Some of few tokens with a capacity that holds all, and all of many, of which some are dropped.
    let drops = |&(_, tokens, _): &(usize, usize, usize)| tokens % 10 == 0 || tokens > 70;
    let dropping = sizes.clone().filter(drops).map(|size| of(size, true));
    sizes.map(|size| of(size, false)).chain(dropping).collect()
}

/// All tokens to the same experts: each keeps a block of rows, and what is dropped has no part in any gradient.
#[test]
fn gradients_of_kept_rows() {
    for (ranks, tokens, slots) in some([(1, 140, 2), (2, 200, 1), (3, 150, 2)], 3) {
        let (wide, drops) = (ranks == 2, true);
        let chain =
            Chain { ranks, tokens, slots, wide, drops, own: false, biased: ranks > 1, any: false };
        chain.check(&[Routing::One, Routing::Padded], 7);
    }
}

/// Ranks bring tensors of their own number of rows, none among others, and get as many.
#[test]
fn gradients_of_own_rows() {
    let sizes = [(1, 140, 2, false), (2, 200, 2, true), (3, 36, 2, false), (4, 12, 1, false)];
    for (ranks, tokens, slots, drops) in some(sizes, 4) {
        let chain =
            Chain { ranks, tokens, slots, wide: true, drops, own: true, biased: false, any: false };
        chain.check(&[Routing::Random, Routing::One], 5);
    }
}

/// Vectors that experts add, before gates and to their results, and their gradients: sums over rows of each.
#[test]
fn gradients_of_biases() {
    let sizes = [(1, 140, 2), (2, 40, 2), (3, 7, 1), (4, 20, 8), (8, 24, 2)];
    for (ranks, tokens, slots) in some(sizes, 4) {
        let own = ranks == 4;
        let chain = Chain {
            ranks,
            tokens,
            slots,
            wide: ranks == 2,
            drops: false,
            own,
            biased: true,
            any: false,
        };
        chain.check(&ROUTINGS, 9);
    }
}

/// A kernel for any number of tokens: ranks have none of few.
#[test]
fn gradients_of_any_number_of_tokens() {
    let sizes = [(1, 40, 2), (2, 9, 2), (3, 4, 1), (4, 1, 2), (4, 70, 8)];
    for (ranks, tokens, slots) in some(sizes, 4) {
        let (drops, biased) = (ranks == 2, slots == 8);
        let chain =
            Chain { ranks, tokens, slots, wide: false, drops, own: false, biased, any: true };
        chain.check(&ROUTINGS, 11);
    }
}

#[test]
fn gradients_of_layers() {
    sweep::run("layers with gradients", all(), SECONDS, |case, seed| case.check(&ROUTINGS, seed));
}

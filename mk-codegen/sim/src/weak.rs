//! Edges that are too weak, at their weakest ([`super::Options::check`]; `docs/memory-model.md`).
//!
//! A wait that does not synchronise (of scope gpu, or with a post of scope gpu, across GPUs), or that has no proxy
//! fence for what its agent touches, does not hold these accesses back: they may go first. A wait without a fence is
//! made up for before the agent posts, hands anything over, or leaves its task; one that does not synchronise, or is
//! for the host's accesses, only keeps the agent from the next task. A task that only signals, whose wait does not
//! synchronise, may post first. Ordinary stores lie in a buffer until a release pushes them out, no further than its
//! scope.

use super::signals::Word;
use mk_plan::{Proxy, Scope, Wait};
use std::collections::HashMap;

/// How words are posted to, as far as launches have shown.
#[derive(Default)]
pub(super) struct Weak {
    pub words: HashMap<Word, Posts>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Posts {
    /// Some come from another GPU or a host.
    pub crossing: bool,
    /// Some of those are of scope gpu.
    pub crossing_gpu: bool,
    /// Some of all are.
    pub gpu: bool,
}

impl Weak {
    /// Whether a wait synchronises with the posts to its word, for accesses of its GPU, or of a network card.
    pub fn synchronises(&self, word: Word, wait: &Wait, outside: bool) -> bool {
        let posts = self.words.get(&word).copied().unwrap_or_default();
        if outside {
            return wait.scope == Scope::Sys && !posts.gpu;
        }
        !posts.crossing || (wait.scope == Scope::Sys && !posts.crossing_gpu)
    }
}

/// Whether a wait with the right scope does nothing for accesses through a proxy.
pub(super) fn unfenced(wait: &Wait, access: Proxy) -> bool {
    match access {
        Proxy::Async => wait.proxy != Proxy::Async,
        Proxy::Generic => wait.proxy == Proxy::Host,
        Proxy::Host => false,
    }
}

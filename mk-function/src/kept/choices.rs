//! Settings that earlier processes searched.

use super::{Prove, Shelf};
use crate::choice::{self, Cache, Choice, Conditions, Fuse, parts};
use mk_codegen::cost::Gpu;
use mk_runtime::{
    jit::JitOptions,
    store::{Key, Kind},
};
use mk_syntax::{Bound, Program};

/// Choices of earlier processes, and the way to new ones.
#[derive(Clone, Debug)]
pub struct Choices {
    pub(super) shelf: Option<Shelf>,
}

impl Choices {
    /// In the store of these options.
    pub fn new(jit: &JitOptions, prove: Prove) -> Choices {
        Choices { shelf: Shelf::open(jit, prove) }
    }

    /// As [`choice::settle`]: what it said before on the same terms, or what it says now, which is kept.
    pub fn settle(&self, program: &Program, bound: &Bound, terms: &Conditions<'_>) -> Choice {
        // Nothing is searched without a GPU, and what takes no time is not kept.
        let (Some(shelf), Some((gpu, cache))) = (&self.shelf, terms.search) else {
            return choice::settle(program, bound, terms);
        };
        let key = shelf.choice_key(program, bound, terms, gpu, cache);
        let read = |text: &str| Choice::read(text, terms.config).ok();
        if let Some(text) = shelf.store.read(Kind::Choice, &key) {
            if let Some(known) = String::from_utf8(text).ok().as_deref().and_then(read) {
                return known;
            }
            tracing::warn!(key = key.hex(), "a kept choice makes no sense: settings are searched");
        }
        let chosen = choice::settle(program, bound, terms);
        let text = chosen.write(program, bound);
        let Some(read) = read(&text) else { return chosen };
        shelf.store.write(Kind::Choice, &key, text.as_bytes());
        // As a later process will read it.
        read
    }
}

impl Shelf {
    /// Of all that decides a choice: the figures of the GPU, and the measured winners, too.
    pub(super) fn choice_key(
        &self,
        program: &Program,
        bound: &Bound,
        terms: &Conditions<'_>,
        gpu: &Gpu,
        cache: Option<&Cache>,
    ) -> Key {
        let Conditions { config, fuse, overlap, .. } = terms;
        let asked = format!("{config:?} {fuse} {overlap} {gpu:?}");
        let figures = choice::model_of(gpu, cache).0.map(|m| m.to_json()).unwrap_or_default();
        let winner = |program: &Program, bound: &Bound| {
            let key = choice::Key::new(program, bound, config.ranks, &config.target, &gpu.name);
            format!("{:?}", cache.map(|cache| cache.recall(&key)))
        };
        let list = if *fuse == Fuse::Always { None } else { parts(program, bound).ok() };
        let of_parts = list.iter().flatten().map(|part| winner(&part.program, &part.bound));
        let winners: Vec<String> = of_parts.chain([winner(program, bound)]).collect();
        let more = [asked, figures].into_iter().chain(winners).collect::<Vec<_>>();
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        self.key("choice", program, bound, &more)
    }
}

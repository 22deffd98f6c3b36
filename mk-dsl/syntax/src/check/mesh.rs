//! The mesh axes that a program names, and their order where they share a dimension.

use crate::ast::{Chain, Source, Type, Word};
use crate::diag::Sink;
use crate::messages;
use crate::ops::{self, OpKind};
use crate::program::MAX_AXES;
use crate::program::Placement;
use crate::suggest::nearest;

/// The mesh: named axes, at least one.
#[derive(Debug)]
pub(super) struct Mesh<'a> {
    pub axes: Vec<&'a str>,
    /// Pairs of axes that share a dimension: the second one's shards are parts of the first one's.
    nested: Vec<[usize; 2]>,
}

impl<'a> Mesh<'a> {
    /// The axes that the signature names; if it names none, those that the body names; if
    /// nothing is named, `world`. `None` if there are too many.
    pub fn of(source: &Source<'a>, sink: &mut Sink) -> Option<Self> {
        let mut words: Vec<Word<'a>> = Vec::new();
        if let Some(signature) = &source.signature {
            let results = signature.results.iter().flat_map(|r| r.types.iter().flatten());
            let params = signature.params.iter().filter_map(|p| p.ty.as_ref());
            words.extend(params.chain(results).flat_map(axes_of_type));
        }
        if words.is_empty() {
            let lets = source.body.lets.iter().map(|l| &l.chain);
            words.extend(lets.chain(&source.body.results).flat_map(axes_of_chain));
        }
        let mut axes: Vec<&'a str> = Vec::new();
        for word in words {
            if axes.contains(&word.text) {
                continue;
            }
            if axes.len() == MAX_AXES {
                sink.push(word.span, messages::too_many_axes());
                return None;
            }
            axes.push(word.text);
        }
        if axes.is_empty() {
            axes.push(crate::print::UNNAMED);
        }
        Some(Mesh { axes, nested: Vec::new() })
    }

    /// Notes that shards over `inner` are parts of shards over `outer`; `false` if it is the other way round elsewhere.
    pub fn nest(&mut self, outer: usize, inner: usize) -> bool {
        let mut within = vec![inner];
        let mut at = 0;
        while let Some(axis) = within.get(at).copied() {
            at += 1;
            for [_, more] in self.nested.iter().filter(|pair| pair[0] == axis) {
                if !within.contains(more) {
                    within.push(*more);
                }
            }
        }
        let consistent = !within.contains(&outer);
        if consistent && !self.nested.contains(&[outer, inner]) {
            self.nested.push([outer, inner]);
        }
        consistent
    }

    /// The axes, outer ones before inner ones, else as they are named.
    pub fn order(&self) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.axes.len()).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let inside = |axis: &usize| left.iter().any(|o| self.nested.contains(&[*o, *axis]));
            let first = left.iter().position(|axis| !inside(axis)).unwrap_or(0);
            order.push(left.remove(first));
        }
        order
    }

    /// The position of the axis `word`, or a report.
    pub fn find(&self, word: Word<'_>, sink: &mut Sink) -> Option<usize> {
        let found = self.axes.iter().position(|&axis| axis == word.text);
        if found.is_none() {
            let near = nearest(word.text, self.axes.iter().copied());
            sink.push(word.span, messages::unknown_axis(word.text, near, &self.list()));
        }
        found
    }

    /// The axes, quoted, separated by commas.
    pub fn list(&self) -> String {
        self.axes.iter().map(|axis| format!("`{axis}`")).collect::<Vec<_>>().join(", ")
    }

    /// One placement as the source would write it.
    pub fn show(&self, placement: Placement, axis: usize) -> String {
        let axis = self.axes.get(axis).copied().filter(|_| crate::print::names_axes(&self.axes));
        crate::print::placement(placement, axis)
    }

    /// All placements of a value.
    pub fn show_all(&self, placement: &[Placement]) -> String {
        let order = self.order();
        let axes: Vec<&str> = order.iter().map(|axis| self.axes[*axis]).collect();
        let placement: Vec<Placement> = order.iter().map(|axis| placement[*axis]).collect();
        crate::print::placements(&placement, &axes)
    }
}

fn axes_of_type<'t, 'a>(ty: &'t Type<'a>) -> impl Iterator<Item = Word<'a>> + 't {
    ty.placements.iter().filter_map(|p| p.axis)
}

/// The axes that collectives name.
fn axes_of_chain<'t, 'a>(chain: &'t Chain<'a>) -> impl Iterator<Item = Word<'a>> + 't {
    chain.stages.iter().flatten().filter_map(|stage| {
        match ops::find(stage.name.text).map(|op| op.kind) {
            Some(OpKind::Gather | OpKind::ReduceScatter | OpKind::AllReduce | OpKind::AllToAll) => {
                super::args::axis_word(stage)
            }
            _ => None,
        }
    })
}

//! The mesh axes that a program names.

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
        Some(Mesh { axes })
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
        crate::print::placements(placement, &self.axes)
    }
}

fn axes_of_type<'t, 'a>(ty: &'t Type<'a>) -> impl Iterator<Item = Word<'a>> + 't {
    ty.placements.iter().filter_map(|p| p.axis)
}

/// The axes that collectives name.
fn axes_of_chain<'t, 'a>(chain: &'t Chain<'a>) -> impl Iterator<Item = Word<'a>> + 't {
    chain.stages.iter().flatten().filter_map(|stage| {
        match ops::find(stage.name.text).map(|op| op.kind) {
            Some(OpKind::Gather | OpKind::ReduceScatter | OpKind::AllReduce) => {
                super::args::axis_word(stage)
            }
            _ => None,
        }
    })
}

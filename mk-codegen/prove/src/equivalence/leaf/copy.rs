//! Copies, by whom ever.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{
    algebra::Algebra,
    context::{Context, paired, sources},
    linker::Linker,
    unroll::Touch,
};
use mk_plan::{
    CopyTile,
    leaf::{HostCopy, NicSend},
};

macro_rules! copies {
    ($($leaf:ty),*) => {$(
        impl Links for $leaf {
            fn link(&self, linker: &mut Linker<'_, '_>, of: &Task<'_>) -> Linked {
                linker.copy(of)
            }
        }

        impl<A: Algebra> Meaning<A> for $leaf {
            fn stored(&self, to: &Write<'_>, context: &mut Context<A::Elem>, _: &mut A) -> Stored<A> {
                let from = paired(&context.sources(to.touch.phase, to.last), to.touch.each);
                let data = from.iter().flat_map(|i| context.pieces[*i].tile.data.iter().copied());
                Ok(data.collect())
            }
        }
    )*};
}

copies!(CopyTile, HostCopy, NicSend);

impl Linker<'_, '_> {
    fn copy(&mut self, of: &Task<'_>) -> Linked {
        let Task { run, touches, .. } = of;
        for w in touches.iter().filter(|t| t.write) {
            let mut from = touches.iter().copied().enumerate().collect();
            sources(&mut from, w.phase, run.last);
            match paired(&from, w.each)[..] {
                [] => return Err("nothing is copied to `dst`".into()),
                [one] => self.alike(&touches[one], w)?,
                ref several => self.concatenated(touches, several, w)?,
            }
        }
        Ok(())
    }

    /// Sources one after the other: each takes some of the destination's first dimension, or of its second where it
    /// takes one of the first.
    fn concatenated(&mut self, touches: &[Touch], several: &[usize], w: &Touch) -> Linked {
        let to = self.plain(w);
        let mut at = 0;
        for t in several.iter().map(|i| &touches[*i]) {
            let from = self.plain(t);
            // Dimensions behind the one that is put together.
            let behind = to.len().saturating_sub(1).min(from.len());
            for (i, j) in from[from.len() - behind..].iter().zip(&to[to.len() - behind..]) {
                self.link((t, Some(*i)), (w, Some(*j)))?;
            }
            let (Some(d), true) = (to.first(), from.len() <= behind + 1 && behind + 1 == to.len())
            else {
                return Err("`src` are not put together along the first dimension of `dst`".into());
            };
            let (line, base, len) = self.stretch(w, *d);
            let n = if from.len() > behind { self.len(t, Some(from[0])) } else { 1 };
            if at + n > len {
                return Err("`src` have more rows than `dst`".into());
            }
            self.lines.stretch((line, base + at, n));
            if from.len() > behind {
                let x = self.stretch(t, from[0]);
                self.lines.link(x, (line, base + at, n));
            }
            at += n;
        }
        match to.first() {
            Some(d) if at == self.len(w, Some(*d)) => Ok(()),
            _ => Err("`src` have fewer rows than `dst`".into()),
        }
    }
}

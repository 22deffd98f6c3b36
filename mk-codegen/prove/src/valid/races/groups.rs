//! Accesses by box.

use crate::valid::{
    boxes::BoxId,
    world::{Class, World},
};
use mk_plan::Mode;

/// Accesses of one box in one class, writers first.
#[derive(Clone, Copy)]
pub(in crate::valid) struct Group<'g> {
    pub accs: &'g [u32],
    pub writers: usize,
}

/// Accesses of all boxes in one class.
pub(in crate::valid) struct Groups {
    /// Of box `b` are `accs[starts[b]..starts[b + 1]]`.
    starts: Vec<u32>,
    /// How many of these write.
    writers: Vec<u32>,
    accs: Vec<u32>,
}

/// Accesses by class and box.
pub(in crate::valid) fn groups(world: &World<'_>) -> Vec<Groups> {
    world.classes.iter().map(|class| Groups::of(class, world.boxes.all.len())).collect()
}

impl Groups {
    fn of(class: &Class, boxes: usize) -> Groups {
        let mut starts = vec![0u32; boxes + 1];
        class.accs.iter().for_each(|a| starts[a.boxed as usize + 1] += 1);
        for b in 0..boxes {
            starts[b + 1] += starts[b];
        }
        let (mut next, mut writers) = (starts.clone(), vec![0; boxes]);
        let mut accs = vec![0; class.accs.len()];
        for pass in [true, false] {
            for (i, a) in class.accs.iter().enumerate() {
                if (a.mode != Mode::Read) == pass {
                    let slot = &mut next[a.boxed as usize];
                    accs[*slot as usize] = i as u32;
                    *slot += 1;
                    writers[a.boxed as usize] += u32::from(pass);
                }
            }
        }
        Groups { starts, writers, accs }
    }

    /// The accesses of a box.
    pub fn get(&self, id: BoxId) -> Group<'_> {
        let b = id as usize;
        let accs = &self.accs[self.starts[b] as usize..self.starts[b + 1] as usize];
        Group { accs, writers: self.writers[b] as usize }
    }

    /// Every box with its accesses.
    pub fn iter(&self) -> impl Iterator<Item = (BoxId, Group<'_>)> {
        (0..self.writers.len() as BoxId).map(|id| (id, self.get(id)))
    }
}

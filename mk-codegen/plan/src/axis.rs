//! Ranks along an axis of a mesh.

use serde::{Deserialize, Serialize};

/// The ranks along an axis of a mesh: how far they are apart, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// From one to the next.
    pub stride: u32,
    /// How many.
    pub size: u32,
}

impl Axis {
    /// The place of a rank along it.
    pub fn place(&self, rank: usize) -> usize {
        rank / (self.stride as usize).max(1) % (self.size as usize).max(1)
    }

    /// Which of the groups along it a rank is in.
    pub fn group(&self, rank: usize) -> usize {
        let (stride, size) = ((self.stride as usize).max(1), (self.size as usize).max(1));
        rank / (stride * size) * stride + rank % stride
    }

    /// The rank at a place of the group that a rank is in.
    pub fn rank(&self, of: usize, place: usize) -> usize {
        let stride = (self.stride as usize).max(1);
        of - self.place(of) * stride + place * stride
    }
}

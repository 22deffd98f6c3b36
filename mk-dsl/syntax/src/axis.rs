//! Programs over one axis of their mesh.

use crate::program::{AxisId, Def, Op, Placement, Program, TensorType, ValueId};
use std::borrow::Cow;

/// A program whose values are placed over two axes: what lies over each of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is placed over the axis `{}`, and `{}` over `{}`", of[0], axes[0], of[1], axes[1])]
pub struct TwoAxes {
    /// The first two axes that values are placed over.
    pub axes: [String; 2],
    /// The first value of each.
    pub of: [String; 2],
}

impl Program {
    /// The program over the axes that its values are placed over, or its first one: along all others its ranks do the
    /// same. Values and symbols keep their numbers.
    pub fn over_placed_axes(&self) -> Cow<'_, Program> {
        let placed = |axis: &usize| {
            let values = (0..self.n_values()).filter_map(|i| self.ty(ValueId::new(i)));
            values.filter_map(|ty| ty.placement.get(*axis)).any(|p| *p != Placement::Replicate)
        };
        let mut axes: Vec<usize> = (0..self.mesh_axes.len()).filter(placed).collect();
        if axes.is_empty() {
            axes.push(0);
        }
        match axes.len() == self.mesh_axes.len() {
            true => Cow::Borrowed(self),
            false => Cow::Owned(self.over(&axes)),
        }
    }

    /// The axis whose ranks share experts and tokens, or counts of rows; `None` where there are no experts, or all
    /// ranks have all of them.
    pub fn axis_of_experts(&self) -> Option<usize> {
        let said = self.nodes.iter().find_map(|n| match n.op {
            Op::GroupedGemm { .. } | Op::GroupedWgrad => n.inputs.get(2),
            Op::Dispatch { .. } => n.inputs.get(1),
            _ => None,
        })?;
        self.ty(*said)?.placement.iter().position(|p| *p == Placement::Shard(0))
    }

    /// Of so many ranks, in a mesh if there is one, those that share experts: along their axis, or all.
    pub fn ranks_of_experts(&self, ranks: u32, mesh: &[(String, u32)]) -> u32 {
        let name = self.axis_of_experts().and_then(|axis| self.mesh_axes.get(axis));
        let along = mesh.iter().filter(|_| mesh.len() > 1).find(|(axis, _)| Some(axis) == name);
        along.map_or(ranks, |(_, n)| *n)
    }

    /// The program with the axis of its experts before the others.
    pub fn experts_first(&self) -> Cow<'_, Program> {
        match self.axis_of_experts() {
            None | Some(0) => Cow::Borrowed(self),
            Some(first) => {
                let others = (0..self.mesh_axes.len()).filter(|axis| *axis != first);
                Cow::Owned(self.over(&[first].into_iter().chain(others).collect::<Vec<_>>()))
            }
        }
    }

    /// The program over some of its axes in this order, all that its values are placed over among them.
    pub(crate) fn over(&self, axes: &[usize]) -> Program {
        let mut program = self.clone();
        program.mesh_axes = axes.iter().map(|axis| self.mesh_axes[*axis].clone()).collect();
        let over = |ty: &mut TensorType| {
            ty.placement = axes.iter().map(|axis| ty.placement[*axis]).collect();
        };
        let now = |axis: AxisId| {
            AxisId::new(axes.iter().position(|a| *a == axis.index()).unwrap_or_default())
        };
        program.tensors.iter_mut().for_each(|tensor| over(&mut tensor.ty));
        for node in &mut program.nodes {
            over(&mut node.ty);
            match &mut node.op {
                Op::Gather { axis, .. }
                | Op::ReduceScatter { axis, .. }
                | Op::AllReduce { axis }
                | Op::AllToAll { axis, .. } => *axis = now(*axis),
                Op::Attention { ring, .. }
                | Op::AttentionDq { ring, .. }
                | Op::AttentionDk { ring, .. } => *ring = ring.map(now),
                _ => {}
            }
        }
        program
    }

    /// The program over the one axis that its values are placed over: along all others its ranks do the same. Values
    /// and symbols keep their numbers. Of a mesh of one axis, the program itself; of one without placements, over the
    /// first axis.
    ///
    /// # Errors
    /// If values are placed over two axes.
    pub fn over_one_axis(&self) -> Result<Cow<'_, Program>, TwoAxes> {
        if self.mesh_axes.len() == 1 {
            return Ok(Cow::Borrowed(self));
        }
        let mut placed = (0..self.mesh_axes.len()).filter_map(|axis| {
            let over = |value: &ValueId| {
                let placement = self.ty(*value).and_then(|ty| ty.placement.get(axis));
                placement.is_some_and(|p| *p != Placement::Replicate)
            };
            Some((axis, (0..self.n_values()).map(ValueId::new).find(over)?))
        });
        let first = placed.next();
        if let (Some(first), Some(second)) = (first, placed.next()) {
            let name = |value: ValueId| match self.def(value) {
                Some(Def::Param(tensor)) => tensor.name.clone(),
                Some(Def::Node(node)) => node.op.name().to_string(),
                None => String::new(),
            };
            return Err(TwoAxes {
                axes: [first.0, second.0].map(|axis| self.mesh_axes[axis].clone()),
                of: [first.1, second.1].map(name),
            });
        }
        let axis = first.map_or(0, |(axis, _)| axis);
        Ok(Cow::Owned(self.over(&[axis])))
    }
}

//! What a plan runs on: the ranks by the axes of their mesh, those of them that communicate, the network between nodes,
//! and the GPU.

use super::{
    error::{LowerError, unsupported},
    shape::ranks::{Nodes, RankGroup},
};
use crate::settings::Config;
use mk_abi::device::MAX_RANKS;
use mk_plan::{
    Mesh, Nic,
    target::{self, Target},
};
use mk_syntax::{Bound, Program, TensorType, ValueId};
use std::borrow::Cow;

/// The axis of a mesh that counts nodes: proofs go by it, too.
const NODES: &str = "node";

pub(super) struct World {
    pub target: &'static Target,
    pub mesh: Mesh,
    pub nic: Option<Nic>,
    /// The ranks along each of the pipeline's axes, by node.
    pub nodes: Vec<Nodes>,
}

impl World {
    /// The world of a pipeline, the pipeline over the axes that it places tensors over, and the settings as they are
    /// for the ranks along those.
    ///
    /// # Errors
    /// [`LowerError::OutOfRange`] for a target that is not known, and for a mesh that is not of these ranks or nodes;
    /// [`LowerError::Unsupported`] for a pipeline over an axis that the mesh lacks, and over two that nodes cut.
    pub fn of<'p>(
        program: &'p Program,
        bound: &Bound,
        config: &Config,
    ) -> Result<(World, Cow<'p, Program>, Config), LowerError> {
        let target = target::by_name(&config.target).ok_or_else(|| {
            let known: Vec<_> = target::TARGETS.iter().map(|t| t.name).collect();
            let what = format!("target `{}` is not known", config.target);
            LowerError::OutOfRange { what, help: format!("use {}", known.join(", ")) }
        })?;
        let program = match program.over_placed_axes() {
            Cow::Borrowed(program) => program.experts_first(),
            Cow::Owned(program) => Cow::Owned(program.experts_first().into_owned()),
        };
        let mesh = match config.mesh.is_empty() {
            true => Mesh { axes: vec![(program.mesh_axes()[0].clone(), config.ranks)] },
            false => Mesh { axes: config.mesh.clone() },
        };
        let axes: Vec<_> = mesh.axes.iter().map(|(name, n)| format!("{name}={n}")).collect();
        let axes = axes.join(",");
        let size = mesh.axes.iter().try_fold(1u32, |n, axis| n.checked_mul(axis.1));
        if !config.mesh.is_empty() && size != Some(config.ranks) {
            let what = format!("the mesh {axes} is not of {} ranks", config.ranks);
            let help = format!(
                "let the extents' product be the ranks, of which there are 1 to {MAX_RANKS}"
            );
            return Err(LowerError::OutOfRange { what, help });
        }
        let named = |name: &String| {
            let known = config.mesh.is_empty() || mesh.axes.iter().any(|(axis, _)| axis == name);
            mesh.axis(name)
                .filter(|_| known && (program.mesh_axes().len() == 1 || !config.mesh.is_empty()))
        };
        let mut groups = Vec::new();
        for name in program.mesh_axes() {
            let Some(axis) = named(name) else {
                let why = format!("the pipeline is over the axis `{name}`, and the mesh is {axes}");
                let help = "name the pipeline's axis, as in `gather(a, tp)`, or in the mesh";
                return Err(unsupported("mesh", why, help));
            };
            groups.push((name, RankGroup::of(axis, config.ranks)));
        }
        let behind = mesh.axes.iter().rev().take_while(|(axis, _)| axis != NODES);
        let on_node = behind.map(|(_, n)| n).product::<u32>();
        let cut = mesh.axes.iter().any(|(axis, _)| axis == NODES);
        if cut && config.nodes.checked_mul(on_node) != Some(config.ranks) {
            let what = format!(
                "the axis `{NODES}` of the mesh {axes} says that a node has {on_node} of {} ranks, and there are {} \
                 nodes",
                config.ranks, config.nodes
            );
            let help = format!(
                "set `nodes={}`, or give the axis another name",
                config.ranks / on_node.max(1)
            );
            return Err(LowerError::OutOfRange { what, help });
        }
        let whole = config.ranks.checked_rem(config.nodes) == Some(0);
        let local = whole.then(|| (config.ranks / config.nodes).max(1) as i32);
        if let [(_, group)] = groups[..] {
            let nodes = on_nodes(group, groups[0].0, &axes, local, config.nodes)?;
            let (ranks, over) = match group.is_world() {
                true => (config.ranks, config.nodes),
                false => (group.size as u32, nodes.count() as u32),
            };
            refuse_shared(&program, bound, group, groups[0].0)?;
            let of_group = Config { ranks, nodes: over, ..config.clone() };
            let nodes = vec![nodes];
            return Ok((World { target, mesh, nic: config.nic(), nodes }, program, of_group));
        }
        let by_node = |(name, group): &(&String, RankGroup)| {
            on_nodes(*group, name, &axes, local, config.nodes)
        };
        let nodes = groups.iter().map(by_node).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<&str> = groups.iter().map(|(name, _)| name.as_str()).collect();
        let over = one_across(&nodes, &names)?;
        let ranks = groups.iter().map(|(_, group)| group.size as u32).product();
        let of_groups = Config { ranks, nodes: over, ..config.clone() };
        Ok((World { target, mesh, nic: config.nic(), nodes }, program, of_groups))
    }

    /// Ranks along each axis.
    pub fn sizes(&self) -> Vec<i32> {
        self.nodes.iter().map(|nodes| nodes.group.size).collect()
    }
}

/// How the ranks along an axis lie in nodes of so many.
fn on_nodes(
    group: RankGroup,
    name: &str,
    axes: &str,
    local: Option<i32>,
    nodes: u32,
) -> Result<Nodes, LowerError> {
    match (group.is_world(), local.and_then(|local| group.by_node(local))) {
        (_, Some(nodes)) => Ok(nodes),
        // Settings refuse it.
        (true, None) => Ok(group.in_one_node()),
        (false, None) => {
            let what = format!("{nodes} nodes cut the axis `{name}` of the mesh {axes} unevenly");
            let help =
                "let each node have whole groups of an axis, or as many ranks of each".into();
            Err(LowerError::OutOfRange { what, help })
        }
    }
}

/// The nodes of a pipeline over several axes: those along the only axis that they cut, of one rank in each.
///
/// # Errors
/// [`LowerError::Unsupported`] for other axes.
fn one_across(axes: &[Nodes], names: &[&str]) -> Result<u32, LowerError> {
    let help = "let each node have whole groups along one axis and one rank of each group along the other, or place \
                tensors over one axis in a kernel";
    let mut across = axes.iter().zip(names).filter(|(nodes, _)| nodes.count() > 1);
    let Some((nodes, name)) = across.next() else { return Ok(1) };
    if let Some((_, other)) = across.next() {
        let why = format!("ranks along `{name}` and along `{other}` are on several nodes");
        return Err(unsupported("mesh", why, help));
    }
    let (local, count) = (nodes.local(), nodes.count());
    if local > 1 {
        let why = format!(
            "a group along `{name}` has {local} ranks on each of {count} nodes, and the pipeline another axis"
        );
        return Err(unsupported("mesh", why, help));
    }
    Ok(count as u32)
}

/// Ranks of a group that is not the world share no dimension of a launch.
fn refuse_shared(
    program: &Program,
    bound: &Bound,
    group: RankGroup,
    name: &str,
) -> Result<(), LowerError> {
    let cut = |ty: &TensorType| {
        let dim = ty.placement[0].cut().and_then(|d| ty.dims.get(d));
        dim.is_some_and(|dim| bound.is_runtime(*dim))
    };
    let mut values = (0..program.n_values()).filter_map(|i| program.ty(ValueId::new(i)));
    if !group.is_world() && values.any(cut) {
        let why = format!(
            "ranks along `{name}` share a dimension that comes with each launch, and are not all ranks"
        );
        return Err(unsupported("dyn", why, "let it be fixed, or use a mesh of one axis"));
    }
    Ok(())
}

/// A pipeline over its one axis.
///
/// # Errors
/// [`LowerError::Unsupported`] where there are two.
pub(super) fn over_one_axis(program: &Program) -> Result<Cow<'_, Program>, LowerError> {
    program.over_one_axis().map_err(|two| {
        let help =
            "let one kernel place its tensors over one axis, and be `replicate` over the others";
        unsupported("mesh", two.to_string(), help)
    })
}

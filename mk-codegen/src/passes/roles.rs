//! Gives every family a role, and every role its CTAs.
//!
//! Assumes signals. Leaves: roles in CTA order (compute first), one CTA per SM, all co-resident; a role of
//! [`Config::sms`] has exactly what was asked for, the others the default.

use super::{Config, LowerError, draft::Draft};
use crate::ir::{Arena, Entity, FamId, Leaf, Plan, Role, RoleId, RoleKind, Schedule};
use crate::target;

/// CTAs that move data inside a node by default, one per SM: bulk copies. On four H200s 8 of them with chunks of 512 KiB were
/// the best or within 6 % of the best split for every shape measured (docs/performance.md).
pub const DEFAULT_COPY_SMS: u32 = 8;
/// The same where they also add up what peers sent, through registers.
pub const DEFAULT_REDUCE_SMS: u32 = 16;

/// Of few SMs, where ranks share a GPU or most are reserved, communication gets one in so many by default.
const LEAST_COMPUTE_PART: u32 = 4;

const ORDER: [RoleKind; 5] = [
    RoleKind::Prologue,
    RoleKind::Compute,
    RoleKind::IntraComm,
    RoleKind::CopyEngine,
    RoleKind::Epilogue,
];

/// Runs the pass.
///
/// # Errors
/// If the settings name no role of this plan, or do not fit the target.
pub(super) fn assign(draft: Draft, config: &Config) -> Result<Plan, LowerError> {
    let Draft { mut plan, kinds, .. } = draft;
    let error = |what: String, help: String| LowerError::Config { what, help };
    let Some(target) = target::by_name(&plan.target) else {
        let known: Vec<_> = target::TARGETS.iter().map(|t| t.name).collect();
        return Err(error(format!("target `{}` is not known", plan.target), known.join(", ")));
    };
    let used: Vec<_> = ORDER.into_iter().filter(|k| kinds.values().any(|v| v == k)).collect();
    for name in config.sms.keys() {
        if !used.iter().any(|k| k.name() == name && owns_ctas(*k)) {
            let names: Vec<_> = used.iter().filter(|k| owns_ctas(**k)).map(|k| k.name()).collect();
            let help = format!("the roles of this plan are {}", names.join(", "));
            return Err(error(format!("this plan has no role `{name}` to give CTAs to"), help));
        }
    }
    let sms = target.sms.saturating_sub(config.reserved_sms);
    let asked = |k: RoleKind| config.sms.get(k.name()).copied();
    let has = |k: RoleKind| used.contains(&k);
    let default = if reduces(&plan, &kinds) { DEFAULT_REDUCE_SMS } else { DEFAULT_COPY_SMS };
    let default = default.min(sms / LEAST_COMPUTE_PART).max(1);
    let comm =
        match (has(RoleKind::IntraComm), asked(RoleKind::IntraComm), asked(RoleKind::Compute)) {
            (false, ..) => 0,
            (true, Some(n), _) => n,
            (true, None, Some(compute)) => default.min(sms.saturating_sub(compute)),
            (true, None, None) if has(RoleKind::Compute) => default,
            (true, None, None) => sms,
        };
    let compute = match (has(RoleKind::Compute), asked(RoleKind::Compute)) {
        (false, _) => 0,
        (true, Some(n)) => n,
        (true, None) => sms.saturating_sub(comm),
    };
    if compute.saturating_add(comm) > sms
        || (has(RoleKind::Compute) && compute == 0)
        || (has(RoleKind::IntraComm) && comm == 0)
    {
        let what = format!(
            "compute = {compute} and intra_comm = {comm} CTAs do not fit {sms} SMs{}",
            if config.reserved_sms > 0 { ", beside those that are reserved" } else { "" }
        );
        let help = format!(
            "give every role of `sms` at least one CTA, one per SM, and all of them at most {sms}"
        );
        return Err(error(what, help));
    }
    for kind in &used {
        let ctas = match kind {
            RoleKind::Compute => compute,
            RoleKind::IntraComm => comm,
            _ => 0,
        };
        plan.roles.push(Role { kind: *kind, ctas });
    }
    for (id, kind) in kinds.iter() {
        let role = used.iter().position(|k| k == kind).unwrap_or(0);
        plan.families[id].role = RoleId::new(role);
    }
    if config.tile_schedule == Schedule::Dynamic {
        whoever_is_free(&mut plan);
    }
    Ok(plan)
}

/// Sums, copies through registers, and products, with what follows them, are for whoever is free.
fn whoever_is_free(plan: &mut Plan) {
    let roles: Vec<RoleId> = plan.roles.keys().filter(|r| plan.roles[*r].ctas > 0).collect();
    for role in roles {
        let families: Vec<FamId> =
            plan.families.iter().filter(|(_, f)| f.role == role).map(|(id, _)| id).collect();
        let product = |id: &FamId| matches!(plan.families[*id].leaf, Leaf::MmaTile { .. });
        let from = families.iter().position(product).unwrap_or(0);
        for id in families.into_iter().skip(from) {
            let family = &mut plan.families[id];
            if family.leaf.has_dynamic_schedule() {
                family.schedule = Schedule::Dynamic;
            }
        }
    }
}

/// Whether communication CTAs also add.
fn reduces(plan: &Plan, kinds: &Arena<FamId, RoleKind>) -> bool {
    let mut sums = plan.families.iter().filter(|(_, f)| matches!(f.leaf, Leaf::ReduceTile { .. }));
    sums.any(|(id, _)| kinds[id] == RoleKind::IntraComm)
}

fn owns_ctas(kind: RoleKind) -> bool {
    matches!(kind, RoleKind::Compute | RoleKind::IntraComm)
}

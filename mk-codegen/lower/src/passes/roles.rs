//! Gives every family a role, and every role its CTAs.
//!
//! Assumes signals. Leaves: roles in CTA order (compute first), one CTA per SM, all co-resident; a role of
//! the settings has exactly what was asked for, the others the default.

use super::{
    draft::Draft,
    error::{LowerError, internal, too_large},
};
use crate::settings::{self, Config, Refusal};
use mk_plan::{
    Arena, Entity, EvalError, FamId, Leaf, MAX_TASKS, Plan, Points, Role, RoleId, RoleKind,
    Schedule, TableSet,
};

/// CTAs that move data inside a node by default, one per SM: bulk copies. On four H200s 8 of them with chunks of 512
/// KiB were the best or within 6 % of the best split for every shape measured (docs/performance.md).
pub const DEFAULT_COPY_SMS: u32 = 8;
/// Bytes a second of one of them beside attention, on an H100 that four ranks share and whose clock its power holds
/// back: 25.5 to 28e9 of one alone, 19e9 and more each of two and three (docs/performance.md, "Rings").
const COPY_RATE: f64 = 20e9;
/// Floating-point operations a second of an SM that attends.
const ATTEND_RATE: f64 = 5e12;
/// The same where they also add up what peers sent, through registers.
pub const DEFAULT_REDUCE_SMS: u32 = 16;

/// CTAs that hand data to the network: one lane fills the fifo.
const INTER_SEND_SMS: u32 = 1;
/// CTAs that await what the network brings. With the lane that sends, three poll memory that hosts write.
const INTER_REDUCE_SMS: u32 = 2;

/// Of few SMs, where ranks share a GPU or most are reserved, communication gets one in so many by default.
const LEAST_COMPUTE_PART: u32 = 4;

const ORDER: [RoleKind; 7] = [
    RoleKind::Prologue,
    RoleKind::Compute,
    RoleKind::IntraComm,
    RoleKind::InterSend,
    RoleKind::InterReduce,
    RoleKind::CopyEngine,
    RoleKind::Epilogue,
];

/// Runs the pass.
///
/// # Errors
/// If the settings give CTAs to no role of this plan, or do not fit the target.
pub(super) fn assign(draft: Draft, config: &Config) -> Result<Plan, LowerError> {
    let Draft { mut plan, extents, kinds, first, target, bytes_per_flop, .. } = draft;
    plan.dims = extents.into_dims();
    let used: Vec<_> = ORDER.into_iter().filter(|k| kinds.values().any(|v| v == k)).collect();
    let has = |k: RoleKind| used.contains(&k);
    let asked = [
        ("compute_sms", RoleKind::Compute, config.compute_sms),
        ("intra_comm_sms", RoleKind::IntraComm, config.intra_comm_sms),
    ];
    for (setting, kind, value) in asked {
        if let (Some(n), false) = (value, has(kind)) {
            let why = format!("this plan has no role `{}` to give CTAs to", kind.name());
            let instead = vec![format!("{setting}=auto")];
            return Err(refusal(setting, n, why, "leave it as it is by default", instead));
        }
    }
    let inter: u32 = used.iter().map(|k| inter_sms(*k)).sum();
    let reduces = reduces(&plan, &kinds);
    // SMs, and those of them that multiply and that communicate.
    let split = |config: &Config| {
        let sms = target.sms.saturating_sub(config.reserved_sms).saturating_sub(inter);
        let default = match bytes_per_flop {
            // As many as it takes to keep up: one more costs its share of the SMs, one less the time of what arrives
            // late.
            Some(ratio) => {
                let ctas = ratio * f64::from(sms) * ATTEND_RATE / COPY_RATE;
                (ctas.ceil() as u32).clamp(1, DEFAULT_COPY_SMS)
            }
            None if reduces => DEFAULT_REDUCE_SMS,
            None => DEFAULT_COPY_SMS,
        };
        let default = default.min(sms / LEAST_COMPUTE_PART).max(1);
        let comm = match (has(RoleKind::IntraComm), config.intra_comm_sms, config.compute_sms) {
            (false, ..) => 0,
            (true, Some(n), _) => n,
            (true, None, Some(compute)) => default.min(sms.saturating_sub(compute)),
            (true, None, None) if has(RoleKind::Compute) => default,
            (true, None, None) => sms,
        };
        let compute = match (has(RoleKind::Compute), config.compute_sms) {
            (false, _) => 0,
            (true, Some(n)) => n,
            (true, None) => sms.saturating_sub(comm),
        };
        let fits = compute.saturating_add(comm) <= sms
            && (compute > 0 || !has(RoleKind::Compute))
            && (comm > 0 || !has(RoleKind::IntraComm));
        (sms, compute, comm, fits)
    };
    let (sms, compute, comm, fits) = split(config);
    if !fits {
        let beside = match (config.reserved_sms, inter) {
            (0, 0) => String::new(),
            (n, 0) => format!(" beside the {n} that are reserved"),
            (n, inter) => format!(" beside {n} that are reserved and {inter} for the network"),
        };
        let why = format!(
            "compute = {compute} and intra_comm = {comm} CTAs do not fit {sms} SMs{beside}"
        );
        let (setting, value) = match (config.compute_sms, config.intra_comm_sms) {
            (Some(n), _) => ("compute_sms", n),
            (None, Some(n)) => ("intra_comm_sms", n),
            (None, None) => ("reserved_sms", config.reserved_sms),
        };
        let help = "give every role at least one CTA, one per SM";
        // Alone, or with the other one, it may leave too few.
        const ALL: &str = "compute_sms=auto intra_comm_sms=auto";
        let alone = match setting {
            "reserved_sms" => "reserved_sms=0".into(),
            name => format!("{name}=auto"),
        };
        let mut instead = vec![alone, ALL.into(), format!("{ALL} reserved_sms=0")];
        instead.retain(|change| {
            let mut other = config.clone();
            settings::read(&mut other, change).is_ok() && split(&other).3
        });
        instead.truncate(1);
        let help = format!("{help}: {}", settings::set_one_of(&instead));
        return Err(refusal(setting, value, why, &help, instead));
    }
    for kind in &used {
        let ctas = match kind {
            RoleKind::Compute if config.ctas_of_task() > 1 => {
                clustered(compute, config.ctas_of_task())?
            }
            RoleKind::Compute => compute,
            RoleKind::IntraComm => comm,
            other => inter_sms(*other),
        };
        plan.roles.push(Role { kind: *kind, ctas });
    }
    for (id, kind) in kinds.iter() {
        let role = used.iter().position(|k| k == kind).ok_or_else(|| {
            internal(format!("{id} is of a role `{}` that is not among the plan's", kind.name()))
        })?;
        plan.families[id].role = RoleId::new(role);
    }
    lead(&mut plan, &first);
    if config.tile_scheduler == Schedule::Dynamic {
        next_free_cta(&mut plan);
    }
    if config.compute_sms.is_none() && plan.keeps_nothing() {
        trim(&mut plan)?;
    }
    Ok(plan)
}

/// CTAs that clusters of a size find room for: GPCs have 16 or 18 SMs, and some fewer (as an H100 and an H200 said).
fn clustered_sms(cluster: u32) -> u32 {
    match cluster {
        1 | 2 => u32::MAX,
        3 => 117,
        6 => 102,
        _ => 120,
    }
}

/// CTAs of a role that multiplies in clusters.
fn clustered(compute: u32, cluster: u32) -> Result<u32, LowerError> {
    let room = compute.min(clustered_sms(cluster));
    match room / cluster {
        0 => {
            let why = format!("a cluster of {cluster} CTAs does not fit {compute} SMs");
            let instead = vec!["cluster=1 multicast=none".into()];
            Err(refusal("cluster", cluster, why, "use a smaller one", instead))
        }
        clusters => Ok(clusters * cluster),
    }
}

/// Of a kernel whose CTAs wait for nobody, no more are launched than have a task.
fn trim(plan: &mut Plan) -> Result<(), LowerError> {
    let mut needed = Vec::new();
    {
        let tables = TableSet::example(plan);
        let points = Points::new(plan, &tables);
        for id in plan.roles.keys() {
            let mut tasks = 0;
            for (family, _) in plan.families.iter().filter(|(_, f)| f.role == id) {
                for rank in 0..plan.mesh.size() as usize {
                    let count = points.count(family, rank, 1, MAX_TASKS);
                    tasks += count.map_err(|e| match e.source {
                        EvalError::Overflow(..) => too_large(e.to_string()),
                        _ => internal(e.to_string()),
                    })?;
                }
            }
            let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
            needed.push(plan.workers(id).min(tasks.max(1)) * plan.cluster(id));
        }
    }
    for ((_, role), ctas) in plan.roles.iter_mut().zip(needed) {
        role.ctas = role.ctas.min(ctas);
    }
    Ok(())
}

/// Puts these families before all others of their role.
fn lead(plan: &mut Plan, first: &[FamId]) {
    let mut order: Vec<FamId> = plan.families.keys().collect();
    for id in first {
        order.retain(|other| other != id);
        let role = plan.families[*id].role;
        let place = order.iter().position(|other| plan.families[*other].role == role);
        order.insert(place.unwrap_or(order.len()), *id);
    }
    let mut families = Arena::new();
    for id in order {
        families.push(plan.families[id].clone());
    }
    plan.families = families;
}

/// CTAs of the roles between nodes; 0 for others.
fn inter_sms(kind: RoleKind) -> u32 {
    match kind {
        RoleKind::InterSend => INTER_SEND_SMS,
        RoleKind::InterReduce => INTER_REDUCE_SMS,
        RoleKind::Prologue
        | RoleKind::Compute
        | RoleKind::IntraComm
        | RoleKind::CopyEngine
        | RoleKind::Epilogue => 0,
    }
}

/// Products, sums and copies through registers go to the next free CTA, from the first product of a role on.
fn next_free_cta(plan: &mut Plan) {
    let roles: Vec<RoleId> = plan.roles.keys().filter(|r| plan.roles[*r].ctas > 0).collect();
    for role in roles {
        let families: Vec<FamId> =
            plan.families.iter().filter(|(_, f)| f.role == role).map(|(id, _)| id).collect();
        let product = |id: &FamId| plan.families[*id].leaf.product().is_some();
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
    let mut sums = plan.families.iter().filter(|(_, f)| matches!(f.leaf, Leaf::ReduceTile(_)));
    sums.any(|(id, _)| kinds[id] == RoleKind::IntraComm)
}

fn refusal(
    setting: &'static str,
    value: u32,
    why: String,
    help: &str,
    instead: Vec<String>,
) -> LowerError {
    Refusal { setting, value: value.to_string(), why, help: help.into(), instead }.into()
}

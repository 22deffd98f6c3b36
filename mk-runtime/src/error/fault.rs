//! A kernel's fault record in words: the edge, the role and the counters of the wait that failed.

use mk_abi::KernelSource;
use mk_abi::device::{FaultKind, FaultRecord};
use std::fmt;

/// Why a kernel gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCause {
    /// One of the causes that kernels know.
    Known(FaultKind),
    /// The process of the rank that the kernel waited for is dead.
    PeerGone,
    /// The rank that the kernel waited for launched another one in its place: [`Fault::instead`].
    OtherLaunch,
    /// The rank that the kernel waited for has launched it, too, but its GPU has not started it.
    NotStarted,
    /// A number that this version does not know.
    Unknown(u32),
}

/// What a kernel wrote when it gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kernel.
    pub kernel: String,
    /// Rank that wrote the record.
    pub rank: u32,
    /// Why.
    pub cause: FaultCause,
    /// CTA.
    pub cta: u32,
    /// Role of that CTA, if the kernel names one.
    pub role: Option<String>,
    /// Edge of the plan.
    pub edge: u32,
    /// The edge in words, if the kernel lists it.
    pub edge_text: Option<String>,
    /// Linear index of the task in its role.
    pub tile: u32,
    /// Epoch of the launch.
    pub epoch: u32,
    /// What the wait needed to see.
    pub expected: u32,
    /// What it last saw.
    pub seen: u32,
    /// How long the wait lasted, in nanoseconds.
    pub waited_ns: u64,
    /// Index of the signal word, in words from the start of the rank's symmetric memory.
    pub word: u32,
    /// The other rank, where there is one.
    pub peer: Option<u32>,
    /// What that rank launched in place of this kernel.
    pub instead: Option<String>,
    /// What happened to that rank, where it is of another host, or its network has failed.
    pub there: Option<String>,
    /// The records of other ranks.
    pub others: Vec<Fault>,
}

impl Fault {
    /// Puts a record into the words of the kernel that wrote it.
    pub fn from_record(source: &KernelSource, record: &FaultRecord) -> Fault {
        Fault {
            kernel: source.name.clone(),
            rank: record.rank,
            cause: FaultKind::from_u32(record.kind)
                .map_or(FaultCause::Unknown(record.kind), FaultCause::Known),
            cta: record.cta,
            role: source
                .roles
                .iter()
                .find(|r| record.cta.wrapping_sub(r.first_cta) < r.ctas)
                .map(|r| r.name.clone()),
            edge: record.edge,
            edge_text: source.edges.iter().find(|e| e.id == record.edge).map(|e| e.text.clone()),
            tile: record.tile,
            epoch: record.epoch,
            expected: record.expected,
            seen: record.seen,
            waited_ns: record.waited_ns,
            word: record.word,
            peer: (record.peer != u32::MAX).then_some(record.peer),
            instead: None,
            there: None,
            others: Vec::new(),
        }
    }

    /// One fault out of the records of several ranks: a rank that only followed a peer's abort is not the cause.
    pub(crate) fn merge(mut faults: Vec<Fault>) -> Option<Fault> {
        let follower = FaultCause::Known(FaultKind::PeerAborted);
        let first = faults.iter().position(|f| f.cause != follower).unwrap_or(0);
        if faults.is_empty() {
            return None;
        }
        let mut cause = faults.remove(first);
        cause.others = faults;
        Some(cause)
    }

    fn waited_at(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tile {} waited {} at ", self.tile, duration(self.waited_ns))?;
        self.at_edge(f)
    }

    fn at_edge(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.edge)?;
        match &self.edge_text {
            Some(text) => write!(f, " ({text})"),
            None => Ok(()),
        }
    }

    /// What a rank that follows another's failure was doing; one that had just started did nothing yet.
    fn where_it_stood(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.expected == 0 && self.seen == 0 {
            return Ok(());
        }
        self.waited_at(f)?;
        write!(f, " when ")
    }

    fn peer_name(&self) -> String {
        self.peer.map_or_else(|| "a peer".into(), |p| format!("rank {p}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}, rank {}, ", self.kernel, self.rank)?;
        if let Some(role) = &self.role {
            write!(f, "role {role}, ")?;
        }
        write!(f, "CTA {}, epoch {}: ", self.cta, self.epoch)?;
        match self.cause {
            FaultCause::Known(FaultKind::WaitTimeout) => {
                self.waited_at(f)?;
                write!(
                    f,
                    " for word {} to reach {}, and last saw {}",
                    self.word, self.expected, self.seen
                )?;
                if let Some(peer) = self.peer {
                    write!(f, "; the producer is rank {peer}")?;
                }
            }
            FaultCause::Known(FaultKind::EntryTimeout) => {
                self.waited_at(f)?;
                write!(
                    f,
                    ": {} did not enter the launch within {} (expected {}, saw {}): it launched nothing, or another \
                     kernel, of other shapes or in another order",
                    self.peer_name(),
                    duration(self.waited_ns),
                    self.expected,
                    self.seen
                )?;
            }
            FaultCause::NotStarted => {
                self.waited_at(f)?;
                write!(
                    f,
                    ": {} launched it, too, but its GPU did not start it within {}: kernels of others hold SMs there \
                     or stand before it in its stream. If they wait for this rank in turn, as NCCL's do on another \
                     stream, keep SMs free for them: reserve_sms (in Python reserve_sms=\"nccl\")",
                    self.peer_name(),
                    duration(self.waited_ns)
                )?;
            }
            FaultCause::Known(FaultKind::PlanMismatch) => {
                self.at_edge(f)?;
                write!(
                    f,
                    ": {} entered with another plan or other per-launch values (hash {:08x} here, {:08x} there)",
                    self.peer_name(),
                    self.expected,
                    self.seen
                )?;
            }
            FaultCause::Known(FaultKind::PeerAborted) => {
                self.where_it_stood(f)?;
                write!(f, "{} set the abort flag", self.peer_name())?;
                if let Some(there) = &self.there {
                    write!(f, ": {there}")?;
                }
            }
            FaultCause::Known(FaultKind::FifoFull) => {
                self.at_edge(f)?;
                write!(
                    f,
                    ": the proxy took no command for {} ({} of {} places seen free), the next one for {}",
                    duration(self.waited_ns),
                    self.seen,
                    self.expected,
                    self.peer_name()
                )?;
            }
            FaultCause::Known(FaultKind::NegativeRows) => write!(
                f,
                "expert {} of this rank has {} rows: counts are 0 or more",
                self.tile, self.seen as i32
            )?,
            FaultCause::Known(FaultKind::Capacity) => write!(
                f,
                "the rows of this rank's experts take {} blocks or more, and the capacity is {}: nothing was written \
                 past it. Give the rows a larger capacity",
                self.seen, self.expected
            )?,
            FaultCause::Known(FaultKind::ExpertOutside) => write!(
                f,
                "token {} goes to expert {}, and there are {}: name one of 0 to {}, or -1 for none",
                self.tile,
                self.waited_ns as i64,
                self.expected,
                self.expected.saturating_sub(1)
            )?,
            FaultCause::Known(FaultKind::ExpertTwice) => write!(
                f,
                "token {} goes to expert {} twice: name each expert once",
                self.tile, self.seen
            )?,
            FaultCause::Known(FaultKind::Documents) => write!(
                f,
                "entry {} of where documents begin is {}, and may be {}..={}: let the first one be 0, and all ascend \
                 to the number of tokens",
                self.tile, self.seen as i32, self.expected as i32, self.waited_ns
            )?,
            FaultCause::PeerGone => {
                self.where_it_stood(f)?;
                write!(f, "the process of {} is gone", self.peer_name())?;
            }
            FaultCause::OtherLaunch => {
                self.where_it_stood(f)?;
                let instead = self.instead.as_deref().unwrap_or("another kernel");
                write!(
                    f,
                    "{} launched {instead} in its place; every rank must launch the same kernels in the same order",
                    self.peer_name()
                )?;
            }
            FaultCause::Known(FaultKind::ConcurrentUse) => write!(
                f,
                "the instance was launched while it was still running ({} CTAs inside, {} belong)",
                self.seen, self.expected
            )?,
            FaultCause::Unknown(kind) => write!(f, "fault of unknown kind {kind}")?,
        }
        for other in &self.others {
            write!(f, "\n  also: {other}")?;
        }
        Ok(())
    }
}

fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_abi::{EdgeInfo, RoleInfo, WorkspaceLayout};

    fn source() -> KernelSource {
        KernelSource {
            name: "ag_gemm".into(),
            cuda: String::new(),
            entry: "ag_gemm".into(),
            arch: "sm_90a".into(),
            options: vec![],
            world_size: 4,
            grid: 132,
            cluster: 1,
            block: 384,
            smem_bytes: 0,
            workspace: WorkspaceLayout::default(),
            tensors: vec![],
            ranks: vec![],
            roles: vec![
                RoleInfo { name: "compute".into(), first_cta: 0, ctas: 116 },
                RoleInfo { name: "intra_comm".into(), first_cta: 116, ctas: 16 },
            ],
            edges: vec![EdgeInfo {
                id: 7,
                text: "fam1 gemm.remote, loader: wait sig1 \"arrived\" >= 8".into(),
            }],
            spill_bytes: 0,
            plan_hash: 1,
            trace: None,
            host: None,
            net: None,
            runtime_dims: vec![],
            cooperative: true,
            meets: true,
        }
    }

    fn record(kind: u32, rank: u32) -> FaultRecord {
        FaultRecord {
            state: 2,
            kind,
            rank,
            cta: 117,
            edge: 7,
            epoch: 3,
            expected: 24,
            seen: 16,
            tile: 42,
            peer: u32::MAX,
            waited_ns: 30_000_000_000,
            word: 300,
            abort: 0,
            reserved: [0; 18],
        }
    }

    #[test]
    fn a_timeout_names_role_edge_and_counters() {
        let fault = Fault::from_record(&source(), &record(1, 2));
        assert_eq!(
            fault.to_string(),
            "kernel ag_gemm, rank 2, role intra_comm, CTA 117, epoch 3: tile 42 waited 30.0 s at e7 \
             (fam1 gemm.remote, loader: wait sig1 \"arrived\" >= 8) for word 300 to reach 24, and last saw 16"
        );
    }

    #[test]
    fn the_cause_is_the_rank_that_did_not_merely_follow() {
        let source = source();
        let mut follower = record(4, 0);
        follower.peer = 2;
        let records = [follower, record(1, 2)];
        let faults = records.iter().map(|r| Fault::from_record(&source, r)).collect();
        let Some(fault) = Fault::merge(faults) else { panic!("two records make one fault") };
        assert_eq!((fault.rank, fault.others.len()), (2, 1));
        assert!(
            fault
                .to_string()
                .ends_with("also: kernel ag_gemm, rank 0, role intra_comm, CTA 117, epoch 3: tile 42 waited 30.0 s at \
                 e7 (fam1 gemm.remote, loader: wait sig1 \"arrived\" >= 8) when rank 2 set the abort flag")
        );
    }

    /// As a launch with `reserve_sms=0` ends beside NCCL.
    #[test]
    fn a_launch_that_others_keep_from_starting_says_what_to_reserve() {
        let mut fault = Fault::from_record(&source(), &FaultRecord { peer: 1, ..record(2, 0) });
        fault.cause = FaultCause::NotStarted;
        assert_eq!(
            fault.to_string(),
            "kernel ag_gemm, rank 0, role intra_comm, CTA 117, epoch 3: tile 42 waited 30.0 s at e7 (fam1 gemm.remote, \
             loader: wait sig1 \"arrived\" >= 8): rank 1 launched it, too, but its GPU did not start it within 30.0 s: \
             kernels of others hold SMs there or stand before it in its stream. If they wait for this rank in turn, as \
             NCCL's do on another stream, keep SMs free for them: reserve_sms (in Python reserve_sms=\"nccl\")"
        );
    }

    #[test]
    fn records_that_nobody_listed_still_read() {
        let mut r = record(99, 1);
        r.cta = 999;
        r.edge = 1000;
        let text = Fault::from_record(&source(), &r).to_string();
        assert_eq!(text, "kernel ag_gemm, rank 1, CTA 999, epoch 3: fault of unknown kind 99");
    }

    #[test]
    fn every_kind_reads() {
        let source = source();
        let text = |kind: u32| {
            let mut r = record(kind, 0);
            r.peer = 3;
            Fault::from_record(&source, &r).to_string()
        };
        assert!(text(1).ends_with("the producer is rank 3"));
        assert!(text(2).contains("rank 3 did not enter the launch within 30.0 s"));
        assert!(text(3).contains("hash 00000018 here, 00000010 there"));
        assert!(text(5).contains("still running"));
        // All 64 bits of the id.
        let far = FaultRecord { waited_ns: 4_294_967_299, ..record(9, 0) };
        let far = Fault::from_record(&source, &far).to_string();
        assert!(
            far.contains(
                "token 42 goes to expert 4294967299, and there are 24: name one of 0 to 23"
            )
        );
        assert!(text(10).contains("token 42 goes to expert 16 twice"));
        let mut told = Fault::from_record(&source, &FaultRecord { peer: 3, ..record(4, 0) });
        told.there = Some("e9: nothing came".into());
        assert!(told.to_string().ends_with("rank 3 set the abort flag: e9: nothing came"));
    }
}

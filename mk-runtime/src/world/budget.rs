//! How many SMs a rank's kernel may take where ranks share GPUs.

/// What the ranks of a world have of their GPUs. A plan is one for all ranks, so that the smallest share counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SmShares {
    /// SMs of each rank's GPU, as the driver reports them, and how many ranks of the world have that GPU.
    by_rank: Vec<(u32, u32)>,
}

impl SmShares {
    /// Of ranks with these GPUs: what tells one from another, and its SMs.
    pub(super) fn new<T: PartialEq>(gpus: &[(T, u32)]) -> SmShares {
        let sharing = |gpu: &T| gpus.iter().filter(|(other, _)| other == gpu).count() as u32;
        SmShares { by_rank: gpus.iter().map(|(gpu, sms)| (*sms, sharing(gpu))).collect() }
    }

    /// Whether several ranks have one GPU.
    pub(super) fn any_shared(&self) -> bool {
        self.by_rank.iter().any(|(_, ranks)| *ranks > 1)
    }

    /// SMs of the rank with the smallest share, when `reserved` SMs of every GPU stay free for others.
    pub(super) fn budget(&self, reserved: u32) -> u32 {
        let share = |(sms, ranks): &(u32, u32)| sms.saturating_sub(reserved) / (*ranks).max(1);
        self.by_rank.iter().map(share).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::SmShares;

    #[test]
    fn ranks_that_share_a_gpu_share_its_sms() {
        let budget = |gpus: &[(i32, u32)]| SmShares::new(gpus).budget(0);
        assert_eq!(budget(&[(0, 132), (1, 132)]), 132);
        assert_eq!(budget(&[(0, 132); 3]), 44);
        assert_eq!(budget(&[(0, 132); 4]), 33);
        assert_eq!(budget(&[(0, 114); 4]), 28);
        // Rank 2 alone has more than it can use: the plan is that of ranks 0 and 1.
        assert_eq!(budget(&[(0, 132), (0, 132), (1, 132)]), 66);
        assert_eq!(budget(&[(0, 132), (1, 114)]), 114);
        let shared = |gpus: &[(i32, u32)]| SmShares::new(gpus).any_shared();
        assert!(shared(&[(0, 132), (1, 132), (0, 132)]) && !shared(&[(0, 132), (1, 132)]));
    }

    #[test]
    fn sms_of_others_are_nobodys() {
        let shares = SmShares::new(&[(0, 132); 3]);
        assert_eq!([0, 12, 131, 132, 500].map(|n| shares.budget(n)), [44, 40, 0, 0, 0]);
    }
}

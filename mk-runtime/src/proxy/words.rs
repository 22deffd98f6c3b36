//! When a host sets a net flag: epochs in their order, each once, whatever order the network reports them in.
//!
//! A flag is set once in a launch, to the launch's epoch. An immediate carries six bits of an epoch: no two launches
//! under way at once differ by as much, because a rank sends for a launch only to peers that have entered it.

/// Bits of an epoch in an immediate.
const EPOCH_BITS: u32 = 6;
const EPOCHS: u32 = 1 << EPOCH_BITS;
/// Epochs that a report may be ahead of the word. Others are taken for late ones.
const AHEAD: u32 = EPOCHS / 2;
/// Bits of a word's number in an immediate.
const WORD_BITS: u32 = 20;
/// Instances that immediates tell apart.
const INSTANCES: u32 = 1 << (32 - EPOCH_BITS - WORD_BITS);

/// What an immediate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Immediate {
    /// Modulo [`INSTANCES`].
    pub instance: u32,
    /// Modulo [`EPOCHS`].
    pub epoch: u32,
    pub word: u32,
}

impl Immediate {
    /// None for a flag whose number does not fit.
    pub fn new(instance: u32, epoch: u32, word: u32) -> Option<Immediate> {
        (word < 1 << WORD_BITS).then_some(Immediate {
            instance: instance % INSTANCES,
            epoch: epoch % EPOCHS,
            word,
        })
    }

    pub fn to_bits(self) -> u32 {
        self.instance << (EPOCH_BITS + WORD_BITS) | self.epoch << WORD_BITS | self.word
    }

    pub fn from_bits(bits: u32) -> Immediate {
        Immediate {
            instance: bits >> (EPOCH_BITS + WORD_BITS),
            epoch: bits >> WORD_BITS & (EPOCHS - 1),
            word: bits & ((1 << WORD_BITS) - 1),
        }
    }

    /// Whether it is of this instance.
    pub fn is_of(self, instance: u32) -> bool {
        self.instance == instance % INSTANCES
    }
}

/// A flag that a host sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word {
    /// Its value.
    raised: u32,
    /// Bit k: epoch `raised + 1 + k` was reported.
    reported: u64,
}

/// What a report means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The flag is to be set to this epoch.
    Raise(u32),
    /// Epochs before it are missing.
    Early,
    /// It was reported before, or is of an epoch long gone.
    Late,
}

impl Word {
    /// A report of which the last bits of the epoch are known.
    pub fn report(&mut self, epoch: u32) -> Report {
        let ahead = epoch.wrapping_sub(self.raised.wrapping_add(1)) % EPOCHS;
        if ahead >= AHEAD || self.reported >> ahead & 1 != 0 {
            return Report::Late;
        }
        self.reported |= 1 << ahead;
        if ahead > 0 {
            return Report::Early;
        }
        let run = self.reported.trailing_ones();
        self.reported = self.reported.checked_shr(run).unwrap_or(0);
        self.raised = self.raised.wrapping_add(run);
        Report::Raise(self.raised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_say_what_they_were_made_of() {
        for (instance, epoch, word) in [(0, 0, 0), (63, 63, (1 << 20) - 1), (70, 129, 77)] {
            let made = Immediate::new(instance, epoch, word).unwrap();
            assert_eq!(Immediate::from_bits(made.to_bits()), made);
            assert!(made.is_of(instance) && !made.is_of(instance + 1));
        }
        assert_eq!(Immediate::new(0, 0, 1 << 20), None);
    }

    #[test]
    fn epochs_are_raised_in_order_and_once() {
        let mut word = Word::default();
        assert_eq!(word.report(1), Report::Raise(1));
        assert_eq!(word.report(1), Report::Late);
        assert_eq!(word.report(3), Report::Early);
        assert_eq!(word.report(3), Report::Late);
        assert_eq!(word.report(2), Report::Raise(3));
        for epoch in 4..400u32 {
            // As an immediate says it.
            assert_eq!(word.report(epoch % EPOCHS), Report::Raise(epoch));
            assert_eq!(word.report((epoch - 1) % EPOCHS), Report::Late);
        }
    }

    #[test]
    fn any_order_within_the_window_ends_at_the_last() {
        let mut word = Word::default();
        let mut epochs: Vec<u32> = (1..=AHEAD).collect();
        epochs.reverse();
        let reports: Vec<_> = epochs.iter().map(|e| word.report(*e)).collect();
        assert!(reports[..reports.len() - 1].iter().all(|r| *r == Report::Early));
        assert_eq!(reports.last(), Some(&Report::Raise(AHEAD)));
    }
}

//! What was done to a mutant.

/// Kinds of mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    DropWait,
    DropPost,
    DropCredit,
    DropEntered,
    LowerThreshold,
    RaiseThreshold,
    EpochEarly,
    WaitScope,
    PostScope,
    Completion,
    WaitProxy,
    WaitAgent,
    PostAgent,
    WaitMoved,
    PostMoved,
    SwapWaits,
    PostTwice,
    EachFewer,
    WrongWord,
    WrongRank,
    ShrinkSlots,
    SlotEarly,
    FewerCtas,
    AccessMoved,
    Contributions,
    NodeReach,
}

impl Kind {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::DropWait => "a wait dropped",
            Kind::DropPost => "a post dropped",
            Kind::DropCredit => "a credit dropped",
            Kind::DropEntered => "`entered` not awaited",
            Kind::LowerThreshold => "a threshold lowered",
            Kind::RaiseThreshold => "a threshold raised",
            Kind::EpochEarly => "a wait for the epoch before",
            Kind::WaitScope => "a wait at scope gpu",
            Kind::PostScope => "a post at scope gpu",
            Kind::Completion => "a weaker completion",
            Kind::WaitProxy => "another proxy fence, or none",
            Kind::WaitAgent => "a wait by another agent",
            Kind::PostAgent => "a post by another agent",
            Kind::WaitMoved => "a wait at another point",
            Kind::PostMoved => "a post before the work",
            Kind::SwapWaits => "two waits swapped",
            Kind::PostTwice => "a post of twice as much",
            Kind::EachFewer => "one repetition fewer",
            Kind::WrongWord => "the next word of a signal",
            Kind::WrongRank => "a post to the next rank",
            Kind::ShrinkSlots => "one slot fewer",
            Kind::FewerCtas => "one CTA for a role",
            Kind::AccessMoved => "an access at another point",
            Kind::Contributions => "a read of less",
            Kind::NodeReach => "another node reached without a send",
            Kind::SlotEarly => "a slot reused an epoch early",
        }
    }
}

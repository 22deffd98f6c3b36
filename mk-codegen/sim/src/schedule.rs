//! Who goes next: the adversary.

use super::error::{Result, SimError};
use mk_plan::{Agent, FamId, Task};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{fmt, str::FromStr};

/// An order of steps and deliveries. What is random follows the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Any agent that can go on, any delivery that is due; the seed also says how long deliveries linger.
    Random,
    /// The last agent of the last CTA of the last rank first; deliveries only when all agents wait, the newest first.
    Reversed,
    /// One rank moves only when all others wait.
    Starve(usize),
    /// One rank runs ahead as far as the plan lets it, then the next.
    EpochApart,
    /// The network delivers only when nothing else can move, in any order that its class allows.
    Srd,
    /// One agent of some tasks, and what it has issued, moves only when nothing else can.
    Withhold(Victim),
}

/// Whom [`Schedule::Withhold`] holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its rank.
    pub rank: usize,
    /// The family of its tasks.
    pub family: FamId,
    /// Which agent of them.
    pub agent: Agent,
    /// Only the task of this number in its family.
    pub task: Option<i64>,
    /// Only in this epoch.
    pub epoch: Option<i64>,
}

impl Victim {
    /// Whether an agent of a task is held back.
    pub(super) fn is(&self, task: &Task, agent: Agent) -> bool {
        (task.rank(), task.family, agent) == (self.rank, self.family, self.agent)
            && self.task.is_none_or(|t| t == task.linear())
            && self.epoch.is_none_or(|e| e == task.epoch())
    }
}

impl Schedule {
    /// Every schedule that makes sense for a number of ranks.
    pub fn all(world: usize) -> Vec<Schedule> {
        let mut all =
            vec![Schedule::Random, Schedule::Reversed, Schedule::EpochApart, Schedule::Srd];
        all.extend((0..world).map(Schedule::Starve));
        all
    }
}

impl Schedule {
    /// Whether an agent of a task is to be held back.
    pub(super) fn holds(&self, task: &Task, agent: Agent) -> bool {
        matches!(self, Schedule::Withhold(v) if v.is(task, agent))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Random => f.write_str("random"),
            Schedule::Reversed => f.write_str("reversed"),
            Schedule::Starve(rank) => write!(f, "starve:{rank}"),
            Schedule::EpochApart => f.write_str("epoch_apart"),
            Schedule::Srd => f.write_str("srd"),
            Schedule::Withhold(v) => {
                write!(f, "withhold:{}:{}:{}", v.rank, v.family, v.agent)?;
                v.task.map_or(Ok(()), |t| write!(f, ":task {t}"))?;
                v.epoch.map_or(Ok(()), |e| write!(f, ":epoch {e}"))
            }
        }
    }
}

/// A text that names no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a schedule: random, reversed, starve:RANK, epoch_apart or srd")]
pub struct ScheduleError(String);

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Schedule, ScheduleError> {
        match text {
            "random" => Ok(Schedule::Random),
            "reversed" => Ok(Schedule::Reversed),
            "epoch_apart" => Ok(Schedule::EpochApart),
            "srd" => Ok(Schedule::Srd),
            _ => text
                .strip_prefix("starve:")
                .and_then(|rank| rank.parse().ok())
                .map(Schedule::Starve)
                .ok_or_else(|| ScheduleError(text.into())),
        }
    }
}

/// Something that moves when it is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Actor {
    /// Begins a rank's next launch.
    Launch { rank: usize },
    /// An agent of a rank's kernel, by number.
    Agent { rank: usize, agent: usize },
    /// The thread that reads a rank's fifo.
    Sender { rank: usize },
}

impl Actor {
    fn rank(self) -> usize {
        match self {
            Actor::Launch { rank } | Actor::Agent { rank, .. } | Actor::Sender { rank } => rank,
        }
    }
}

/// A delivery that is due at any time: its number, in order of issue, and what the adversary may know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub id: u64,
    /// The rank that issued it.
    pub rank: usize,
    /// Whether it is the network's.
    pub network: bool,
    /// Whether who issued it is to be held back.
    pub held: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    Actor(Actor),
    Delivery(u64),
}

/// Classes of what can move: the lowest that is there goes first, at random within it.
#[derive(Clone, Copy)]
struct Preference {
    schedule: Schedule,
    /// The rank that leads, under [`Schedule::EpochApart`].
    leader: usize,
    world: usize,
}

impl Preference {
    fn of(self, rank: usize, network: bool, held: bool) -> usize {
        match self.schedule {
            Schedule::Random | Schedule::Reversed => 0,
            Schedule::Withhold(_) => usize::from(held),
            Schedule::Starve(starved) => usize::from(rank == starved),
            Schedule::EpochApart => (rank + self.world - self.leader) % self.world,
            Schedule::Srd => usize::from(network),
        }
    }
}

/// Where in a list a class stands.
fn places(classes: impl Iterator<Item = usize>, class: usize) -> Vec<usize> {
    classes.enumerate().filter(|(_, c)| *c == class).map(|(i, _)| i).collect()
}

/// What can move, and the choice among it.
pub(super) struct Chooser {
    preference: Preference,
    rng: SmallRng,
    /// Share of turns that deliveries get while agents can move, of 16.
    eagerness: u32,
    actors: Vec<Actor>,
    due: Vec<Due>,
}

impl Chooser {
    pub fn new(schedule: Schedule, seed: u64, world: usize) -> Result<Chooser> {
        if let Schedule::Starve(rank) = schedule
            && rank >= world
        {
            return Err(SimError::NoSuchRank { schedule: schedule.to_string(), world });
        }
        let mut rng = SmallRng::seed_from_u64(seed);
        let eagerness = [0, 1, 4, 12][rng.random_range(0..4)];
        let leader = rng.random_range(0..world);
        Ok(Chooser {
            preference: Preference { schedule, leader, world },
            rng,
            eagerness,
            actors: Vec::new(),
            due: Vec::new(),
        })
    }

    /// Which CTA takes the next task of a dynamic schedule. Each runs its tasks in order.
    pub fn taker(&mut self, ctas: usize) -> usize {
        self.rng.random_range(0..ctas)
    }

    pub fn ready(&mut self, actor: Actor) {
        self.actors.push(actor);
    }

    pub fn due(&mut self, due: Due) {
        self.due.push(due);
    }

    /// The schedule.
    pub fn schedule(&self) -> Schedule {
        self.preference.schedule
    }

    /// Takes out what goes next. A delivery may have been forced meanwhile; then it is nothing. `held` says of an agent
    /// that it is the one to be held back.
    pub fn next(&mut self, held: &dyn Fn(Actor) -> bool) -> Option<Choice> {
        if self.preference.schedule == Schedule::Reversed {
            return self.newest();
        }
        let class = self.preference;
        let of_actor = |a: &Actor| class.of(a.rank(), false, held(*a));
        let of_due = |d: &Due| class.of(d.rank, d.network, d.held);
        let best = self.actors.iter().map(of_actor).chain(self.due.iter().map(of_due)).min()?;
        let actors = places(self.actors.iter().map(of_actor), best);
        let due = places(self.due.iter().map(of_due), best);
        let deliver =
            actors.is_empty() || (!due.is_empty() && self.rng.random_range(0..16) < self.eagerness);
        if deliver {
            let i = due[self.rng.random_range(0..due.len())];
            return Some(Choice::Delivery(self.due.swap_remove(i).id));
        }
        let i = actors[self.rng.random_range(0..actors.len())];
        Some(Choice::Actor(self.actors.swap_remove(i)))
    }

    fn newest(&mut self) -> Option<Choice> {
        let last = (0..self.actors.len()).max_by_key(|i| self.actors[*i]);
        if let Some(i) = last {
            return Some(Choice::Actor(self.actors.swap_remove(i)));
        }
        let last = (0..self.due.len()).max_by_key(|i| self.due[*i].id)?;
        Some(Choice::Delivery(self.due.swap_remove(last).id))
    }
}

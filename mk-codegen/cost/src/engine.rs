//! The event loop: lanes, words and shared resources.
//!
//! A resource gives each flow that is at it an equal part. It is kept in *virtual time*: the bytes that a flow present
//! from the beginning would have moved. A flow that comes at virtual time `v` with `b` bytes is through at `v + b`,
//! whoever else comes and goes, so that one heap per resource suffices. A flow stays present until it has ended by its
//! own rate, too.
//!
//! A tile has three parts: its steps (`Main`), its epilogue, and its store, which goes on under the next tile's steps.
//! One store at a time leaves a lane.

use super::{
    CostError, Result,
    model::DeviceModel,
    work::{Give, Job, Kind, Out, RESOURCES, Reach, Tile, Work, is_card, is_link},
};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// Two bounds that are near each other are not reached both: `(a^p + b^p)^(1/p)`. Copies to peers by 1 to 64 SMs follow
/// `p = 3` within a few percent (docs/cost-model.md).
pub(super) fn soft_max(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low <= 0.0 || high > 8.0 * low {
        return high;
    }
    let ratio = low / high;
    high * (1.0 + ratio * ratio * ratio).cbrt()
}

/// When a job ran, and what it waited for last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// When its lane was free for it.
    pub free: f64,
    /// When its work began.
    pub begin: f64,
    /// When its steps, or all of a copy or sum, had ended.
    pub main_end: f64,
    /// When its store had ended.
    pub end: f64,
    /// The job whose end, or whose post, let it begin.
    pub after: Option<u32>,
    /// Whether that was a post.
    pub by_post: bool,
}

const NEVER: Ran = Ran {
    free: f64::NAN,
    begin: f64::NAN,
    main_end: f64::NAN,
    end: f64::NAN,
    after: None,
    by_post: false,
};

/// A time of the event queue.
#[derive(Clone, Copy, PartialEq)]
struct At(f64);
impl Eq for At {}
impl PartialOrd for At {
    fn partial_cmp(&self, other: &At) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for At {
    fn cmp(&self, other: &At) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A flow ends: index of the flow in the run.
    Ends(u32),
    /// The lane's head begins.
    Begin(u32),
    /// Steps of the lane's running tile end without flows.
    Main(u32),
    /// The lane may take its next task.
    Free(u32),
    /// A tile's store is finished: lane and job.
    Stored(u32, u32),
    /// A post arrives: word, what it adds, job.
    Post(u32, i32, u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Main,
    Store,
}

struct Active {
    lane: u32,
    job: u32,
    part: Part,
    resource: u32,
    begin: f64,
    alone_s: f64,
}

struct Resource {
    rate: f64,
    present: u32,
    virtual_now: f64,
    at: f64,
    heap: BinaryHeap<Reverse<(At, u32)>>,
    /// When its first flow will be through, as things are, and the number of that event. Each flow that comes or goes
    /// changes it: in the queue most of these would be out of date.
    through: Option<(At, u32)>,
}

impl Resource {
    fn advance(&mut self, now: f64) {
        if self.present > 0 {
            self.virtual_now += (now - self.at) * self.rate / f64::from(self.present);
        }
        self.at = now;
    }
}

struct LaneState {
    /// Next job.
    next: usize,
    end: usize,
    /// When the lane became free for it.
    free: f64,
    /// When loads for it could begin.
    load: f64,
    ready: bool,
    /// Parts of the running job's main phase that have not ended.
    left: u32,
    running: u32,
    /// Conditions of the running tile that keep the lane: its epilogue, and room for it.
    holds: u32,
    storing: bool,
    /// Tile whose store waits for the one before.
    queued: Option<u32>,
    last: Option<u32>,
}

struct Run<'w> {
    work: &'w Work,
    model: &'w DeviceModel,
    now: f64,
    events: BinaryHeap<Reverse<(At, u32, Event)>>,
    serial: u32,
    /// The resource whose first flow is through before those of others.
    soonest: Option<u32>,
    resources: Vec<Resource>,
    flows: Vec<Active>,
    lanes: Vec<LaneState>,
    value: Vec<i64>,
    arrived: Vec<(f64, u32)>,
    sleepers: Vec<Vec<u32>>,
    ran: Vec<Ran>,
}

/// Runs all lanes to their end.
pub(super) fn run(work: &Work, model: &DeviceModel) -> Result<Vec<Ran>> {
    let resource = |i: u32| Resource {
        rate: match i {
            i if is_link(i) => model.link_bytes_per_s,
            i if is_card(i) => model.card_bytes_per_s,
            _ => model.hbm_bytes_per_s,
        },
        present: 0,
        virtual_now: 0.0,
        at: 0.0,
        heap: BinaryHeap::new(),
        through: None,
    };
    let lane = |l: &super::work::Lane| LaneState {
        next: l.jobs.start,
        end: l.jobs.end,
        free: work.begin_s,
        load: work.begin_s,
        ready: true,
        left: 0,
        running: 0,
        holds: 0,
        storing: false,
        queued: None,
        last: None,
    };
    let mut run = Run {
        work,
        model,
        now: 0.0,
        events: BinaryHeap::new(),
        serial: 0,
        soonest: None,
        resources: (0..RESOURCES * work.ranks as u32).map(resource).collect(),
        flows: Vec::new(),
        lanes: work.lanes.iter().map(lane).collect(),
        value: vec![0; work.words],
        arrived: vec![(0.0, u32::MAX); work.words],
        sleepers: vec![Vec::new(); work.words],
        ran: vec![NEVER; work.jobs.len()],
    };
    for lane in 0..run.lanes.len() {
        run.head(lane);
    }
    while run.step() {}
    let waiting = run.lanes.iter().filter(|l| l.next < l.end).count();
    if waiting > 0 {
        return Err(CostError::Stuck { waiting });
    }
    Ok(run.ran)
}

impl Run<'_> {
    /// The next event, in the order of times and then of numbers; false where there is none.
    fn step(&mut self) -> bool {
        let queued = self.events.peek().map(|Reverse((at, serial, _))| (*at, *serial));
        let through = self.soonest.and_then(|r| Some((self.resources[r as usize].through?, r)));
        match (queued, through) {
            (queued, Some((first, resource))) if queued.is_none_or(|q| first < q) => {
                self.now = first.0.0;
                self.through(resource);
            }
            _ => {
                let Some(Reverse((At(at), _, event))) = self.events.pop() else { return false };
                self.now = at;
                self.handle(event);
            }
        }
        true
    }

    fn push(&mut self, at: f64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((At(at.max(self.now)), self.serial, event)));
    }

    fn job(&self, job: u32) -> &Job {
        &self.work.jobs[job as usize]
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ends(flow) => self.ends(flow),
            Event::Begin(lane) => self.begin(lane as usize),
            Event::Main(lane) => self.main_part(lane as usize),
            Event::Free(lane) => self.release(lane as usize),
            Event::Stored(lane, job) => self.stored(lane as usize, job),
            Event::Post(word, add, job) => {
                let w = word as usize;
                self.value[w] += i64::from(add);
                self.arrived[w] = (self.now, job);
                for lane in std::mem::take(&mut self.sleepers[w]) {
                    self.head(lane as usize);
                }
            }
        }
    }

    /// Looks whether the next job of a free lane may begin, and when.
    fn head(&mut self, lane: usize) {
        let l = &self.lanes[lane];
        if !l.ready || l.next >= l.end {
            return;
        }
        let job = &self.work.jobs[l.next];
        let mut last = (0.0, u32::MAX);
        for need in &self.work.waits[job.waits.clone()] {
            let w = need.word as usize;
            if self.value[w] < need.count {
                self.sleepers[w].push(lane as u32);
                return;
            }
            if self.arrived[w].0 > last.0 {
                last = self.arrived[w];
            }
        }
        let (free, load) = (l.free, l.load);
        let begin = match &job.kind {
            // Operands are asked for when the wait has ended and the ring has room.
            Kind::Tile(_) => free.max(load.max(last.0) + self.model.fill_s),
            Kind::Signal | Kind::Move => free.max(last.0),
        };
        let by_post = last.1 != u32::MAX && last.0 > load.max(free - self.model.fill_s);
        let after = if by_post { Some(last.1) } else { l.last };
        let next = l.next;
        self.ran[next] = Ran { free, begin, after, by_post, ..NEVER };
        self.lanes[lane].ready = false;
        self.push(begin, Event::Begin(lane as u32));
    }

    fn begin(&mut self, lane: usize) {
        let job = self.lanes[lane].next as u32;
        let l = &mut self.lanes[lane];
        l.next += 1;
        l.running = job;
        let work = self.work;
        let j = &work.jobs[job as usize];
        self.ran[job as usize].begin = self.now;
        if matches!(j.kind, Kind::Signal) {
            self.ran[job as usize].main_end = self.now;
            self.finish(job);
            self.lanes[lane].holds = 1;
            self.release(lane);
            return;
        }
        self.lanes[lane].left = j.main_flows.len() as u32 + 1;
        for flow in &work.flows[j.main_flows.clone()] {
            self.join(lane, job, Part::Main, flow.resource, flow.bytes, j.main_s);
        }
        self.push(self.now + j.main_s, Event::Main(lane as u32));
    }

    /// A flow comes to a resource.
    fn join(&mut self, lane: usize, job: u32, part: Part, resource: u32, bytes: f64, alone_s: f64) {
        let flow = self.flows.len() as u32;
        let active = Active { lane: lane as u32, job, part, resource, begin: self.now, alone_s };
        self.flows.push(active);
        let r = &mut self.resources[resource as usize];
        r.advance(self.now);
        r.present += 1;
        let target = r.virtual_now + bytes;
        r.heap.push(Reverse((At(target), flow)));
        self.expect(resource);
    }

    /// Says when the first flow of a resource will be through, as things are.
    fn expect(&mut self, resource: u32) {
        let now = self.now;
        let r = &mut self.resources[resource as usize];
        r.through = r.heap.peek().map(|Reverse((At(target), _))| {
            let seconds = (target - r.virtual_now).max(0.0) * f64::from(r.present.max(1)) / r.rate;
            self.serial += 1;
            (At((now + seconds).max(now)), self.serial)
        });
        let through = |i: u32| self.resources[i as usize].through;
        let before = |a: u32, b: u32| match (through(a), through(b)) {
            (Some(a), Some(b)) => a < b,
            (a, _) => a.is_some(),
        };
        self.soonest = match self.soonest {
            // It may come later than another one now.
            Some(first) if first == resource => {
                (0..self.resources.len() as u32).reduce(|a, b| if before(b, a) { b } else { a })
            }
            Some(first) if !before(resource, first) => Some(first),
            _ => Some(resource),
        };
    }

    fn through(&mut self, resource: u32) {
        let r = &mut self.resources[resource as usize];
        r.advance(self.now);
        let Some(Reverse((At(target), flow))) = r.heap.pop() else { return };
        r.virtual_now = r.virtual_now.max(target);
        let f = &self.flows[flow as usize];
        let ends = f.begin + soft_max(f.alone_s, self.now - f.begin);
        self.push(ends, Event::Ends(flow));
        self.expect(resource);
    }

    fn ends(&mut self, flow: u32) {
        let Active { lane, job, part, resource, .. } = self.flows[flow as usize];
        let lane = lane as usize;
        let r = &mut self.resources[resource as usize];
        r.advance(self.now);
        r.present -= 1;
        self.expect(resource);
        match part {
            Part::Main => self.main_part(lane),
            Part::Store => {
                // A post follows finished writes only, and the storer waits for them.
                let posts = !self.job(job).posts.is_empty();
                let written = if posts { self.model.written_s } else { 0.0 };
                self.push(self.now + written, Event::Stored(lane as u32, job));
            }
        }
    }

    fn main_part(&mut self, lane: usize) {
        let l = &mut self.lanes[lane];
        l.left -= 1;
        if l.left > 0 {
            return;
        }
        let job = l.running;
        self.ran[job as usize].main_end = self.now;
        let work = self.work;
        match &work.jobs[job as usize].kind {
            Kind::Tile(tile) => self.tile_done(lane, job, tile),
            Kind::Signal | Kind::Move => {
                self.finish(job);
                self.lanes[lane].holds = 1;
                self.release(lane);
            }
        }
    }

    /// The steps of a tile have ended: epilogue, and store.
    fn tile_done(&mut self, lane: usize, job: u32, tile: &Tile) {
        let work = self.work;
        let l = &mut self.lanes[lane];
        l.load = self.now - tile.ahead_s;
        l.holds = 1;
        let hides =
            tile.overlaps && l.next < l.end && matches!(work.jobs[l.next].kind, Kind::Tile(_));
        let epilogue_s = if hides { tile.held_s } else { tile.rate.tile_s };
        self.push(self.now + epilogue_s, Event::Free(lane as u32));
        let Some(out) = tile.out else {
            self.finish(job);
            return;
        };
        let l = &mut self.lanes[lane];
        if l.storing {
            // The staging panels are full until the store before has ended.
            l.holds += 1;
            l.queued = Some(job);
        } else {
            self.store(lane, job, out);
        }
    }

    fn store(&mut self, lane: usize, job: u32, out: Out) {
        self.lanes[lane].storing = true;
        self.join(lane, job, Part::Store, out.flow.resource, out.flow.bytes, out.alone_s);
    }

    fn stored(&mut self, lane: usize, job: u32) {
        self.finish(job);
        self.lanes[lane].storing = false;
        if let Some(next) = self.lanes[lane].queued.take()
            && let Kind::Tile(Tile { out: Some(out), .. }) = &self.job(next).kind
        {
            let out = *out;
            self.store(lane, next, out);
            self.release(lane);
        }
    }

    /// All of a job has ended: its posts leave.
    fn finish(&mut self, job: u32) {
        let now = self.now;
        self.ran[job as usize].end = now;
        let work = self.work;
        let j = &work.jobs[job as usize];
        for Give { word, add, reach } in &work.posts[j.posts.clone()] {
            let flag = match reach {
                Reach::Own => self.model.flag_local_s,
                Reach::Peer => self.model.flag_peer_s,
                Reach::Node => self.model.card_s,
            };
            let add = i32::try_from(*add).unwrap_or(i32::MAX);
            self.push(now + flag, Event::Post(*word, add, job));
        }
    }

    /// One condition less that keeps a lane.
    fn release(&mut self, lane: usize) {
        let now = self.now;
        let l = &mut self.lanes[lane];
        l.holds -= 1;
        if l.holds > 0 {
            return;
        }
        l.free = now;
        if !matches!(self.work.jobs[l.running as usize].kind, Kind::Tile(_)) {
            l.load = now;
        }
        l.last = Some(l.running);
        l.ready = true;
        self.head(lane);
    }
}

#[cfg(test)]
mod tests {
    use super::soft_max;

    #[test]
    fn bounds_that_are_far_apart_do_not_add() {
        assert_eq!(soft_max(1.0, 100.0), 100.0);
        assert_eq!(soft_max(0.0, 3.0), 3.0);
        assert!((soft_max(1.0, 1.0) - 2f64.cbrt()).abs() < 1e-12);
        assert_eq!(soft_max(2.0, 1.0), soft_max(1.0, 2.0));
    }
}

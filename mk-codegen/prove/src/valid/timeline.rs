//! A counterexample as a picture (SVG): the two tasks, agent by agent and point by point, the memory that both touch,
//! and the edge that is missing or too weak. Waits for each other that never end are drawn as a chain.

use super::{
    actor::{Actor, Site},
    canvas::{Canvas, Colour, wrap},
    region,
    report::{Failure, Violation},
};
use mk_plan::{
    Access, Agent, Each, EdgeId, Expr, Family, Mode, Plan, Point, Points, Post, TableSet, Task,
    Var, Wait,
};

const WIDTH: f64 = 1120.0;
const LANE: f64 = 44.0;
const LABEL: f64 = 118.0;
const MARGIN: f64 = 24.0;
/// Between the two tasks.
const GAP: f64 = 86.0;
/// Height of a task's head line.
const HEAD: f64 = 34.0;
/// Characters of a line of text under a picture.
const COLUMNS: usize = 136;
const POINTS: [Point; 3] = [Point::Start, Point::Inner, Point::End];

/// Draws the first violation of a failure, and tells the rest in words.
pub fn timeline(plan: &Plan, failure: &Failure) -> String {
    let mut c = Canvas::new(WIDTH);
    let Some(first) = failure.violations.first() else { return c.finish(MARGIN) };
    let more = match failure.violations.len() - 1 {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    let title = format!("plan {:?}: rule {} is violated{more}", failure.plan, first.rule());
    c.title(MARGIN, MARGIN + 8.0, &title);
    let top = MARGIN + 28.0;
    let bottom = match first {
        Violation::Race { before, after, missing, .. } => {
            let mark = Mark { label: "nothing orders these two".into(), weak: None };
            let y = pair(plan, &mut c, top, before, after, &mark);
            words(&mut c, y, missing)
        }
        Violation::Insufficient { before, after, edge, why, .. } => {
            let mark =
                Mark { label: format!("{edge} is too weak to order these two"), weak: Some(*edge) };
            let y = pair(plan, &mut c, top, before, after, &mark);
            words(&mut c, y, why)
        }
        Violation::WrittenTwice { first, second, common } => {
            let mark = Mark { label: "both write the same elements".into(), weak: None };
            let y = pair(plan, &mut c, top, first, second, &mark);
            words(&mut c, y, &format!("both write {common} in the same epoch and version"))
        }
        Violation::Deadlock { stuck } => chain(&mut c, top, stuck),
        other => words(&mut c, top, &other.to_string()),
    };
    c.finish(bottom + MARGIN)
}

/// What is said between the two tasks, and the edge that is drawn as too weak.
struct Mark {
    label: String,
    weak: Option<EdgeId>,
}

/// Something that an agent does at a point of its task.
struct Item {
    text: String,
    colour: Colour,
    /// Whether it is the access that the counterexample is about.
    chosen: bool,
    /// Whether it is the edge that is too weak.
    weak: bool,
}

fn pair(plan: &Plan, c: &mut Canvas, top: f64, before: &Actor, after: &Actor, mark: &Mark) -> f64 {
    c.widen([before, after].map(|a| needed(plan, a, mark)));
    let (upper, x1) = group(plan, c, top, "must come first", before, mark);
    let lower = upper + GAP;
    let (bottom, x2) = group(plan, c, lower, "must come later", after, mark);
    // The memory that both touch, between the two accesses.
    let touch = [before, after].into_iter().find_map(|a| match a {
        Actor::Task(Site { touch, .. }) => touch.as_ref(),
        Actor::Caller { .. } => None,
    });
    let text = touch.map_or_else(String::new, |t| {
        format!("{} {:?} of rank {} {}", t.buffer, t.buffer_name, t.rank, region::text(&t.region))
    });
    let wide = Canvas::text_width(&text) + 28.0;
    let label = Canvas::text_width(&mark.label);
    let room = c.width() - MARGIN - label - 44.0;
    let right = (x1.min(x2) - 40.0 + wide).max(x1.max(x2) + 40.0);
    let right = right.min(room.max(x1.max(x2) + 20.0));
    let left = (x1.min(x2) - 40.0).min(right - wide).max(MARGIN);
    let (y, height) = (upper + 24.0, GAP - 48.0);
    c.rect(left, y, right - left, height, Colour::Memory, false);
    c.text((left + right - wide) / 2.0 + 14.0, y + height / 2.0 + 4.0, &text, false);
    c.arrow((x1, upper), (x1, y), Colour::Memory, false);
    c.arrow((x2, y + height), (x2, lower), Colour::Memory, false);
    // The edge that should be there.
    let beside = if right <= room {
        (right + 28.0, right + 40.0)
    } else {
        (left - 20.0, left - 32.0 - label)
    };
    c.arrow((beside.0, upper + 2.0), (beside.0, lower - 2.0), Colour::Wrong, true);
    c.note(beside.1, y + height / 2.0 + 4.0, &mark.label);
    bottom
}

/// Draws an actor; returns the lower end, and where the access that it is about stands from left to right.
fn group(
    plan: &Plan,
    c: &mut Canvas,
    top: f64,
    title: &str,
    actor: &Actor,
    mark: &Mark,
) -> (f64, f64) {
    let site = match actor {
        Actor::Task(site) => site,
        Actor::Caller { .. } => {
            let height = HEAD + LANE;
            c.rect(MARGIN, top, c.width() - 2.0 * MARGIN, height, Colour::Group, false);
            c.text(
                MARGIN + 12.0,
                top + 22.0,
                &format!("{title}: the caller, between launches"),
                true,
            );
            let text = actor.to_string();
            let x = MARGIN + LABEL;
            let width = c.pill(x, top + HEAD + 8.0, &text, Colour::Caller, true);
            return (top + height, x + width / 2.0);
        }
    };
    let x = &plan.families[site.family];
    let agents = x.leaf.contract().agents;
    let lanes = lanes(plan, site, mark);
    let columns = columns(&lanes);
    let height = HEAD + 18.0 + LANE * lanes.len() as f64;
    c.rect(MARGIN, top, c.width() - 2.0 * MARGIN, height, Colour::Group, false);
    let tile: Vec<_> = site.tile.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let head = format!(
        "{title}: {} {:?} ({}), rank {}, epoch {}, role {}",
        site.family,
        site.family_name,
        tile.join(", "),
        site.rank,
        site.epoch,
        site.role.1.name()
    );
    c.text(MARGIN + 12.0, top + 22.0, &head, true);
    let mut chosen = MARGIN + LABEL + 30.0;
    let mut left = MARGIN + LABEL;
    for (p, point) in POINTS.iter().enumerate().filter(|p| columns[p.0] > 0.0) {
        c.small(left, top + HEAD + 10.0, &format!("at {}", point.name()));
        for (lane, row) in lanes.iter().enumerate() {
            let y = top + HEAD + 20.0 + LANE * lane as f64;
            let mut at = left;
            for item in &row[p] {
                let w = c.pill(at, y, &item.text, item.colour, item.chosen || item.weak);
                if item.chosen {
                    chosen = at + w / 2.0;
                }
                at += w + 8.0;
            }
        }
        left += columns[p] + 18.0;
    }
    for (lane, agent) in agents.iter().enumerate() {
        let y = top + HEAD + 38.0 + LANE * lane as f64;
        c.text(MARGIN + 12.0, y, agent.name(), false);
        if lane > 0 {
            let flow =
                x.leaf.contract().edges.into_iter().find(|e| e.depth.is_none() && e.to == *agent);
            if let Some(flow) = flow {
                let at = MARGIN + 26.0;
                c.arrow((at, y - LANE + 6.0), (at, y - 14.0), Colour::Quiet, false);
                c.small(at + 8.0, y - LANE / 2.0, flow.name);
            }
        }
    }
    (top + height, chosen)
}

/// What the agents of a site's task do, by agent and point.
fn lanes(plan: &Plan, site: &Site, mark: &Mark) -> Vec<[Vec<Item>; 3]> {
    let x = &plan.families[site.family];
    let one = |a: &Agent| POINTS.map(|p| items(plan, x, site, *a, p, mark));
    x.leaf.contract().agents.iter().map(one).collect()
}

/// How wide the points are.
fn columns(lanes: &[[Vec<Item>; 3]]) -> [f64; 3] {
    let width = |list: &[Item]| list.iter().map(|i| Canvas::pill_width(&i.text) + 8.0).sum::<f64>();
    [0, 1, 2].map(|p| {
        let w = lanes.iter().map(|l| width(&l[p])).fold(0.0, f64::max);
        if w > 0.0 { (w + 12.0).max(76.0) } else { 0.0 }
    })
}

/// The width that an actor's group needs.
fn needed(plan: &Plan, actor: &Actor, mark: &Mark) -> f64 {
    match actor {
        Actor::Task(site) => {
            let used = columns(&lanes(plan, site, mark));
            used.iter().sum::<f64>() + 18.0 * 3.0 + LABEL + 2.0 * MARGIN
        }
        Actor::Caller { .. } => 0.0,
    }
}

/// What an agent does at a point: waits, accesses, posts.
fn items(plan: &Plan, x: &Family, site: &Site, agent: Agent, at: Point, mark: &Mark) -> Vec<Item> {
    let mut out = Vec::new();
    let mut add = |text, colour, chosen, edge: Option<EdgeId>| {
        let weak = edge.is_some() && edge == mark.weak;
        let colour = if weak { Colour::Wrong } else { colour };
        out.push(Item { text, colour, chosen, weak });
    };
    let place = Place::new(plan, x, site);
    for w in x.waits.iter().filter(|w| w.by == agent && w.at == at && place.happens(&w.when)) {
        add(place.wait(w), Colour::Wait, false, Some(w.edge));
    }
    let contract = x.leaf.contract();
    let by = |a: &Access| contract.operand(a.operand).is_some_and(|o| o.agent == agent);
    for a in x.accesses.iter().filter(|a| a.at == at && by(a) && place.happens(&a.when)) {
        let chosen = agent == site.agent
            && site.touch.as_ref().is_some_and(|t| (t.operand, t.buffer) == (a.operand, a.buffer));
        let colour = match a.mode {
            Mode::Read => Colour::Read,
            _ => Colour::Write,
        };
        let text = format!("{} {} {}", a.mode.name(), a.operand, plan.buffers[a.buffer].name);
        add(text, colour, chosen, None);
    }
    for p in x.posts.iter().filter(|p| p.by == agent && p.at == at && place.happens(&p.when)) {
        add(place.post(p), Colour::Post, false, Some(p.edge));
    }
    out
}

/// Evaluates a family's expressions in the task of a site, where they do not depend on run-time tables.
struct Place<'a> {
    plan: &'a Plan,
    family: &'a Family,
    task: Task,
    tables: TableSet,
}

impl<'a> Place<'a> {
    fn new(plan: &'a Plan, family: &'a Family, site: &Site) -> Place<'a> {
        let mut vars = vec![0; usize::from(Var::DOMAIN) + family.domain.len()];
        vars[usize::from(Var::RANK.0)] = site.rank as i64;
        vars[usize::from(Var::EPOCH.0)] = i64::from(site.epoch);
        for (slot, (_, value)) in vars[usize::from(Var::DOMAIN)..].iter_mut().zip(&site.tile) {
            *slot = *value;
        }
        if let Some((_, value)) = site.tile.get(family.domain.len()) {
            vars[usize::from(Var::INNER.0)] = *value;
        }
        let tables = TableSet::new(plan, |_, _| Vec::new());
        Place { plan, family, task: Task { family: site.family, vars }, tables }
    }

    /// Whether a condition holds, as far as can be told for all repetitions.
    fn happens(&self, when: &Option<Expr>) -> bool {
        let points = Points::new(self.plan, &self.tables);
        let told = when.iter().filter(|e| !e.mentions(Var::EACH));
        told.map(|e| points.eval(&self.task, e)).all(|v| v != Ok(0))
    }

    fn value(&self, each: Option<&Each>, e: &Expr) -> String {
        let points = Points::new(self.plan, &self.tables);
        let fixed = each.is_none() || !e.mentions(Var::EACH);
        match points.eval(&self.task, e) {
            Ok(value) if fixed => value.to_string(),
            _ => self.plan.text(Some(self.family), each, e).to_string(),
        }
    }

    fn list(&self, each: Option<&Each>, list: &[Expr]) -> String {
        list.iter().map(|e| self.value(each, e)).collect::<Vec<_>>().join(", ")
    }

    fn wait(&self, w: &Wait) -> String {
        let (index, n) =
            (self.list(w.each.as_ref(), &w.index), self.value(w.each.as_ref(), &w.count));
        let name = &self.plan.signals[w.signal].name;
        let lag = if w.lag > 0 { format!(" lag {}", w.lag) } else { String::new() };
        format!(
            "{} wait {name}[{index}] ≥ {n}{lag}, for {}, {}",
            w.edge,
            w.proxy.name(),
            w.scope.name()
        )
    }

    fn post(&self, p: &Post) -> String {
        let each = p.each.as_ref();
        let (index, rank) = (self.list(each, &p.index), self.value(each, &p.rank));
        let name = &self.plan.signals[p.signal].name;
        format!("{} post {name}[{index}] @ {rank}, {}, {}", p.edge, p.after.name(), p.scope.name())
    }
}

/// Agents that wait for each other, one box under the other.
fn chain(c: &mut Canvas, top: f64, stuck: &[String]) -> f64 {
    let mut y = top;
    let circle = stuck.last().is_some_and(|s| s.contains("circle"));
    let shown = if circle { &stuck[..stuck.len() - 1] } else { stuck };
    let x = MARGIN + 40.0;
    for (i, line) in shown.iter().enumerate() {
        let lines = wrap(line, COLUMNS - 14);
        let height = 16.0 + 17.0 * lines.len() as f64;
        let raises = line.starts_with("which ");
        c.rect(
            x,
            y,
            WIDTH - MARGIN - x,
            height,
            if raises { Colour::Post } else { Colour::Wait },
            false,
        );
        for (n, text) in lines.iter().enumerate() {
            c.text(x + 12.0, y + 20.0 + 17.0 * n as f64, text, false);
        }
        if i + 1 < shown.len() {
            c.arrow((x + 30.0, y + height), (x + 30.0, y + height + 18.0), Colour::Wrong, false);
        }
        y += height + 20.0;
    }
    if circle && !shown.is_empty() {
        let (a, b) = (y - 34.0, top + 18.0);
        let left = MARGIN + 14.0;
        c.line((x, a), (left, a), Colour::Wrong, false);
        c.line((left, a), (left, b), Colour::Wrong, false);
        c.arrow((left, b), (x, b), Colour::Wrong, false);
    }
    y
}

fn words(c: &mut Canvas, top: f64, text: &str) -> f64 {
    let mut y = top + 24.0;
    for line in text.lines().flat_map(|l| wrap(l, COLUMNS)) {
        c.text(MARGIN, y, &line, false);
        y += 18.0;
    }
    y
}

//! Waits and posts of a family, as lines of CUDA.

use super::{EmitError, Result, context::Emitter, spans};
use mk_plan::{
    Agent, CPrinter, Each, Entity, Expr, Family, Point, Post, Proxy, Scope, SigId, Wait,
};

impl Emitter<'_> {
    /// Word of a signal, counted from the start of symmetric memory, as C.
    fn word(&self, f: &Family, each: Option<&Each>, signal: SigId, index: &[Expr]) -> String {
        let shape = &self.plan.signals[signal].shape;
        let mut flat = Expr::Const(0);
        for (e, extent) in index.iter().zip(shape) {
            flat = flat * extent.clone() + e.clone();
        }
        format!("kSig{} + {}", signal.index(), self.c(f, each, &flat))
    }

    fn scope(scope: Scope) -> &'static str {
        match scope {
            Scope::Gpu => "Scope::Gpu",
            Scope::Sys => "Scope::Sys",
        }
    }

    /// Wraps a line in its `when` and its `each`. A copier is a whole warp, whose lanes share the elements of `each`:
    /// their round trips overlap.
    fn wrap(
        &self,
        f: &Family,
        by: Agent,
        each: Option<&Each>,
        when: Option<&Expr>,
        line: String,
    ) -> String {
        let line = match when {
            Some(w) => format!("if ({}) {line}", self.c(f, each, w)),
            None => line,
        };
        let Some(each) = each else { return line };
        let (var, extent) = (&each.var, self.c(f, None, &each.extent));
        let (first, next) = match by {
            Agent::Copier => ("lane_index()", format!("{var} += 32")),
            _ => ("0", format!("++{var}")),
        };
        format!("for (int {var} = {first}; {var} < {extent}; {next}) {line}")
    }

    fn wait(&self, f: &Family, w: &Wait) -> Result<String> {
        let each = w.each.as_ref();
        let edge = w.edge;
        let proxy = match w.proxy {
            Proxy::Async => "Reader::Async",
            Proxy::Generic => "Reader::Generic",
            // The host acts behind the command that the lane writes with release.
            Proxy::Host if w.by == Agent::Issuer => "Reader::Generic",
            Proxy::Host => {
                return EmitError::refuse(&f.name, "no host agent is emitted");
            }
        };
        if self.plan.signals[w.signal].net {
            return Ok(self.net_wait(f, w, proxy));
        }
        let mut at =
            format!("ctx.signal(params.header.rank, {})", self.word(f, each, w.signal, &w.index));
        let call = if self.is_entry(w.signal) {
            let ([peer], Expr::Const(1)) = (w.index.as_slice(), &w.count) else {
                return EmitError::refuse(&f.name, "entry is signalled once, word by rank");
            };
            let peer = self.c(f, each, peer);
            at = format!("ctx.signal(params.header.rank, ctx.entered + ({peer}))");
            format!("wait_entered<edge::{edge}, {proxy}>(ctx, {peer}, work.task, {});", w.lag)
        } else {
            let word = self.word(f, each, w.signal, &w.index);
            let epoch =
                if w.lag > 0 { format!("(ctx.epoch() - {})", w.lag) } else { "ctx.epoch()".into() };
            let count = match CPrinter::new(self.plan, Some(f)).with_each(each).print(&w.count) {
                one if one == "1" => String::new(),
                n => format!(" * ({n})"),
            };
            let scope = Self::scope(w.scope);
            format!(
                "wait_signal<edge::{edge}, {scope}, {proxy}>(ctx, ctx.signal(params.header.rank, {word}), \
                 {epoch}{count}, WaitSite{{work.task}});"
            )
        };
        let kind = if w.lag > 0 { "WaitBefore" } else { "Wait" };
        // All lanes of a copier's warp wait for a word that they do not share out.
        let all = w.by == Agent::Copier && each.is_none();
        let call = match self.options.trace {
            true => spans::around(&call, kind, edge, &at, all),
            false => call,
        };
        if w.at == Point::Inner && w.by == Agent::Copier {
            return self.spread(f, w, &call);
        }
        let wait = self.wrap(f, w.by, each, w.when.as_ref(), call);
        // Who of a copier's lanes has asked for a rank differs from wait to wait.
        let shared =
            w.by == Agent::Copier && each.is_some() && w.lag == 0 && self.is_entry(w.signal);
        Ok(if shared { format!("{wait} share_seen(ctx);") } else { wait })
    }

    /// A wait in the inner loop of a copier, for all its iterations at once: nothing that it does in between can be
    /// what one of them waits for, as its posts come behind the loop. Lanes share words of all iterations.
    fn spread(&self, f: &Family, w: &Wait, call: &str) -> Result<String> {
        let refuse = |what: &str| EmitError::unsupported(f.name.clone(), what);
        let number = |e: &Expr| self.number(e).filter(|n| *n > 0);
        let (var, rows) = f.inner.as_ref().ok_or_else(|| refuse("a wait in no loop"))?;
        let rows =
            number(rows).ok_or_else(|| refuse("a copier's loop is as long as all others"))?;
        let when = match &w.when {
            Some(when) => format!("if ({}) ", self.c(f, w.each.as_ref(), when)),
            None => String::new(),
        };
        let (own, n) = match &w.each {
            Some(each) => {
                let n =
                    number(&each.extent).ok_or_else(|| refuse("a wait for any number of words"))?;
                (format!(", {} = item_ % {n}", each.var), n)
            }
            None => (String::new(), 1),
        };
        let all = rows * n;
        Ok(format!(
            "for (int item_ = lane_index(); item_ < {all}; item_ += 32) {{ [[maybe_unused]] const int {var} = item_ / \
             {n}{own}; {when}{call} }}"
        ))
    }

    /// The waits of a copier that looks up: those before, which look nothing up, and those that do.
    ///
    /// # Errors
    /// As [`Self::waits`].
    pub fn waits_to_look_up(&self, f: &Family) -> Result<(Vec<String>, Vec<String>)> {
        let of = |looks: bool| {
            let mine = f.waits.iter().filter(|w| w.by == Agent::Copier && w.at == Point::Start);
            let mine = mine.filter(|w| self.plan.wait_names_stored(w) == looks);
            mine.map(|w| self.wait(f, w)).collect::<Result<Vec<_>, _>>()
        };
        Ok((of(false)?, of(true)?))
    }

    /// A wait for a word that a host raises: a lane's, of all such waits of a rank there are few.
    fn net_wait(&self, f: &Family, w: &Wait, proxy: &str) -> String {
        let (each, edge) = (w.each.as_ref(), w.edge);
        let word = self.word(f, each, w.signal, &w.index);
        let call = match self.node_entry == Some(w.signal) {
            true => {
                let node = w.index.first().map_or(String::new(), |e| self.c(f, each, e));
                format!("wait_node<edge::{edge}, {proxy}>(ctx, {node}, work.task);")
            }
            false => {
                let lag = w.lag;
                let epoch =
                    if lag > 0 { format!("ctx.epoch() - {lag}") } else { "ctx.epoch()".into() };
                format!(
                    "wait_net<edge::{edge}, {proxy}>(ctx, {word}, {epoch}, WaitSite{{work.task}});"
                )
            }
        };
        let kind = if w.lag > 0 { "WaitBefore" } else { "Wait" };
        let word = spans::net("params.header.rank", &word);
        let call = match self.options.trace {
            true => spans::around(&call, kind, edge, &word, false),
            false => call,
        };
        self.wrap(f, w.by, each, w.when.as_ref(), call)
    }

    /// The word of a post that the network makes, as an argument of a command.
    ///
    /// # Errors
    /// [`EmitError::Refused`] for several at once.
    pub fn net_post(&self, f: &Family, p: Option<&Post>) -> Result<String> {
        let Some(p) = p else { return Ok("kNoWord".into()) };
        if p.each.is_some() {
            let what = "a command raises one word at either end";
            return EmitError::refuse(&f.name, what);
        }
        let word = self.word(f, None, p.signal, &p.index);
        let word = format!("net_word<edge::{}>({word})", p.edge);
        Ok(match &p.when {
            Some(when) => format!("{} ? {word} : kNoWord", self.c(f, None, when)),
            None => word,
        })
    }

    fn post(&self, f: &Family, p: &Post) -> String {
        let each = p.each.as_ref();
        let rank = self.c(f, each, &p.rank);
        let word = self.word(f, each, p.signal, &p.index);
        let add = self.c(f, each, &p.add);
        let (edge, scope) = (p.edge, Self::scope(p.scope));
        let post = if several(p) { "post_fenced" } else { "post_signal" };
        let call =
            format!("{post}<edge::{edge}, {scope}>(ctx, ctx.signal({rank}, {word}), {add});");
        let call = match self.options.trace {
            true => {
                spans::around(&call, "Post", edge, &format!("ctx.signal({rank}, {word})"), false)
            }
            false => call,
        };
        // One lane of a copier's warp.
        let once = p.by == Agent::Copier && each.is_none();
        let call = if once { format!("if (lane_index() == 0) {call}") } else { call };
        let posts = self.wrap(f, p.by, each, p.when.as_ref(), call);
        if several(p) { format!("fence_acq_rel<{scope}>(); {posts}") } else { posts }
    }

    /// The waits of one agent at the start of a task, or in its inner loop, in order.
    ///
    /// # Errors
    /// For waits of a proxy that no template has.
    pub fn waits(&self, f: &Family, by: Agent, at: Point) -> Result<Vec<String>> {
        f.waits.iter().filter(|w| w.by == by && w.at == at).map(|w| self.wait(f, w)).collect()
    }

    /// [`Self::waits`] without some, by their numbers in the family.
    ///
    /// # Errors
    /// As [`Self::waits`].
    pub fn waits_without(
        &self,
        f: &Family,
        by: Agent,
        at: Point,
        without: &[usize],
    ) -> Result<Vec<String>> {
        let all = f.waits.iter().enumerate().filter(|(i, _)| !without.contains(i));
        let mine = all.filter(|(_, w)| w.by == by && w.at == at);
        mine.map(|(_, w)| self.wait(f, w)).collect()
    }

    /// Some waits of a family, by their numbers.
    ///
    /// # Errors
    /// As [`Self::waits`].
    pub fn waits_of(&self, f: &Family, numbers: &[usize]) -> Result<Vec<String>> {
        numbers.iter().filter_map(|i| f.waits.get(*i)).map(|w| self.wait(f, w)).collect()
    }

    /// The posts of a family.
    pub fn posts(&self, f: &Family) -> Vec<String> {
        f.posts.iter().map(|p| self.post(f, p)).collect()
    }
}

/// Whether one fence goes before several posts.
pub(super) fn several(p: &Post) -> bool {
    p.each.is_some()
}

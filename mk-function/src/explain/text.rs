//! An explanation in words.

use super::explanation::{Apart, Explanation, Workspace};
use crate::choice::{Fusion, Indivisible, Origin, Reason, Times, Verdict};
use mk_abi::count;
use std::fmt::{self, Formatter, Result};

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "machine    {} of {}", count(self.ranks, "rank"), self.machine)?;
        writeln!(f, "settings   {}", said(&self.settings))?;
        let why = match self.origin {
            Origin::Given => "as the options say",
            Origin::Measured => "measured by `mk tune` to be the best",
            Origin::Predicted if self.config.nodes > 1 => {
                "the best of those that were predicted, a part of all"
            }
            Origin::Predicted => {
                "the best of those that were predicted, a part of all; `mk tune` would measure"
            }
            Origin::Default => "the default",
        };
        let whole = if self.kernels.is_empty() { "" } else { "as one kernel: " };
        writeln!(f, "           {whole}{why}")?;
        let predicted = 1e3 * self.prediction.ms();
        match self.measured_ms {
            Some(ms) => {
                writeln!(f, "time       {predicted:.1} us predicted, {:.1} us measured", 1e3 * ms)?;
            }
            None => writeln!(f, "time       {predicted:.1} us predicted, not measured")?,
        }
        let Workspace { shared, own } = self.workspace;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "workspace  {:.1} MiB in common with other functions of a world, {:.1} MiB of its own",
            mib(shared),
            mib(own)
        )?;
        self.bounds(f)?;
        if !self.others.is_empty() {
            writeln!(f, "other settings")?;
        }
        for (ms, settings) in &self.others {
            writeln!(f, "           {:>8.1} us predicted  {}", 1e3 * ms, said(settings))?;
        }
        match &self.apart {
            Apart::Indivisible(Indivisible::Single) => {}
            Apart::Indivisible(why) => writeln!(f, "apart      it does not come apart: {why}")?,
            Apart::NoPart(name) => {
                writeln!(f, "apart      no prediction: `{name}` has no kernel by itself")?;
            }
            Apart::Parts { parts, verdict } => self.parts(f, parts, verdict)?,
        }
        if let Some(made) = &self.made {
            writeln!(f, "made       {made}")?;
        }
        match self.gave_way {
            0 => {}
            n => writeln!(f, "           {}", gave_way(n))?,
        }
        for (name, settings) in &self.kernels {
            writeln!(f, "           {name}: {}", said(settings))?;
        }
        Ok(())
    }
}

/// Settings of a kernel that may have none.
fn said(settings: &str) -> &str {
    if settings.is_empty() { "nothing to set" } else { settings }
}

/// That so many choices of settings came before.
pub(super) fn gave_way(n: u32) -> String {
    let of = if n == 1 { "a choice".into() } else { format!("{n} choices") };
    format!("{of} of settings before it had no kernel, as the compiler found out")
}

impl Explanation {
    fn bounds(&self, f: &mut Formatter<'_>) -> Result {
        let p = &self.prediction;
        writeln!(f, "bound by   {}: of the chain of tasks that the end waits for,", p.bound)?;
        for (what, s) in p.shares.iter().filter(|(_, s)| *s > 0.0005 * p.total_s) {
            let percent = 100.0 * s / p.total_s;
            writeln!(f, "           {percent:>5.1} %  {:>9.1} us  {what}", 1e6 * s)?;
        }
        writeln!(f, "roles")?;
        for r in &p.roles {
            writeln!(
                f,
                "           {:<12} {:>3} {}: {:.1} us at work, {:.1} us waiting, {:.1} us done before the end",
                r.role,
                r.ctas,
                if r.ctas == 1 { "CTA" } else { "CTAs" },
                1e6 * r.busy_s,
                1e6 * r.wait_s,
                1e6 * r.idle_s
            )?;
        }
        if self.chain > 0 {
            writeln!(f, "chain, from its end")?;
        }
        for c in p.chain.iter().take(self.chain) {
            let place = c.cta.map_or("engine".into(), |cta| format!("CTA {cta:<3}"));
            writeln!(
                f,
                "           {:>8.1} to {:>8.1} us  rank {} {place:<7}  {} {}{}",
                1e6 * c.begin_s,
                1e6 * c.end_s,
                c.rank,
                c.family,
                c.task,
                if c.by_post { ", when its data had come" } else { "" }
            )?;
        }
        Ok(())
    }

    /// The same as one kernel for each operation, and which of the two functions take.
    fn parts(&self, f: &mut Formatter<'_>, parts: &[(String, Times)], verdict: &Verdict) -> Result {
        let ms = |t: &Times| match verdict.why {
            Reason::Measured => t.measured_ms,
            _ => t.predicted_ms,
        };
        let (Some(one), Some(sum)) = (verdict.fused_ms, verdict.apart_ms) else { return Ok(()) };
        let list = parts.iter().filter_map(|(name, t)| Some((name, ms(t)?)));
        let list: Vec<_> = list.map(|(name, ms)| format!("{name} {:.1} us", 1e3 * ms)).collect();
        let (list, sum_us) = (list.join(", "), 1e3 * sum);
        writeln!(f, "apart      {list}: {sum_us:.1} us together, {}", verdict.why)?;
        match verdict.made {
            Fusion::Fused if sum >= one => {
                writeln!(
                    f,
                    "verdict    one kernel is {:.2} times as fast as separate ones",
                    sum / one
                )
            }
            Fusion::Fused => writeln!(
                f,
                "verdict    separate kernels would be {:.2} times as fast, which is within the model's error: one \
                 kernel",
                one / sum
            ),
            Fusion::Apart => {
                let then = match (&self.made, self.searched) {
                    // What was made is said below.
                    (Some(_), _) => "",
                    (None, true) => ": functions launch those",
                    (None, false) => ": functions do not, with these settings given",
                };
                let times = one / sum;
                writeln!(
                    f,
                    "verdict    separate kernels are {times:.2} times as fast as this one{then}"
                )
            }
        }
    }
}

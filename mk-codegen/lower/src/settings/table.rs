//! The table of settings: a row each.

use super::{
    config::Config,
    facts::Facts,
    misfit::Misfit,
    rules,
    text::{Text, read_or, write_or},
    tried,
    values::{AllReduce, Block, Gather, LastWave, Multicast, Reduction, Returns},
};
use mk_plan::{Consumers, Schedule};

/// One setting.
pub struct Setting {
    /// Its name: on the command line, in Python, in files and in messages.
    pub name: &'static str,
    /// One line about it.
    pub doc: &'static str,
    /// The texts that it takes.
    pub form: &'static str,
    /// Its value as text.
    pub get: fn(&Config) -> String,
    /// Sets it; `None` for a text that is no value.
    pub set: fn(&mut Config, &str) -> Option<()>,
    /// Whether a kernel has any use for it.
    pub applies: fn(&Facts) -> Result<(), Misfit>,
    /// Whether its value fits the kernel and the other settings.
    pub fits: fn(&Config, &Facts) -> Result<(), Misfit>,
    /// Takes it back where other settings make it void: what a search does with a combination that has no meaning.
    pub settle: fn(&mut Config, &Facts),
    /// Values that a search tries; none where it does not apply, or is not searched.
    pub values: fn(&Facts) -> Vec<String>,
    /// Whether it says how something is done, rather than how much of it at a time.
    pub strategy: bool,
}

impl PartialEq for Setting {
    fn eq(&self, other: &Setting) -> bool {
        self.name == other.name
    }
}

impl Eq for Setting {}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A row that every kernel may have, that always fits, and that no search tries.
const PLAIN: Setting = Setting {
    name: "",
    doc: "",
    form: "",
    get: |_| String::new(),
    set: |_, _| None,
    applies: |_| Ok(()),
    fits: |_, _| Ok(()),
    settle: |_, _| (),
    values: |_| Vec::new(),
    strategy: false,
};

/// A row's name, line, form, and access to the field of that name.
macro_rules! row {
    ($field:ident: $type:ty, $doc:literal, { $($rest:tt)* }) => {
        Setting {
            name: stringify!($field),
            doc: $doc,
            form: <$type as Text>::FORM,
            get: |c| c.$field.write(),
            set: |c, text| {
                c.$field = <$type as Text>::read(text)?;
                Some(())
            },
            $($rest)*
            ..PLAIN
        }
    };
    ($field:ident: $type:ty | $without:literal, $doc:literal, { $($rest:tt)* }) => {
        Setting {
            name: stringify!($field),
            doc: $doc,
            form: <$type as Text>::FORM,
            get: |c| write_or(&c.$field, $without),
            set: |c, text| {
                c.$field = read_or(text, $without)?;
                Some(())
            },
            $($rest)*
            ..PLAIN
        }
    };
}

/// Every setting, in the order in which they are printed and searched.
#[allow(clippy::needless_update, reason = "some rows say all that there is to say")]
pub const SETTINGS: &[Setting] = &[
    row!(block: Block, "M, N and K of a GEMM's tile; of 8-bit operands, K is 64 pairs", {
        applies: rules::products,
        fits: rules::block,
        settle: rules::settle_block,
        values: tried::blocks,
    }),
    row!(stages: u32 | "auto", "shared-memory stages of a GEMM", {
        applies: rules::products,
        fits: rules::stages,
    }),
    row!(consumers: Consumers, "how the two consumer warpgroups share a CTA's tiles", {
        applies: rules::products,
        fits: rules::consumers,
        settle: rules::settle_consumers,
        values: tried::consumers,
    }),
    row!(group_m: u32 | "auto", "rasterisation: row blocks that are walked together before the next columns' tiles; \
        auto is 1024 rows", {
        applies: rules::products,
        fits: |c, _| rules::at_least_one("group_m", "row blocks", c.group_blocks()),
        values: tried::group_m,
    }),
    row!(intra_comm_sms: u32 | "auto", "CTAs that communicate inside the node", {
        settle: rules::settle_intra_comm_sms,
        values: tried::intra_comm_sms,
    }),
    row!(compute_sms: u32 | "auto", "CTAs that multiply, add up or copy", {}),
    row!(reserved_sms: u32, "SMs that the kernel leaves to others", {}),
    row!(chunk_bytes: u32, "bytes that one communication task moves to each peer, at most", {
        fits: |c, _| rules::at_least_one("chunk_bytes", "bytes", c.chunk_bytes),
        settle: rules::settle_chunk_bytes,
        values: tried::chunk_bytes,
    }),
    row!(copy_stages: u32, "shared-memory stages of a bulk copy", {
        fits: rules::copy_stages,
    }),
    row!(k_slices: u32, "slices of K in which gathered rows travel, at most", {
        applies: rules::products,
        fits: rules::k_slices,
        settle: rules::settle_k_slices,
        values: tried::k_slices,
    }),
    row!(gather: Gather, "which agents push gathered rows", {
        applies: rules::gathers,
        fits: rules::gather,
        values: tried::gather,
        strategy: true,
    }),
    row!(all_reduce: AllReduce, "how an `all_reduce` behind a GEMM moves its contributions", {
        applies: rules::all_reduces,
        values: tried::all_reduce,
        strategy: true,
    }),
    row!(reduction: Reduction, "where the contributions of GEMMs are reduced", {
        applies: rules::sums_products,
        fits: rules::reduction,
        settle: rules::settle_reduction,
        values: tried::reduction,
        strategy: true,
    }),
    row!(combine: Returns, "what of experts' rows goes back to the rank of their token", {
        applies: rules::combines,
        fits: rules::combine,
        strategy: true,
    }),
    row!(last_wave: LastWave | "none", "smaller tiles for the last rows", {
        applies: rules::products,
        fits: rules::last_wave,
        settle: rules::settle_last_wave,
        values: tried::last_wave,
    }),
    row!(split_k: u32, "parts of K of summed GEMMs, at most", {
        applies: rules::products,
        fits: rules::split_k,
        settle: rules::settle_split_k,
        values: tried::split_k,
    }),
    row!(cluster: u32, "CTAs of a cluster that share a tile of a single GEMM, each with a part of K", {
        applies: rules::products,
        fits: rules::cluster,
        settle: rules::settle_cluster,
        values: tried::cluster,
    }),
    row!(multicast: Multicast | "none", "CTAs of a cluster that load operands of a single GEMM together: tiles below \
        each other share B, side by side A", {
        applies: rules::products,
        fits: rules::multicast,
        settle: rules::settle_multicast,
        values: tried::multicast,
    }),
    row!(tile_scheduler: Schedule, "whether tiles are dealt out before the launch, or taken by the next free CTA", {
        applies: rules::products,
        values: tried::tile_scheduler,
        strategy: true,
    }),
];

/// The setting of that name.
pub fn by_name(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.name == name)
}

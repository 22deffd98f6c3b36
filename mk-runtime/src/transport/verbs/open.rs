//! An end over the ports that its options ask for.

use super::choice::spread;
use super::end::Verbs;
use super::{Options, device, unavailable};
use crate::transport::{Transport, TransportError, rails::Rails};

/// Opens the end of a rank.
///
/// # Errors
/// [`TransportError::Unavailable`] without libibverbs, and without devices that fit the
/// options; [`TransportError::Refused`] for a device that would not do.
pub fn open(rank: u32, options: &Options) -> Result<Box<dyn Transport>, TransportError> {
    options.check()?;
    let each = match options.cards {
        1 => vec![options.clone()],
        _ => spread(&device::ports()?, &device::place(options.near.as_deref()), options)
            .map_err(|what| unavailable(what, "ask for fewer cards, or bring links up"))?,
    };
    let open = |of: &Options| Verbs::open(rank, of).map(|end| Box::new(end) as _);
    Rails::over(each.iter().map(open).collect::<Result<_, _>>()?)
}

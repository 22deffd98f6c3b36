//! The network between nodes of `mk run`, as the command line says it.

use mk::runtime::transport::shaped::Shape;
use mk_harness::{NetOptions, Wire};
use std::str::FromStr;
use std::time::Duration;

/// `loopback`, `ofi`, or `ofi:PROVIDER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport(Wire);

/// The provider that needs nothing but libfabric.
const ANYWHERE: &str = "tcp;ofi_rxm";

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Transport, String> {
        let ofi = |provider: &str| {
            // The interface that leads nowhere else.
            let address = provider.starts_with("tcp").then(|| "127.0.0.1".to_string());
            Transport(Wire::Ofi { provider: provider.into(), address })
        };
        match text.split_once(':') {
            None if text == "loopback" => Ok(Transport(Wire::Loopback)),
            None if text == "ofi" => Ok(ofi(ANYWHERE)),
            Some(("ofi", provider)) if !provider.is_empty() => Ok(ofi(provider)),
            _ => Err("write loopback, ofi, or ofi:PROVIDER with a provider of libfabric".into()),
        }
    }
}

/// `50GB/s,5us`: a rate, a latency, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    bytes_per_s: Option<f64>,
    latency: Duration,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Link, String> {
        let mut link = Link { bytes_per_s: None, latency: Duration::ZERO };
        let (mut rate, mut time) = (None, None);
        for part in text.split(',') {
            let at = part.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(part.len());
            let (number, unit) = part.split_at(at);
            let number = number.parse::<f64>().ok().filter(|x| *x > 0.0 && *x < 1e12);
            let number = number.ok_or_else(|| format!("`{part}`: write 50GB/s or 5us"))?;
            let slot = match unit {
                "GB/s" => rate.replace(number * 1e9),
                "MB/s" => rate.replace(number * 1e6),
                "us" => time.replace(number * 1e-6),
                "ms" => time.replace(number * 1e-3),
                _ => return Err(format!("`{part}`: rates are in GB/s or MB/s, times in us or ms")),
            };
            if slot.is_some() {
                return Err(format!("`{part}`: one rate and one time, as in 50GB/s,5us"));
            }
        }
        link.bytes_per_s = rate;
        let latency = Duration::try_from_secs_f64(time.unwrap_or(0.0)).unwrap_or(Duration::MAX);
        if latency > Duration::from_secs(10) {
            return Err("a latency of more than 10 s".into());
        }
        link.latency = latency;
        Ok(link)
    }
}

impl Transport {
    /// Whether threads of this process copy.
    pub fn is_loopback(&self) -> bool {
        self.0 == Wire::Loopback
    }
}

/// What a link does to a network.
pub fn shape(link: Option<&Link>) -> Shape {
    link.map_or_else(Shape::default, |link| Shape {
        bytes_per_s: link.bytes_per_s,
        latency: link.latency,
        ..Shape::default()
    })
}

/// The network that both say.
pub fn network(transport: &Transport, link: Option<&Link>) -> NetOptions {
    NetOptions { shape: shape(link), ..NetOptions::new(transport.0.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read() {
        let link = |text: &str| text.parse::<Link>();
        let both = link("50GB/s,5us").expect("reads");
        assert_eq!((both.bytes_per_s, both.latency), (Some(50e9), Duration::from_micros(5)));
        assert_eq!(link("1.5ms").map(|l| l.latency), Ok(Duration::from_micros(1500)));
        for wrong in ["", "50", "GB/s", "5us,6us", "1GB/s,2MB/s", "-1us", "99999ms", "0us", "5s"] {
            assert!(link(wrong).is_err(), "{wrong}");
        }
        let wire = |text: &str| text.parse::<Transport>().map(|t| t.0);
        assert_eq!(wire("loopback"), Ok(Wire::Loopback));
        assert!(matches!(wire("ofi"), Ok(Wire::Ofi { provider, .. }) if provider == ANYWHERE));
        assert!(
            matches!(wire("ofi:shm"), Ok(Wire::Ofi { provider, address: None }) if provider == "shm")
        );
        assert!(wire("ofi:").is_err() && wire("tcp").is_err());
    }
}

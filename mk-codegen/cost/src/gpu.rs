//! Figures for a GPU that nobody measured: those of the nearest that was, in proportion to what the driver says of
//! both.

use super::model::{Chip, DeviceModel, Movers};

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its name, for instance `NVIDIA H200`.
    pub name: String,
    /// What it has; none where the driver does not say, or kernels for [`mk_plan::target::SM_90A`] do not run there.
    pub chip: Option<Chip>,
}

impl From<&str> for Gpu {
    /// Nothing is known of it but its name.
    fn from(name: &str) -> Gpu {
        Gpu { name: name.into(), chip: None }
    }
}

impl Chip {
    /// How far another is, as factors: of memory, of clocks.
    fn distance(&self, other: &Chip) -> f64 {
        let ratio = |a: f64, b: f64| (a / b).ln().abs();
        ratio(self.memory_bytes_per_s, other.memory_bytes_per_s)
            + ratio(self.clock_hz, other.clock_hz)
            + ratio(self.sms.into(), other.sms.into())
    }

    /// Whether all of it can be.
    fn is_sound(&self) -> bool {
        let all = [self.clock_hz, self.l2_bytes, self.memory_bytes_per_s];
        self.sms > 0 && all.iter().all(|n| (1e3..=1e18).contains(n))
    }
}

impl DeviceModel {
    /// The figures for a GPU: those that ship with mk for its name; else those of the nearest chip among them, in
    /// proportion, which [`DeviceModel::measured`] then says. Nothing where the driver says too little.
    pub fn of(gpu: &Gpu) -> Option<DeviceModel> {
        let shipped = DeviceModel::shipped_models();
        if let Some(model) = shipped.iter().find(|m| m.gpu == gpu.name) {
            return Some((*model).clone());
        }
        let chip = gpu.chip.filter(Chip::is_sound)?;
        let known = shipped.iter().filter_map(|m| Some((*m, m.chip?)));
        let nearest = known.min_by(|a, b| chip.distance(&a.1).total_cmp(&chip.distance(&b.1)));
        nearest.map(|(model, from)| model.derived(&gpu.name, chip, from))
    }

    /// The same for a chip that differs from `from`, of which the figures are: rates of memory by memory's, times of an
    /// SM by its clock.
    fn derived(&self, name: &str, chip: Chip, from: Chip) -> DeviceModel {
        let memory = chip.memory_bytes_per_s / from.memory_bytes_per_s;
        let clock = chip.clock_hz / from.clock_hz;
        let mut model = self.clone();
        for rate in [
            &mut model.hbm_bytes_per_s,
            &mut model.hbm_slices_bytes_per_s,
            &mut model.hbm_once_bytes_per_s,
        ] {
            *rate *= memory;
        }
        for tile in &mut model.tiles {
            tile.step_s /= clock;
            tile.tile_s /= clock;
        }
        for time in [&mut model.line_s, &mut model.exchange_s] {
            *time /= clock;
        }
        model.products = model.products.map(|p| p.faster(memory, clock));
        model.l2_bytes = chip.l2_bytes.min(self.l2_bytes * chip.l2_bytes / from.l2_bytes);
        model.movers = model.movers.faster(clock);
        model.gpu = name.into();
        model.measured = format!(
            "nobody measured it: derived from {} by {:.2} times its memory's rate, {:.2} times its clock and {} of {} \
             SMs",
            self.gpu, memory, clock, chip.sms, from.sms
        );
        (model.chip, model.raw) = (Some(chip), None);
        model
    }
}

impl Movers {
    /// What SMs of another clock move inside the GPU; links are as fast as they were.
    fn faster(mut self, clock: f64) -> Movers {
        for mover in [&mut self.bulk_local, &mut self.ldst_local, &mut self.sum_local] {
            mover.bytes_per_s *= clock;
            mover.task_s /= clock;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100_PCIE: Chip =
        Chip { sms: 114, clock_hz: 1.755e9, l2_bytes: 52_428_800.0, memory_bytes_per_s: 2.039e12 };

    #[test]
    fn a_chip_that_was_not_measured_has_figures_in_proportion() {
        let gpu = Gpu { name: "NVIDIA H100 PCIe".into(), chip: Some(H100_PCIE) };
        let model = DeviceModel::of(&gpu).expect("a Hopper");
        DeviceModel::parse(&model.to_json()).expect("is sound");
        let known = DeviceModel::shipped_models();
        let from =
            known.iter().find(|m| model.measured.contains(&format!("derived from {} by", m.gpu)));
        let (from, chip) = from.and_then(|m| Some((m, m.chip?))).expect("says from which");
        let memory = H100_PCIE.memory_bytes_per_s / chip.memory_bytes_per_s;
        assert!((model.hbm_bytes_per_s / from.hbm_bytes_per_s / memory - 1.0).abs() < 1e-9);
        let clock = H100_PCIE.clock_hz / chip.clock_hz;
        assert!((from.tiles[0].step_s / model.tiles[0].step_s / clock - 1.0).abs() < 1e-9);
    }

    #[test]
    fn one_that_was_measured_has_its_own() {
        for model in DeviceModel::shipped_models() {
            let named = Gpu { name: model.gpu.clone(), chip: Some(H100_PCIE) };
            assert_eq!(DeviceModel::of(&named).as_ref(), Some(model));
            assert!(model.chip.is_some_and(|c| c.is_sound()), "others are derived from it");
        }
    }

    #[test]
    fn of_a_name_alone_nothing_is_derived() {
        assert_eq!(DeviceModel::of(&"NVIDIA L4".into()), None);
        let chip = Chip { clock_hz: 0.0, ..H100_PCIE };
        assert_eq!(DeviceModel::of(&Gpu { name: "?".into(), chip: Some(chip) }), None);
    }
}

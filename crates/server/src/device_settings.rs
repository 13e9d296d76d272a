//! The settings of the device.

use towpath_protocol::settings::{Setting, SettingError, Values};

use crate::resume::settings::ChangedSettings;

/// The device's settings, and the record of changed settings for a successor.
pub(crate) struct DeviceSettings {
    values: Values,
    changed: ChangedSettings,
    /// Packets per poll iteration that the engine has memory for.
    batch: usize,
}

impl DeviceSettings {
    /// Begins with the values of the start. `batch`: the packets per poll iteration that the engine has memory for.
    pub(crate) fn new(values: Values, changed: ChangedSettings, batch: usize) -> DeviceSettings {
        DeviceSettings { values, changed, batch }
    }

    /// Returns the values.
    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the most packets per poll iteration if a value of a setting is more.
    pub(crate) fn exceeded_batch(&self, setting: Setting, value: u64) -> Option<usize> {
        let is_batch = setting == Setting::RxBatch && setting.check(value).is_ok();
        Some(self.batch).filter(|batch| is_batch && value > *batch as u64)
    }

    /// Changes a setting, and records it for a successor.
    ///
    /// # Errors
    /// Fails if the setting cannot have the value.
    pub(crate) fn set(&mut self, setting: Setting, value: u64) -> Result<(), SettingError> {
        self.values.set(setting, value)?;
        self.changed.set(setting, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use towpath_protocol::store::{MemoryStore, Store};

    use super::*;

    #[test]
    fn a_change_is_also_a_successors() {
        let (mut store, mut values) = (MemoryStore::default(), Values::default());
        let changed = ChangedSettings::adopt_or_create(None, &mut store, &mut values).unwrap();
        let mut settings = DeviceSettings::new(values, changed, 64);
        assert!(settings.set(Setting::WatchdogMs, u64::MAX).is_err());
        settings.set(Setting::WatchdogMs, 77).unwrap();
        assert_eq!(settings.values().get(Setting::WatchdogMs), 77);
        let left = store.contents().unwrap().pop().map(|(_, file)| file);
        let mut values = Values::default();
        ChangedSettings::adopt_or_create(left, &mut store, &mut values).unwrap();
        assert_eq!(values.get(Setting::WatchdogMs), 77);
    }

    #[test]
    fn a_batch_is_within_the_engines_memory() {
        let (mut store, mut values) = (MemoryStore::default(), Values::default());
        let changed = ChangedSettings::adopt_or_create(None, &mut store, &mut values).unwrap();
        let settings = DeviceSettings::new(values, changed, 64);
        assert_eq!(settings.exceeded_batch(Setting::RxBatch, 64), None);
        assert_eq!(settings.exceeded_batch(Setting::RxBatch, 65), Some(64));
        assert_eq!(settings.exceeded_batch(Setting::RxBatch, u64::MAX), None, "never a batch");
        assert_eq!(settings.exceeded_batch(Setting::WatchdogMs, 65), None);
    }
}

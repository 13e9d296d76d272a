//! The faults and their rates, and their form as text.

use std::str::FromStr;
use std::time::Duration;

/// The longest delay or stall, in microseconds.
pub const MAX_TIME_US: u64 = 10_000_000;

/// The faults of one direction's frames. Rates are probabilities per frame, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub drop: f64,
    /// The frame comes twice.
    pub duplicate: f64,
    /// The frame comes after one to three of its successors, or 10 ms later if too few follow.
    pub reorder: f64,
    /// One bit of the frame is flipped.
    pub flip: f64,
    /// The frame comes later by [`Faults::delay_time`]; frames without delay overtake it.
    pub delay: f64,
    /// The length of the delay.
    pub delay_time: Duration,
    /// From this frame on no frame passes for [`Faults::stall_time`], or until a reset. While
    /// sending is stalled, the wrapper keeps the packets that it takes, and their tokens.
    pub stall: f64,
    /// The length of the stall.
    pub stall_time: Duration,
    /// The driver panics at the frame.
    pub crash: f64,
    /// The driver's call with the frame computes for ever.
    pub hang: f64,
    /// The driver's call with the frame sleeps for ever.
    pub block: f64,
    /// The driver names an address for the frame that it has not registered with the IOMMU. Only for sent
    /// frames, and only with a device behind an IOMMU.
    pub elsewhere: f64,
}

/// The faults of both directions.
///
/// As text: `drop=0.01,dup=0.01,reorder=0.01,flip=0.001,seed=42`. The keys are `drop`, `dup`,
/// `reorder`, `flip`, `delay`, `stall`, `crash`, `hang` and `block` (rates), `delay_us` and
/// `stall_us` (microseconds), `tx.elsewhere` (a rate), and `seed`. All other keys except `seed` may have a direction: `rx.drop=0.1` for received
/// frames, `tx.drop=0.1` for sent frames. A later entry overrides an earlier one. `delay_us` without a
/// rate delays every frame; a rate of delays or stalls needs its time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spec {
    /// The seed of the random numbers. The same seed and the same frames give the same faults.
    pub seed: u64,
    /// The faults of received frames.
    pub rx: Faults,
    /// The faults of sent frames.
    pub tx: Faults,
}

/// The reason why a text is not a [`Spec`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// Neither empty nor `key=value`.
    #[error("\"{0}\" is not key=value")]
    NoValue(String),
    /// An unknown key.
    #[error(
        "\"{0}\" is none of drop, dup, reorder, flip, delay, delay_us, stall, stall_us, crash, hang, \
         block (each also as rx.… or tx.…), tx.elsewhere, and seed"
    )]
    UnknownKey(String),
    /// A rate that is not a probability.
    #[error("{key}={value}: a rate from 0 to 1 is needed")]
    BadRate {
        /// The rate's key.
        key: String,
        /// The value given.
        value: String,
    },
    /// A time out of range.
    #[error("{key}={value}: whole microseconds up to {MAX_TIME_US} are needed")]
    BadTime {
        /// The time's key.
        key: String,
        /// The value given.
        value: String,
    },
    /// A seed that is not a number.
    #[error("seed={0}: a whole number up to 2^64 - 1 is needed")]
    BadSeed(String),
    /// A rate of delays or stalls without a time.
    #[error("{direction}.{what} has a rate and no {what}_us")]
    NoTime {
        /// `rx` or `tx`.
        direction: &'static str,
        /// `delay` or `stall`.
        what: &'static str,
    },
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let mut spec = Spec::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let Some((key, value)) = word.split_once('=') else {
                return Err(SpecError::NoValue(word.to_owned()));
            };
            let (key, value) = (key.trim(), value.trim());
            if key == "seed" {
                spec.seed = value.parse().map_err(|_| SpecError::BadSeed(value.to_owned()))?;
            } else if let Some(name) = key.strip_prefix("rx.") {
                spec.rx.set(key, name, value)?;
            } else if let Some(name) = key.strip_prefix("tx.") {
                spec.tx.set(key, name, value)?;
            } else {
                spec.rx.set(key, key, value)?;
                spec.tx.set(key, key, value)?;
            }
        }
        spec.rx.complete("rx")?;
        spec.tx.complete("tx")?;
        Ok(spec)
    }
}

impl Faults {
    fn set(&mut self, key: &str, name: &str, value: &str) -> Result<(), SpecError> {
        let rate = || match value.parse::<f64>() {
            Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
            _ => Err(SpecError::BadRate { key: key.to_owned(), value: value.to_owned() }),
        };
        let time = || match value.parse::<u64>() {
            Ok(time) if time <= MAX_TIME_US => Ok(Duration::from_micros(time)),
            _ => Err(SpecError::BadTime { key: key.to_owned(), value: value.to_owned() }),
        };
        match name {
            "drop" => self.drop = rate()?,
            "dup" => self.duplicate = rate()?,
            "reorder" => self.reorder = rate()?,
            "flip" => self.flip = rate()?,
            "delay" => self.delay = rate()?,
            "stall" => self.stall = rate()?,
            "crash" => self.crash = rate()?,
            "hang" => self.hang = rate()?,
            "block" => self.block = rate()?,
            "elsewhere" if key == "tx.elsewhere" => self.elsewhere = rate()?,
            "delay_us" => {
                self.delay_time = time()?;
                if self.delay == 0.0 && !self.delay_time.is_zero() {
                    self.delay = 1.0;
                }
            }
            "stall_us" => self.stall_time = time()?,
            _ => return Err(SpecError::UnknownKey(key.to_owned())),
        }
        Ok(())
    }

    fn complete(&self, direction: &'static str) -> Result<(), SpecError> {
        if self.delay > 0.0 && self.delay_time.is_zero() {
            return Err(SpecError::NoTime { direction, what: "delay" });
        }
        if self.stall > 0.0 && self.stall_time.is_zero() {
            return Err(SpecError::NoTime { direction, what: "stall" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_and_one() {
        let spec: Spec = "drop=0.01, dup=1,tx.drop=0.5,seed=42,rx.delay_us=300".parse().unwrap();
        let rx = Faults {
            drop: 0.01,
            duplicate: 1.0,
            delay: 1.0,
            delay_time: Duration::from_micros(300),
            ..Faults::default()
        };
        let tx = Faults { drop: 0.5, duplicate: 1.0, ..Faults::default() };
        assert_eq!(spec, Spec { seed: 42, rx, tx });
        assert_eq!("".parse::<Spec>().unwrap(), Spec::default());
        let spec: Spec = "delay=0.2,delay_us=5,stall=0.1,stall_us=9".parse().unwrap();
        assert_eq!((spec.tx.delay, spec.rx.stall_time), (0.2, Duration::from_micros(9)));
    }

    #[test]
    fn invalid_fault_specs_are_explained() {
        for (text, error) in [
            ("drop", "\"drop\" is not key=value"),
            ("drop=1.5", "drop=1.5: a rate from 0 to 1 is needed"),
            ("tx.flip=NaN", "tx.flip=NaN: a rate from 0 to 1 is needed"),
            ("delay_us=-1", "delay_us=-1: whole microseconds up to 10000000 are needed"),
            (
                "stall_us=10000001",
                "stall_us=10000001: whole microseconds up to 10000000 are needed",
            ),
            ("seed=x", "seed=x: a whole number up to 2^64 - 1 is needed"),
            ("delay=1", "rx.delay has a rate and no delay_us"),
            ("tx.stall=1", "tx.stall has a rate and no stall_us"),
        ] {
            assert_eq!(text.parse::<Spec>().unwrap_err().to_string(), error);
        }
        let error = "lose=1".parse::<Spec>().unwrap_err();
        assert_eq!(error, SpecError::UnknownKey("lose".to_owned()));
        for key in ["rx.seed", "elsewhere", "rx.elsewhere"] {
            let error = format!("{key}=1").parse::<Spec>().unwrap_err();
            assert_eq!(error, SpecError::UnknownKey(key.to_owned()));
        }
        assert_eq!("tx.elsewhere=0.5".parse::<Spec>().unwrap().tx.elsewhere, 0.5);
    }
}

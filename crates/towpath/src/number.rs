//! Whole numbers with limits, as values of options. Each number checks itself while it is read, so
//! that an error on the command line names its option, and an error in a file its line.
#![forbid(unsafe_code)]

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number<const LEAST: u64, const MOST: u64>(u64);

impl<const LEAST: u64, const MOST: u64> Number<LEAST, MOST> {
    pub(crate) fn new(value: u64) -> Result<Self, String> {
        if (LEAST..=MOST).contains(&value) {
            Ok(Number(value))
        } else {
            Err(format!("{value} is out of range; {LEAST} to {MOST} is possible"))
        }
    }

    pub(crate) fn get(self) -> usize {
        // This program supports only 64-bit processors.
        const { assert!(MOST <= usize::MAX as u64) };
        self.0 as usize
    }
}

impl<const LEAST: u64, const MOST: u64> FromStr for Number<LEAST, MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = text
            .parse()
            .map_err(|_| format!("not a whole number; {LEAST} to {MOST} is possible"))?;
        Self::new(value)
    }
}

impl<const LEAST: u64, const MOST: u64> Serialize for Number<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(u64::deserialize(from)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_limits() {
        assert_eq!("68".parse::<Number<68, 100>>().unwrap().get(), 68);
        for bad in ["67", "101", "-1", "x", "", "1e2"] {
            assert!(bad.parse::<Number<68, 100>>().unwrap_err().contains("68 to 100"), "{bad}");
        }
    }
}

//! Circuits, and the layer that each carries.

/// VCIs below this one are reserved (ITU-T I.361).
const FIRST_VCI: u16 = 32;

/// A virtual circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Circuit {
    /// The virtual path identifier.
    pub vpi: u8,
    /// The virtual channel identifier.
    pub vci: u16,
}

impl Circuit {
    /// Returns `true` if the VCI is reserved: below 32.
    ///
    /// ```
    /// # use towpath_pdu::atm::Circuit;
    /// // VCI 5 is that of signalling.
    /// assert!(Circuit { vpi: 0, vci: 5 }.is_reserved());
    /// assert!(!Circuit { vpi: 0, vci: 32 }.is_reserved());
    /// ```
    #[must_use]
    pub fn is_reserved(self) -> bool {
        self.vci < FIRST_VCI
    }

    /// Returns `true` if cells of this circuit are idle or unassigned.
    ///
    /// ```
    /// # use towpath_pdu::atm::Circuit;
    /// assert!(Circuit { vpi: 0, vci: 0 }.is_idle());
    /// assert!(!Circuit { vpi: 1, vci: 0 }.is_idle());
    /// ```
    #[must_use]
    pub fn is_idle(self) -> bool {
        self.vpi == 0 && self.vci == 0
    }
}

/// The adaptation layer of a circuit. A cell does not say which layer its circuit has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptation {
    /// AAL5 (ITU-T I.363.5): one PDU after the other.
    Aal5,
    /// AAL3/4 (ITU-T I.363.3): several PDUs at once, by MID.
    Aal34,
}

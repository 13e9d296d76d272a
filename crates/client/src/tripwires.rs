//! Tripwires: an application learns that another one accessed its memory.

use towpath_queue::events;
use towpath_queue::tripwire::{Fenced, fence};

use crate::error::Lost;
use crate::status::Status;
use crate::transmit::Transmit;
use crate::tripwire_table::{ImportedTripwire, Tripwire, TripwireTable};

/// The part of a session that arms and fires its tripwires
/// ([`Session::tripwires`](crate::Session::tripwires)). [`Memories`](crate::Memories) sets, imports and
/// releases them.
pub struct Tripwires<'a> {
    transmit: &'a mut Transmit,
    status: &'a Status,
    table: Option<&'a mut TripwireTable>,
}

impl std::fmt::Debug for Tripwires<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tripwires").finish_non_exhaustive()
    }
}

impl<'a> Tripwires<'a> {
    #[inline]
    pub(crate) fn new(
        transmit: &'a mut Transmit,
        status: &'a Status,
        table: Option<&'a mut TripwireTable>,
    ) -> Tripwires<'a> {
        Tripwires { transmit, status, table }
    }

    /// Arms a tripwire: the next access of its kind fires it. The application then looks at the
    /// memory, and waits only if there is nothing new: an access before this call fires nothing.
    /// Costs a store and a barrier, and no system call. A tripwire of another session is ignored.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, tripwire: Tripwire, memory: &Memory, seen: u64) -> Result<(), Box<dyn std::error::Error>> {
    /// session.tripwires().arm(tripwire);
    /// if memory.load(0)? == seen {
    ///     session.wait(None)?;
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn arm(&mut self, tripwire: Tripwire) {
        if self.status.is_parents()
            && let Some(table) = &mut self.table
        {
            table.own.arm(tripwire.number);
        }
    }

    /// Ends the wait for a tripwire: from now on, accesses cost the accessing side nothing.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, tripwire: Tripwire) {
    /// session.tripwires().disarm(tripwire);
    /// # }
    /// ```
    #[inline]
    pub fn disarm(&mut self, tripwire: Tripwire) {
        if self.status.is_parents()
            && let Some(table) = &mut self.table
        {
            table.own.disarm(tripwire.number);
        }
    }

    /// Returns `true` if a tripwire is armed and has fired: one load of a word that the server
    /// writes.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, tripwire: Tripwire) {
    /// let was_accessed = session.tripwires().has_fired(tripwire);
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn has_fired(&self, tripwire: Tripwire) -> bool {
        let table = self.table.as_ref();
        table.is_some_and(|table| self.status.is_parents() && table.own.has_fired(tripwire.number))
    }

    /// Passes each tripwire that is armed and has fired to `found`, without events: one load for 64
    /// tripwires, and no system call. For a program that polls.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) {
    /// session.tripwires().for_each_fired(|tripwire| println!("{}", tripwire.number()));
    /// # }
    /// ```
    pub fn for_each_fired(&self, mut found: impl FnMut(Tripwire)) {
        let Some(table) = self.table.as_ref().filter(|_| self.status.is_parents()) else { return };
        table.own.for_each_fired(|number| found(Tripwire { number }));
    }

    /// Returns a tripwire that fired, and disarms it: the application looks at the memory, and arms
    /// it again if it waits for more. Only [`Session::wait`](crate::Session::wait) and
    /// [`Session::poll`](crate::Session::poll) take events.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(tripwire) = session.tripwires().ready()? {
    ///     println!("{} fired", tripwire.number());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    pub fn ready(&mut self) -> Result<Option<Tripwire>, Lost> {
        self.status.check()?;
        let Some(table) = &mut self.table else { return Ok(None) };
        let Some(number) = table.first_fired() else { return Ok(None) };
        table.pop_first(number);
        table.own.disarm(number);
        Ok(Some(Tripwire { number }))
    }

    /// Has the server fire an imported tripwire, if its owner armed it. The application calls this
    /// after it has accessed the mapped memory; requests do so by themselves. Returns `true` if
    /// this call told the server; `false` if the tripwire is not armed, or the server was told
    /// since it was armed. As long as the tripwire is not armed, the call costs a barrier and a
    /// load. It has no effect once the aperture has ended.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, aperture: &Aperture, tripwire: ImportedTripwire) -> Result<(), Box<dyn std::error::Error>> {
    /// aperture.store(0, 1)?;
    /// session.tripwires().trip(tripwire)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Lost`].
    #[inline]
    pub fn trip(&mut self, tripwire: ImportedTripwire) -> Result<bool, Lost> {
        self.trip_fenced(tripwire, fence())
    }

    /// Does what [`Tripwires::trip`] does, after a barrier of the caller's.
    #[inline]
    pub(crate) fn trip_fenced(
        &mut self,
        tripwire: ImportedTripwire,
        fenced: Fenced,
    ) -> Result<bool, Lost> {
        self.status.check()?;
        let Some(table) = &mut self.table else { return Ok(false) };
        let armed = table.imported(tripwire.number);
        if !armed.is_some_and(|armed| armed.must_report(fenced)) {
            return Ok(false);
        }
        self.report_access(tripwire.number)?;
        Ok(true)
    }

    #[cold]
    fn report_access(&mut self, tripwire: u32) -> Result<(), Lost> {
        if self.status.hung_up() {
            // The session tells the next server of all imported tripwires when it resumes.
            return Ok(());
        }
        let number = self.transmit.per_lane as u32 + tripwire;
        let lane = &mut self.transmit.lanes[0];
        let marked = lane.marker.mark(events::fence(), number);
        let new = lane.marker.publish();
        lane.unnotified = true;
        match marked {
            Ok(_) => self.transmit.notify_for(new),
            Err(violation) => return Err(self.status.wrong(violation)),
        }
        Ok(())
    }
}

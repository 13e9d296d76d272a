//! Objects by number: a new object gets the lowest free number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Objects of one kind by number.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    all: Vec<Option<T>>,
    /// The free numbers below the length of `all`.
    free: BinaryHeap<Reverse<u32>>,
    most: u32,
}

impl<T> Numbered<T> {
    /// Begins without objects, of which there may be `most`.
    pub(crate) fn new(most: u32) -> Numbered<T> {
        Numbered { all: Vec::new(), free: BinaryHeap::new(), most }
    }

    /// Returns the most objects.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Returns an object.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.all.get(number as usize)?.as_ref()
    }

    /// Returns an object for changes.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.all.get_mut(number as usize)?.as_mut()
    }

    /// Returns the objects with their numbers, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.all).filter_map(|(number, one)| Some((number, one.as_ref()?)))
    }

    /// Returns the number for a new object: the lowest that is free.
    #[must_use]
    pub(crate) fn free(&self) -> Option<u32> {
        let fresh = self.all.len() as u32;
        let released = self.free.peek().map(|Reverse(number)| *number);
        released.or((fresh < self.most).then_some(fresh))
    }

    /// Enters an object under the number that [`Numbered::free`] returned; or under any number, before
    /// [`Numbered::find_free`].
    pub(crate) fn enter(&mut self, number: u32, object: T) {
        if self.free.peek() == Some(&Reverse(number)) {
            self.free.pop();
        }
        let index = number as usize;
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        self.all[index] = Some(object);
    }

    /// Removes an object and frees its number.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let object = self.all.get_mut(number as usize)?.take()?;
        self.free.push(Reverse(number));
        Some(object)
    }

    /// Finds the free numbers, once an earlier server's objects are entered under their old numbers.
    pub(crate) fn find_free(&mut self) {
        let gaps = (0..).zip(&self.all).filter(|(_, one)| one.is_none());
        self.free = gaps.map(|(number, _)| Reverse(number)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_object_gets_the_lowest_free_number() {
        let mut numbered = Numbered::new(4);
        for number in [0, 2] {
            numbered.enter(number, 'a');
        }
        numbered.find_free();
        for number in [1, 3] {
            assert_eq!(numbered.free(), Some(number));
            numbered.enter(number, 'b');
        }
        assert_eq!(numbered.free(), None);
        assert_eq!(
            (numbered.remove(2), numbered.remove(2), numbered.remove(9)),
            (Some('a'), None, None)
        );
        assert_eq!(
            (numbered.free(), numbered.get(2), numbered.get(3)),
            (Some(2), None, Some(&'b'))
        );
    }
}
